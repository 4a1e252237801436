"""The executor of a Ray cluster: lanes wherever the cluster has GPUs. The only part that imports Ray."""
