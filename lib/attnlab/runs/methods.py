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
        group: ``device`` for the device clock itself, with which all others are compared; ``cupti``; or ``other``.
        tool: the program that takes the samples in a process of its own; empty for a method that takes turns with our
            clocks.
    """

    name: str
    cache: Literal["warm", "cold"]
    group: Literal["device", "cupti", "other"]
    tool: str = ""


METHODS = (
    Method(DEVICE, "warm", "device"),
    Method(CUPTI_GRAPH, "warm", "cupti"),
    Method(CUPTI_SPAN, "warm", "cupti"),
    Method(CUPTI, "warm", "cupti"),
    Method(NCU, "warm", "other", tool="ncu"),
    Method(NVBENCH_BATCH, "warm", "other", tool="nvbench"),
    Method(TRITON_CUDAGRAPH, "warm", "other"),
    Method(DEVICE_REPEATED, "warm", "other"),
    Method(EAGER, "warm", "other"),
    Method(DEVICE_COLD, "cold", "device"),
    Method(NCU_COLD, "cold", "other", tool="ncu"),
    Method(NVBENCH_COLD, "cold", "other", tool="nvbench"),
    Method(TRITON_DO_BENCH, "cold", "other"),
)
"""All methods, in the order in which they are shown."""
TOOLS = tuple(dict.fromkeys(method.tool for method in METHODS if method.tool))


def compared(cache: str) -> list[str]:
    """The methods that are compared with the device clock, which began from the same cache."""
    return [method.name for method in METHODS if method.cache == cache and method.group != "device"]


def reference(name: str) -> str:
    """The device clock that a method is compared with."""
    cache = next(method.cache for method in METHODS if method.name == name)
    return DEVICE if cache == "warm" else DEVICE_COLD


def of_group(group: str) -> list[str]:
    """The methods of one group."""
    return [method.name for method in METHODS if method.group == group]


def of_tool(tool: str) -> dict[str, str]:
    """The methods of a tool by the cache that they begin from."""
    return {method.cache: method.name for method in METHODS if method.tool == tool}
