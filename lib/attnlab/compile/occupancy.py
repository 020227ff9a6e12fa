"""How many CTAs of a kernel one multiprocessor holds at once, computed from the limits of the architecture."""

from dataclasses import dataclass

WARP = 32
PARTITIONS = 4
"""A multiprocessor's registers are split into this many parts; those of a warp lie in one of them."""
REGISTERS_GRANULE = 256
"""A warp gets registers in multiples of this."""
SHARED_GRANULE = 128
RESERVED_SHARED_BYTES = 1024
"""The shared memory of each CTA that the system reserves."""


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor has room for; `shared_bytes` is for all of its CTAs together."""

    warps: int
    ctas: int
    shared_bytes: int
    registers: int = 65536


# CUDA Programming Guide 13.0, "Compute Capabilities": technical specifications and shared memory capacity. Granules and
# partitions are those of cuda_occupancy.h, and so is the arithmetic.
LIMITS = {
    "80": Limits(warps=64, ctas=32, shared_bytes=164 * 1024),
    "86": Limits(warps=48, ctas=16, shared_bytes=100 * 1024),
    "89": Limits(warps=48, ctas=24, shared_bytes=100 * 1024),
    "90": Limits(warps=64, ctas=32, shared_bytes=228 * 1024),
}
GPUS = {"80": ("A100", 108), "86": ("A10", 72), "89": ("L4", 58), "90": ("H200", 132)}
"""The GPU on which waves are counted, and how many multiprocessors it has, by compute capability."""


def allowed(limits: Limits, threads: int, registers: int, shared_bytes: int) -> dict[str, int]:
    """How many CTAs of this size each resource of a multiprocessor allows by itself.

    Args:
        threads: threads per CTA.
        registers: registers per thread.
        shared_bytes: static and dynamic shared memory per CTA.
    """
    warps = -(-threads // WARP)
    registers_of_warp = _rounded_up(registers * WARP, REGISTERS_GRANULE)
    warps_by_registers = limits.registers // PARTITIONS // registers_of_warp * PARTITIONS
    shared_of_cta = _rounded_up(shared_bytes + RESERVED_SHARED_BYTES, SHARED_GRANULE)
    return {
        "CTA slots": limits.ctas,
        "threads": limits.warps // warps,
        "registers": warps_by_registers // warps,
        "shared memory": limits.shared_bytes // shared_of_cta,
    }


def ctas_per_sm(limits: Limits, threads: int, registers: int, shared_bytes: int) -> int:
    """How many CTAs of this size one multiprocessor holds; the arguments are those of `allowed`."""
    return min(allowed(limits, threads, registers, shared_bytes).values())


def number(architecture: str) -> str:
    """The compute capability in an architecture's name: ``90`` for ``sm_90a``."""
    return architecture.removeprefix("sm_").rstrip("af")


def _rounded_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
