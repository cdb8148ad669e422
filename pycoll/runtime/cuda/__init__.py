"""Arrays in the memory of GPUs: the same Programs, run by kernels on the user's streams."""
