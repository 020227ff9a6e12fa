"""Describing the machine: devices, the locked environment, telemetry, the profiler, Nsight Compute."""
