"""The names under which a run records the clock methods of the panel."""

EAGER, DEVICE, DEVICE_COLD = "eager", "device", "device.cold"
DEVICE_REPEATED = "device.repeated"
"""The device clock around calls that all read the same values, unlike the calls of a run's samples."""
CUPTI, CUPTI_GRAPH, CUPTI_SPAN = "cupti", "cupti.graph", "cupti.span"
TRITON_DO_BENCH, TRITON_CUDAGRAPH = "triton.do_bench", "triton.cudagraph"
NCU, NCU_COLD, NVBENCH, NVBENCH_COLD = "ncu", "ncu.cold", "nvbench.batch", "nvbench.cold"
TOOLS = {"ncu": {"warm": NCU, "cold": NCU_COLD}, "nvbench": {"warm": NVBENCH, "cold": NVBENCH_COLD}}
"""Programs that take samples in a separate process: their methods by the state of the L2 when a sample begins."""
COLD = (DEVICE_COLD, TRITON_DO_BENCH, NCU_COLD, NVBENCH_COLD)
WARM = (EAGER, DEVICE, DEVICE_REPEATED, CUPTI, CUPTI_GRAPH, CUPTI_SPAN, TRITON_CUDAGRAPH, NCU, NVBENCH)


def reference(name: str) -> str:
    """The device clock that a method is compared with."""
    return DEVICE_COLD if name in COLD else DEVICE
