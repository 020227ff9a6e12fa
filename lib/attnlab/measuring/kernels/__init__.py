"""The kernels of the ladder: compiled by CuPy, prepared for tensors of a layout, launched."""
