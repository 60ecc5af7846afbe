"""The CUDA device: what can be tested without a GPU, and what needs one."""
