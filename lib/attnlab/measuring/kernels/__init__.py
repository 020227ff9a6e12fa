"""Compile the kernels of the ladder with CuPy, prepare them for tensors of a layout, and launch them."""
