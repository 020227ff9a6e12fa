"""Measuring on several GPUs, of one host or of many: an executor over a Dask cluster."""
