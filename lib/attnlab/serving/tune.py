"""`attnlab.tune`: measure the fastest implementation for tensors of one layout, and keep it for later processes."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

import torch
from torch import Tensor

from attnlab import frames
from attnlab.base.errors import UserError
from attnlab.runs import tuned
from attnlab.serving import calls, choices, trial
from attnlab.stats import Interval
from attnlab.study import tuning
from attnlab.study.implementations import FALLBACK

_lock = RLock()
_refused: set[str] = set()
"""Layouts of this process at which tuning failed."""


@dataclass(frozen=True)
class Found:
    """The result of tuning for a layout; `print` shows it as sentences.

    Attributes:
        chosen: the implementation that `attend` calls there from now on; ``sdpa.auto`` if none is certainly faster.
        speedups: of each timed candidate over ``sdpa.auto``, by the clock and on the values where it gains least.
        out: by name of each other candidate, the reason why it wasn't timed.
        file: the file that keeps the choice; None if it couldn't be written.
    """

    chosen: str
    speedups: dict[str, Interval]
    out: dict[str, str]
    file: Path | None

    def __str__(self) -> str:
        nothing = ", since nothing is certainly faster" if self.chosen == FALLBACK else ""
        timed = (f"{name} {one.estimate:.3f} ({one.low:.3f} to {one.high:.3f})" for name, one in self.speedups.items())
        lines = [
            f"attend calls {self.chosen} for tensors of this layout{nothing}.",
            f"Speedups over {FALLBACK}, by the clock and on the values where each gains least, with 95 % intervals: "
            f"{', '.join(timed) or 'none was timed'}.",
            *(f"{name} is out: {reason.rstrip('.')}." for name, reason in self.out.items()),
            f"This is kept in {self.file}." if self.file else "This holds for this process alone.",
        ]
        return "\n".join(lines)


def tune(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Found:
    """Measure which implementation is the fastest on tensors of this layout, and have `attend` call it from now on.

    SDPA's backends and `kernel.best` pass the gate and are then timed in turns with SDPA, on several input
    distributions: the values of q, k and v don't matter. That takes a few seconds, or 1,000 calls if these are
    long. The choice is made as in a dispatch table. The user's cache folder keeps it for later processes with this
    device and this PyTorch; a warning says if that fails. Nothing else should use the GPU meanwhile.

    Args: as `attnlab.attend`.

    Raises:
        UserError: there is no GPU, `attend` calls SDPA for such tensors in any case, or SDPA can't be timed on them.
        torch.AcceleratorError: the device failed.
    """
    with _lock:
        samples, out = trial.take(q, k, v, causal, scale, choices.CLOCKS)
        chosen, least = choices.fastest(frames.worst(frames.compare(samples, FALLBACK)))
        words, device_name = calls.layout_words(q, k, v, causal, scale), torch.cuda.get_device_name(q.device)
        calls.settle(words, chosen)
        source = tuning.hashes([chosen], device_name).get(chosen, "")
        entry = tuned.Entry(implementation=chosen, source=source)
        try:
            file = tuned.keep(device_name, calls.VERSION, words, entry)
        except (OSError, RuntimeError) as error:
            warnings.warn(f"what attnlab.tune found is kept in this process alone: {error}", stacklevel=2)
            file = None
    return Found(chosen, {n: Interval(r["speedup"], r["low"], r["high"]) for n, r in least.items()}, out, file)


def ensure(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> None:
    """Tune for a layout that isn't tuned yet; if that fails, a warning says why, once for each layout."""
    with _lock:
        words = calls.layout_words(q, k, v, causal, scale)
        if words in calls.tuned_layouts() or words in _refused:
            return
        try:
            tune(q, k, v, causal, scale)
        except UserError as error:
            _refused.add(words)
            warnings.warn(f"attend isn't tuned for {words}: {error}", stacklevel=2)
