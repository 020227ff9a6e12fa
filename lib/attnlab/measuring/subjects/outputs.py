"""Memory for outputs, in which the gate detects elements that were not written, and writes out of bounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Memory is filled with one of these 16-bit words before an implementation runs: NaN in float16 and bfloat16, repeated
# also in float32 and float64. Elements that an implementation doesn't write, or reads before it writes them, differ
# between runs with either word.
POISONS = (0x7FFA, 0x7FF5)
# A guard spans 1 MiB, or 2 heads if those are larger: a kernel that overruns does so by a tile or by a head.
GUARD_BYTES = 2**20
GUARD_HEADS = 2
ALIGNMENT = 1024


@dataclass
class Guards:
    """The outputs that were allocated under the gate, each between 2 guards, all filled with `poison`."""

    poison: int
    _buffers: list[tuple[Tensor, int, Tensor]] = field(default_factory=list)

    def like(self, q: Tensor, dtype: torch.dtype) -> Tensor:
        """Poisoned memory for an output as large as `q`, between 2 guards."""
        head = q[0, 0].numel() * dtype.itemsize
        words = -(-max(GUARD_BYTES, GUARD_HEADS * head) // ALIGNMENT) * ALIGNMENT // 2
        inside = q.numel() * dtype.itemsize // 2
        buffer = torch.empty(2 * words + inside, dtype=torch.int16, device=q.device)
        buffer.fill_(self.poison)
        strides = torch.empty_like(q, device="meta").stride()
        output = buffer[words : words + inside].view(dtype).as_strided(q.shape, strides)
        self._buffers.append((buffer, words, output))
        return output

    def overruns(self) -> list[str]:
        """Describe each write outside the outputs."""
        found = []
        for buffer, words, _ in self._buffers:
            before = int((buffer[:words] != self.poison).sum())
            after = int((buffer[-words:] != self.poison).sum())
            if before or after:
                sides = [f"{2 * n} bytes {side} it" for n, side in ((before, "before"), (after, "after")) if n]
                found.append(f"wrote outside its output: {' and '.join(sides)}")
        return found

    def unwritten(self, output: Tensor, values: Tensor) -> int:
        """The number of elements that still held the poison when `values` were copied; bytes are compared in pairs.

        It is 0 if the output was not allocated here, since nothing is known about such memory.
        """
        if not any(output.data_ptr() == own.data_ptr() for _, _, own in self._buffers):
            return 0
        words = values.contiguous().view(torch.int16).flatten().view(-1, max(1, values.itemsize // 2))
        return int((words == self.poison).all(dim=1).sum()) * (values.numel() // len(words))


def each(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors of an output, which is one tensor, or in training several."""
    return output if isinstance(output, tuple) else (output,)


def disguised(output: Tensor, device: torch.device) -> str:
    """Describe the fault of a returned tensor that may compute its elements lazily; "" for a plain tensor."""
    there = output.device.type == device.type and device.index in (None, output.device.index)
    plain = type(output) is Tensor and output.layout is torch.strided and not torch._is_functional_tensor(output)
    if there and plain:
        return ""
    return f"returned a {type(output).__name__} on {output.device}, which is no plain tensor on {device}"


_guards: Guards | None = None


def like(q: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate a kernel's output: dense, with the dimensions of `q` in its order in memory, by default of its dtype.

    All our kernels allocate with this function.
    """
    return torch.empty_like(q, dtype=dtype) if _guards is None else _guards.like(q, dtype or q.dtype)


@contextmanager
def guarded(poison: int) -> Iterator[Guards]:
    """A context in which outputs are between guards, and torch fills all new memory with NaN."""
    global _guards
    _guards = Guards(poison)
    deterministic: Any = torch.utils.deterministic
    before, deterministic.fill_uninitialized_memory = deterministic.fill_uninitialized_memory, True
    try:
        yield _guards
    finally:
        deterministic.fill_uninitialized_memory = before
        _guards = None
