"""Compiling kernels without a GPU: NVRTC, occupancy, and the check of every kernel."""
