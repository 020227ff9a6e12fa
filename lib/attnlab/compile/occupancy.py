"""The number of CTAs of a kernel that a multiprocessor holds at once, from the limits of the architecture."""

from dataclasses import dataclass

WARP = 32
PARTITIONS = 4
"""A multiprocessor's registers are split into this many parts; those of a warp are in one of them."""
REGISTERS_GRANULE = 256
"""A warp gets registers in multiples of this."""
SHARED_GRANULE = 128
RESERVED_SHARED_BYTES = 1024
"""The shared memory of each CTA that the system reserves."""


@dataclass(frozen=True)
class Limits:
    """The capacity of one multiprocessor, of all its CTAs together; waves are counted on `gpu`'s `multiprocessors`."""

    gpu: str
    multiprocessors: int
    warps: int
    ctas: int
    shared_bytes: int
    registers: int = 65536


# By compute capability. CUDA Programming Guide 13.0, "Compute Capabilities": technical specifications and shared memory
# capacity. Granules and partitions are those of cuda_occupancy.h, and so is the arithmetic.
LIMITS = {
    "80": Limits("A100", 108, warps=64, ctas=32, shared_bytes=164 * 1024),
    "86": Limits("A10", 72, warps=48, ctas=16, shared_bytes=100 * 1024),
    "89": Limits("L4", 58, warps=48, ctas=24, shared_bytes=100 * 1024),
    "90": Limits("H200", 132, warps=64, ctas=32, shared_bytes=228 * 1024),
}


def ctas_per_sm(limits: Limits, threads: int, registers: int, shared_bytes: int) -> int:
    """The number of CTAs that one multiprocessor holds; each has the threads, and static and dynamic shared bytes."""
    warps, registers_of_warp = -(-threads // WARP), _rounded_up(registers * WARP, REGISTERS_GRANULE)
    warps_by_registers = limits.registers // PARTITIONS // registers_of_warp * PARTITIONS
    by_shared_bytes = limits.shared_bytes // _rounded_up(shared_bytes + RESERVED_SHARED_BYTES, SHARED_GRANULE)
    return min(limits.ctas, limits.warps // warps, warps_by_registers // warps, by_shared_bytes)


def number(architecture: str) -> str:
    """The compute capability in an architecture's name: ``90`` for ``sm_90a``."""
    return architecture.removeprefix("sm_").rstrip("af")


def _rounded_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
