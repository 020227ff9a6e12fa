"""What a kernel that takes views is asked to compute, as kernels/hopper.cuh declares it."""

import ctypes
import math

import torch


class Divisor(ctypes.Structure):
    """A number above 0 and what makes dividing by it one multiplication (Granlund & Montgomery 1994, section 4).

    The quotient ``n // by`` is ``(2 * n * factor >> 32) >> shift`` for 0 <= n < 2**31.
    """

    _fields_ = (("by", ctypes.c_int), ("factor", ctypes.c_uint), ("shift", ctypes.c_uint))

    @classmethod
    def of(cls, by: int) -> "Divisor":
        """The divisor `by`, from 1 to 2**31 - 1."""
        shift = (by - 1).bit_length()
        return cls(by, -(-(2 ** (31 + shift)) // by), shift)


class Problem(ctypes.Structure):
    """Batch, heads and lengths. `sharing` heads have the same K and V, and a head has `items` work items."""

    _fields_ = (
        ("batch", ctypes.c_int),
        *((name, Divisor) for name in ("heads", "sharing", "items")),
        *((name, ctypes.c_int) for name in ("queries", "keys", "earlier")),
        ("scale", ctypes.c_float),
    )

    @classmethod
    def of(cls, q: torch.Tensor, k: torch.Tensor, rows: int, scale: float) -> "Problem":
        """The problem of these queries and keys, with work items of `rows` queries."""
        batch, heads, queries, _ = q.shape
        kv_heads, keys = k.shape[1:3]
        divisors = (Divisor.of(number) for number in (heads, heads // kv_heads, math.ceil(queries / rows)))
        return cls(batch, *divisors, queries, keys, keys - queries, scale)
