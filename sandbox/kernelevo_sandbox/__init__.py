"""Isolation of untrusted processes: the Sandbox contract, its backends, limits and probes. Knows nothing of kernels."""
