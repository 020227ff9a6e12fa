"""Overwriting the shared memory and registers that earlier kernels left in the multiprocessors."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

# The words written before the first and the second run: NaN in every dtype, which sums and products propagate, and the
# largest float16 (2.7e36 in the other dtypes), which maxima propagate.
WORDS = (0x7FFA, 0x7BFF)
# CTAs per multiprocessor: one fills it, the others make sure that no multiprocessor is left out.
CTAS = 4
ROUNDS = 2


def fill(device: torch.device, word: int) -> None:
    """Fill the shared memory and registers of every multiprocessor with a 16-bit word, on the current stream.

    It does nothing on a CPU or without CuPy, which our kernels need too.
    """
    kernel = _kernel(device) if device.type == "cuda" else None
    if kernel is None:
        return
    import cupy

    properties, size = torch.cuda.get_device_properties(device), _shared_bytes(device)
    arguments = (np.uint32(word << 16 | word), np.int32(size // 4), np.int32(ROUNDS), np.uint64(0))
    with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
        kernel((CTAS * properties.multi_processor_count,), (1024,), arguments, shared_mem=size)


@cache
def _kernel(device: torch.device) -> Any:
    try:
        import cupy
    except ImportError:
        return None
    module = cupy.RawModule(code=Path(__file__).with_suffix(".cu").read_text(), options=("-std=c++17",))
    kernel = module.get_function("poison")
    kernel.max_dynamic_shared_size_bytes = _shared_bytes(device)
    return kernel


def _shared_bytes(device: torch.device) -> int:
    """The most shared memory that one CTA can have."""
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)
