"""The public face of KernelEvo for Python users."""
