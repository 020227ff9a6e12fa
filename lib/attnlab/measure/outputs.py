"""Memory for outputs, of which the gate can tell afterwards what was not written, and what was written beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

# What memory holds before an implementation runs, as 16-bit words: not a number in float16 and bfloat16, nor, when
# repeated, in float32 and float64. There are two, since what an implementation leaves out, or reads without having
# written it, shows as a difference between two runs.
POISONS = (0x7FFA, 0x7FF5)
# A guard spans a MiB, or two heads where those are longer: kernels that overrun do it by tiles, or by a head.
GUARD_BYTES = 2**20
GUARD_HEADS = 2
ALIGNMENT = 1024


@dataclass
class Guards:
    """The outputs that were allocated under the gate, each between two guards, all of it poisoned."""

    poison: int
    _buffers: list[tuple[torch.Tensor, int, torch.Tensor]] = field(default_factory=list)

    def like(self, q: torch.Tensor) -> torch.Tensor:
        """Poisoned memory for an output as large as `q`, between two guards."""
        head = q[0, 0].numel() * q.element_size()
        words = -(-max(GUARD_BYTES, GUARD_HEADS * head) // ALIGNMENT) * ALIGNMENT // 2
        inside = q.numel() * q.element_size() // 2
        buffer = torch.empty(2 * words + inside, dtype=torch.int16, device=q.device)
        buffer.fill_(self.poison)
        output = buffer[words : words + inside].view(q.dtype).view(q.shape)
        self._buffers.append((buffer, words, output))
        return output

    def overruns(self) -> list[str]:
        """What was written outside the outputs, one phrase each."""
        found = []
        for buffer, words, _ in self._buffers:
            before = int((buffer[:words] != self.poison).sum())
            after = int((buffer[-words:] != self.poison).sum())
            if before or after:
                sides = [f"{2 * n} bytes {side} it" for n, side in ((before, "before"), (after, "after")) if n]
                found.append(f"wrote outside its output: {' and '.join(sides)}")
        return found

    def unwritten(self, output: torch.Tensor, values: torch.Tensor) -> int:
        """How many of an output's elements held, when `values` were copied from it, what was there before.

        0 where `output` isn't memory that was allocated here: nothing is known of it then.
        """
        if not any(output.data_ptr() == own.data_ptr() for _, _, own in self._buffers):
            return 0
        words = values.contiguous().view(torch.int16).view(values.numel(), -1)
        return int((words == self.poison).all(dim=1).sum())


_guards: Guards | None = None


def like(q: torch.Tensor) -> torch.Tensor:
    """Memory for the output of a kernel, of the shape, dtype and device of `q`. Every kernel of ours takes it here."""
    return torch.empty_like(q) if _guards is None else _guards.like(q)


@contextmanager
def guarded(poison: int) -> Iterator[Guards]:
    """Inside, outputs lie between guards, and all fresh memory of torch's is not a number."""
    global _guards
    _guards = Guards(poison)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield _guards
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        _guards = None
