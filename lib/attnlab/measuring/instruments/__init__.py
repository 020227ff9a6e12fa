"""Describe the machine and a call: devices, the locked environment, telemetry, the profiler, Nsight Compute."""
