"""The rate of the tensor cores by themselves: wgmma on random operands that stay in shared memory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab.measure.instruments import devices

DTYPES = ("float16", "bfloat16")
CAPABILITY = "9.0"
"""The only compute capability that has wgmma."""
# Of the product of one block: rows of A, rows of B, which are columns of the product, and the depth of both.
ROWS, COLUMNS, DEPTH = 128, 256, 256
THREADS = 256


class Wgmma:
    """A product of two random matrices in each multiprocessor, over and over.

    Attributes:
        a, b: standard normal, (128, 256) and (256, 256).
        out: ``rounds`` times a·bᵀ of the last call, in float32.
    """

    def __init__(self, device: torch.device, dtype: str) -> None:
        import cupy

        self.blocks = int(devices.describe(device)["multiprocessors"])
        self.a, self.b = (torch.randn(rows, DEPTH, device=device).to(getattr(torch, dtype)) for rows in (ROWS, COLUMNS))
        self.out = torch.zeros(ROWS, COLUMNS, device=device)
        self._shared_bytes = self.a.nbytes + self.b.nbytes
        source = Path(__file__).with_suffix(".cu").read_text()
        module = cupy.RawModule(code=source, options=("-std=c++17", "-arch=sm_90a"))
        self._kernel: Any = module.get_function(f"wgmma_{dtype}")
        self._kernel.max_dynamic_shared_size_bytes = self._shared_bytes

    def __call__(self, rounds: int) -> None:
        """Launch it on torch's current stream."""
        import cupy

        arguments = (*(np.uint64(x.data_ptr()) for x in (self.a, self.b, self.out)), np.int32(rounds))
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            self._kernel((self.blocks,), (THREADS,), arguments, shared_mem=self._shared_bytes)

    def flops(self, rounds: int) -> int:
        """The operations of a call, with a multiply-add counted as two."""
        return 2 * ROWS * COLUMNS * DEPTH * self.blocks * rounds
