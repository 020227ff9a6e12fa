"""The page 05_kernels."""
