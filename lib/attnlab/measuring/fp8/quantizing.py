"""Quantise Q, K and V from 16 bits to e4m3 on Hopper by one launch of our kernel, with a scale for each head."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CAPABILITY = (9, 0)
HEAD_DIMS = (64, 128)
ELEMENTS = {torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
SOURCE = Path(__file__).with_suffix(".cu")
# The CTAs of a cluster, which quantises one head, and the bytes of one read of a thread.
CLUSTER, ALIGNMENT = 8, 16
# Columns of a row that a thread rotates, and of a vector; the vectors of the row's threads are interleaved.
OWN_COLUMNS, VECTOR = 32, 8
# The fewest threads of a CTA, and the vectors of a thread: with fewer, too few bytes of a head are in flight.
FEWEST_THREADS, OWN_VECTORS = 128, 8
MOST_THREADS = {False: 512, True: 256}
"""The most threads of a CTA, by whether Q and K are rotated."""
MOST_CTAS = 2**31 - 1


class Side(ctypes.Structure):
    """One of Q, K and V as quantizing.cu declares it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("given", "values", "scales")),
        *((name, ctypes.c_longlong) for name in ("batch", "head", "row")),
        *((name, ctypes.c_int) for name in ("heads", "length")),
    )


class Given(ctypes.Structure):
    """The kernel's only parameter."""

    _fields_ = (*((name, Side) for name in "qkv"), ("signs", ctypes.c_uint * 4), ("batches", ctypes.c_int))


def expression(dtype: torch.dtype, head_dim: int, rotated: bool) -> str:
    """The name expression of an instance, as NVRTC takes it."""
    return f"quantize<{ELEMENTS[dtype]}, {head_dim}, {str(rotated).lower()}>"


def serves(*tensors: Tensor) -> bool:
    """Whether the kernel takes Q, K and V: on a Hopper GPU, with CuPy installed, and rows of aligned vectors."""
    if any(tensor.ndim != 4 or not tensor.numel() for tensor in tensors):
        return False
    first, heads = tensors[0], sum(tensor.shape[0] * tensor.shape[1] for tensor in tensors)
    of_first = first.dtype, first.device, first.shape[0], first.shape[3]
    alike = all((x.dtype, x.device, x.shape[0], x.shape[3]) == of_first for x in tensors)
    return (
        first.is_cuda
        and alike
        and first.dtype in ELEMENTS
        and CLUSTER * heads <= MOST_CTAS
        and all(map(_fits, tensors))
        and torch.cuda.get_device_capability(first.device) == CAPABILITY
        and _libraries() is not None
    )


def quantized(tensors: tuple[Tensor, Tensor, Tensor], signs: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """Contiguous e4m3 values and scales ``(batch, heads, 1)`` of tensors that the kernel `serves`, on this stream.

    Args:
        signs: 1 or -1 for each column, if Q and K are rotated.
    """
    batch, _, _, head_dim = tensors[0].shape
    # As bytes: PyTorch can't fill fresh memory with NaN in e4m3.
    values = [torch.empty(tensor.shape, dtype=torch.uint8, device=tensor.device) for tensor in tensors]
    scales = [torch.empty(*x.shape[:2], 1, dtype=torch.float32, device=x.device) for x in tensors]
    sides = [
        Side(x.data_ptr(), v.data_ptr(), s.data_ptr(), *x.stride()[:3], *x.shape[1:3])
        for x, v, s in zip(tensors, values, scales, strict=True)
    ]
    given = Given(*sides, _words(signs), batch)
    rotated, device = signs is not None, tensors[0].get_device()
    vectors = max(x.shape[2] for x in tensors) * head_dim // VECTOR // CLUSTER
    threads = min(MOST_THREADS[rotated], max(FEWEST_THREADS, vectors // OWN_VECTORS // 32 * 32))
    ctas = CLUSTER * batch * sum(x.shape[1] for x in tensors)
    with torch.cuda.device(device):
        function, driver = _function(expression(tensors[0].dtype, head_dim, rotated), device), _libraries()[1]
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        stream = torch._C._cuda_getCurrentRawStream(device)
        launch = (ctas, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(pointers), 0)
        (error,) = driver.cuLaunchKernel(driver.CUfunction(function.kernel.ptr), *launch)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise torch.AcceleratorError(error.name)
    return [(v.view(torch.float8_e4m3fn), s) for v, s in zip(values, scales, strict=True)]


def _fits(tensor: Tensor) -> bool:
    """Whether the kernel can read a tensor's rows, vector by vector."""
    strides = [step for size, step in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1]
    whole = all(step * tensor.element_size() % ALIGNMENT == 0 for step in strides)
    return tensor.shape[-1] in HEAD_DIMS and tensor.stride(-1) == 1 and whole and tensor.data_ptr() % ALIGNMENT == 0


@cache  # by tensor: each head_dim has one tensor of signs
def _words(signs: Tensor | None) -> Any:
    """The negated columns as bits, one word for each thread of a row: first the even columns, then the odd ones."""
    words, each = [0] * 4, [] if signs is None else signs.tolist()
    for column, sign in enumerate(each):
        vector, lane = divmod(column // VECTOR, len(each) // OWN_COLUMNS)
        own = VECTOR * vector + column % VECTOR
        words[lane] |= (sign < 0) << own // 2 + own % 2 * OWN_COLUMNS // 2
    return (ctypes.c_uint * 4)(*words)


@cache
def _function(named: str, device: int) -> Any:
    """An instance, compiled once for each device; `device` has to be the current one."""
    options = ("-std=c++17", "-arch=sm_90a")
    module = _libraries()[0].RawModule(code=SOURCE.read_text(), options=options, name_expressions=(named,))
    return module.get_function(named)


@cache
def _libraries() -> Any:
    """CuPy and the driver's bindings; None if one of them is not installed."""
    try:
        import cupy
        from cuda.bindings import driver
    except ImportError:
        return None
    return cupy, driver
