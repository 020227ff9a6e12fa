"""Tensor maps, by which the tensor memory accelerator (TMA) finds a tensor in memory."""

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.subjects.implementation import Broken, Unsupported

BYTES = 128
"""The size of a CUtensorMap."""
# Columns of a tensor map's box: 64 elements of 16 bits are the 128 bytes that its swizzle spans.
BOX_COLUMNS = 64
# The driver's alignment of addresses and strides, and its limit of strides, in bytes (cuTensorMapEncodeTiled).
ALIGNMENT = 16
FARTHEST = 2**40
MISALIGNED = f"tensors have to begin at addresses that are multiples of {ALIGNMENT}"
# The rows of a map of sequences of unequal lengths, as kernels/15_ragged.cu declares them.
RAGGED_ROWS = 2**30
# Kernels that take views pack batch and head into 32 bits, the head lowest. Numbers of work items have 31 bits.
MOST_HEADS, MOST_BATCHES, MOST_ITEMS = 2**16 - 1, 2**15 - 1, 2**31 - 1


def contiguous(tensor: Tensor, address: int, rows: int) -> bytes:
    """A map of a contiguous tensor ``(batch, heads, seq_len, head_dim)`` in which all heads are one dimension.

    Its dimensions are, innermost first, head_dim, seq_len, and heads over all batches; see `strided`.
    """
    return strided(tensor.flatten(0, 1), address, rows)


def strided(tensor: Tensor, address: int, rows: int) -> bytes:
    """A map of a tensor ``(batch, heads, seq_len, head_dim)`` with any strides that `refusal` doesn't refuse.

    Its dimensions are those of the tensor, innermost first. A box is 64 columns of `rows` rows of one head, or up to
    128 columns of 8 bits. Its 16-byte chunks are swizzled over 128 bytes; those of 64 columns of 8 bits are swizzled
    over their 64 bytes. Elements outside of the tensor read as zero and are not written.

    Raises:
        Broken: the driver makes no such map.
    """
    sizes, strides = tensor.shape[::-1], tensor.stride()[-2::-1]
    # The stride of a dimension of size 1 is never used, but has to be valid.
    valid = [stride if size > 1 else sizes[0] for size, stride in zip(sizes[1:], strides, strict=True)]
    return _encoded(tensor, address, rows, sizes, [stride * tensor.element_size() for stride in valid])


def ragged(tensor: Tensor, address: int, rows: int) -> bytes:
    """A map of the sequences, of any lengths, of a tensor ``(batch, heads, seq_len, head_dim)``.

    A sequence has n rows and ends before row e, counted in strides of rows from the tensor's beginning. Its row r is at
    ``(RAGGED_ROWS - n + r, head, e, RAGGED_ROWS)``. Rows behind the last are out of bounds: addresses are computed
    modulo 2^64, and the outermost stride takes RAGGED_ROWS rows back. Boxes are those of `strided`.

    Raises:
        Broken: the driver makes no such map.
    """
    apart, head_stride = row_stride(tensor) * tensor.element_size(), tensor.stride(1) * tensor.element_size()
    heads, head_dim = tensor.shape[1], tensor.shape[3]
    strides = [apart, head_stride if heads > 1 else ALIGNMENT, apart, 2**64 // RAGGED_ROWS - apart]
    return _encoded(tensor, address, rows, [head_dim, RAGGED_ROWS, heads, 2**31 - 1, 2**31 - 1], strides)


def row_stride(tensor: Tensor) -> int:
    """The elements from row to row, or from sequence to sequence where each has one; valid where neither is used."""
    batch, _, seq_len, head_dim = tensor.shape
    stride: int = tensor.stride(2) if seq_len > 1 else tensor.stride(0) if batch > 1 else head_dim
    return stride


def step(tensor: Tensor) -> int:
    """The rows from sequence to sequence; raises Unsupported where they aren't whole, or too many for `ragged`."""
    batch, _, seq_len, _ = tensor.shape
    rows, rest = divmod(tensor.stride(0), row_stride(tensor)) if batch > 1 else (0, 0)
    if rest or (batch - 1) * rows + seq_len > RAGGED_ROWS:
        raise Unsupported(f"sequences of {tuple(tensor.shape)} with strides {tensor.stride()} aren't whole rows apart")
    return rows


def _encoded(tensor: Tensor, address: int, rows: int, sizes: Sequence[int], strides: Sequence[int]) -> bytes:
    """A map of these sizes, innermost first, and strides in bytes, with boxes of `rows` rows of a head of a tensor."""
    cuda = driver()
    types = {
        torch.float16: cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.bfloat16: cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        torch.float8_e4m3fn: cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }
    swizzles = {
        64: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_64B,
        128: cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
    }
    row_bytes = min(sizes[0] * tensor.element_size(), 2 * BOX_COLUMNS)
    box = (row_bytes // tensor.element_size(), rows, *[1] * (len(sizes) - 2))
    error, encoded = cuda.cuTensorMapEncodeTiled(
        types[tensor.dtype],
        len(sizes),
        address,
        [cuda.cuuint64_t(size) for size in sizes],
        [cuda.cuuint64_t(stride) for stride in strides],
        [cuda.cuuint32_t(extent) for extent in box],
        [cuda.cuuint32_t(1)] * len(sizes),
        cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzles[row_bytes],
        cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != cuda.CUresult.CUDA_SUCCESS:
        raise Broken(
            f"the driver makes no tensor map with boxes of {rows} rows for {tuple(tensor.shape)} with strides "
            f"{tensor.stride()}: {error.name}"
        )
    return ctypes.string_at(encoded.getPtr(), BYTES)


def refusal(tensor: Tensor) -> str:
    """The reason why a tensor ``(batch, heads, seq_len, head_dim)`` has no map, to follow its name; empty if it has."""
    innermost, bytes_apart = tensor.stride()[-1], _bytes_apart(tensor)
    if innermost != 1:
        return f"has a stride of {innermost} between the elements of a row"
    if 0 in bytes_apart:
        return "repeats itself in memory (a stride of 0)"
    if odd := odd_strides(tensor) or [apart for apart in bytes_apart if apart >= FARTHEST]:
        return f"has a stride of {odd[0]} bytes, which is no multiple of {ALIGNMENT} below 2^40"
    return ""


def odd_strides(tensor: Tensor) -> list[int]:
    """The strides of a tensor, but for the innermost, that are no multiples of 16 bytes, in bytes."""
    return [apart for apart in _bytes_apart(tensor) if apart % ALIGNMENT]


def _bytes_apart(tensor: Tensor) -> list[int]:
    """The strides in bytes of all dimensions but the innermost that have more than one element."""
    sizes, strides = tensor.shape[:-1], tensor.stride()[:-1]
    return [stride * tensor.element_size() for size, stride in zip(sizes, strides, strict=True) if size > 1]


@cache
def driver() -> Any:
    """CUDA's own bindings of the driver; Unsupported if they are not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        raise Unsupported("cuda-bindings, which launches kernels, is not installed") from None
    return driver


def limit(q: Tensor, rows: int, packed: bool) -> str:
    """The limit that such queries exceed, as ``at most 65,535 heads``; "" for none.

    Args:
        rows: queries of a work item.
        packed: whether the kernel packs batch and head, as those that take views do.
    """
    batch, heads, seq_len, _ = q.shape
    counts = [("work items", batch * heads * math.ceil(seq_len / rows), MOST_ITEMS)]
    if packed:
        counts += [("sequences in a batch", batch, MOST_BATCHES), ("heads", heads, MOST_HEADS)]
    return next((f"at most {most:,} {what}" for what, count, most in counts if count > most), "")
