"""The methods of the panel of clocks, by the names under which a run records them."""

from dataclasses import dataclass
from typing import Literal

EAGER, DEVICE, DEVICE_COLD = "eager", "device", "device.cold"
DEVICE_REPEATED = "device.repeated"
"""The device clock around calls that all read the same values, which those of a run's samples never do."""
CUPTI, CUPTI_GRAPH, CUPTI_SPAN = "cupti", "cupti.graph", "cupti.span"
TRITON_DO_BENCH, TRITON_CUDAGRAPH = "triton.do_bench", "triton.cudagraph"
NCU, NCU_COLD = "ncu", "ncu.cold"
NVBENCH_BATCH, NVBENCH_COLD = "nvbench.batch", "nvbench.cold"


@dataclass(frozen=True)
class Method:
    """One way of timing a call.

    Attributes:
        cache: what the L2 holds when a sample begins.
        tool: the program that takes the samples in a process of its own; empty for a method that takes turns with our
            clocks.
    """

    name: str
    cache: Literal["warm", "cold"]
    tool: str = ""


METHODS = (
    Method(DEVICE, "warm"),
    Method(CUPTI_GRAPH, "warm"),
    Method(CUPTI_SPAN, "warm"),
    Method(CUPTI, "warm"),
    Method(NCU, "warm", tool="ncu"),
    Method(NVBENCH_BATCH, "warm", tool="nvbench"),
    Method(TRITON_CUDAGRAPH, "warm"),
    Method(DEVICE_REPEATED, "warm"),
    Method(EAGER, "warm"),
    Method(DEVICE_COLD, "cold"),
    Method(NCU_COLD, "cold", tool="ncu"),
    Method(NVBENCH_COLD, "cold", tool="nvbench"),
    Method(TRITON_DO_BENCH, "cold"),
)
"""All methods, in the order in which they are shown."""
TOOLS = tuple(dict.fromkeys(method.tool for method in METHODS if method.tool))


def reference(name: str) -> str:
    """The device clock that a method is compared with."""
    cache = next(method.cache for method in METHODS if method.name == name)
    return DEVICE if cache == "warm" else DEVICE_COLD


def of_tool(tool: str) -> dict[str, str]:
    """The methods of a tool by the cache that they begin from."""
    return {method.cache: method.name for method in METHODS if method.tool == tool}
