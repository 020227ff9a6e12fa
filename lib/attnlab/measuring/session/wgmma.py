"""Measure the rate of the tensor cores alone: wgmma on random operands that stay in shared memory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab.measuring.instruments import devices
from attnlab.study.implementations import E4M3

DTYPES = ("float16", "bfloat16", E4M3)
CAPABILITY = "9.0"
"""The only compute capability that has wgmma."""
# For the product A·Bᵀ of one block: rows of A, rows of B, and bytes of each row.
ROWS, COLUMNS, ROW_BYTES = 128, 256, 512
STEP_BYTES = 32
"""The bytes of each row that one instruction multiplies."""
THREADS = 256


class Wgmma:
    """Multiply 2 random matrices in each multiprocessor, repeatedly.

    Attributes:
        a, b: standard normal, ``(128, depth)`` and ``(256, depth)``, of 512 bytes a row.
        out: ``rounds`` times a·bᵀ of the last call, in float32.
        step: the depth of one instruction, in elements.
    """

    def __init__(self, device: torch.device, dtype: str) -> None:
        self.blocks = multiprocessors(device)
        element = getattr(torch, dtype)
        self._depth, self.step = ROW_BYTES // element.itemsize, STEP_BYTES // element.itemsize
        self.a, self.b = (torch.randn(rows, self._depth, device=device).to(element) for rows in (ROWS, COLUMNS))
        self.out = torch.zeros(ROWS, COLUMNS, device=device)
        module = compiled(Path(__file__).with_suffix(".cu"), "-arch=sm_90a")
        self._kernel, self._shared_bytes = module.get_function(f"wgmma_{dtype}"), self.a.nbytes + self.b.nbytes
        self._kernel.max_dynamic_shared_size_bytes = self._shared_bytes

    def __call__(self, rounds: int) -> None:
        """Launch it on torch's current stream."""
        launch(self._kernel, self.blocks, THREADS, self.a, self.b, self.out, rounds, shared_bytes=self._shared_bytes)

    def flops(self, rounds: int) -> int:
        """The FLOPs of a call, with a multiply-add counted as 2."""
        return 2 * ROWS * COLUMNS * self._depth * self.blocks * rounds


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU."""
    return int(devices.describe(device)["multiprocessors"])


def compiled(source: Path, *options: str) -> Any:
    """Compile a source file to a CuPy module."""
    import cupy

    return cupy.RawModule(code=source.read_text(), options=("-std=c++17", *options))


def launch(kernel: Any, blocks: int, threads: int, *arguments: torch.Tensor | int, shared_bytes: int = 0) -> None:
    """Launch a kernel with addresses of tensors and 32-bit integers as arguments, on torch's current stream."""
    import cupy

    typed = tuple(np.int32(x) if isinstance(x, int) else np.uint64(x.data_ptr()) for x in arguments)
    with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
        kernel((blocks,), (threads,), typed, shared_mem=shared_bytes)
