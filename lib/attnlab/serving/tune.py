"""`attnlab.tune`: the fastest on tensors of one layout, measured now, and kept for later processes."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

import pandas as pd

from attnlab import frames
from attnlab.base.errors import UserError
from attnlab.runs import tuned
from attnlab.serving import choices
from attnlab.stats import Interval
from attnlab.study import tuning
from attnlab.study.implementations import FALLBACK

if TYPE_CHECKING:
    from torch import Tensor

    from attnlab.serving.trial import Timed

_lock = RLock()
_refused: set[str] = set()
"""Layouts of this process at which tuning failed."""


@dataclass(frozen=True)
class Found:
    """What tuning found at a layout; printed, it is sentences.

    Attributes:
        chosen: what `attend` calls there from now on; ``sdpa.auto`` where nothing is certainly faster.
        speedups: of each candidate that was timed, over ``sdpa.auto``, by the clock and on the values where it gains
            least.
        out: why the others weren't timed.
        file: where the choice is kept; None where it couldn't be.
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


def tune(q: "Tensor", k: "Tensor", v: "Tensor", causal: bool = False, scale: float | None = None) -> Found:
    """Measure what is the fastest on tensors of this very layout, and have `attend` call it from now on.

    SDPA's backends and `kernel.best` pass the gate and are then timed in turns with SDPA, on values of several kinds
    that are drawn: those of q, k and v don't matter. That takes a few seconds, or a thousand calls where these are
    long. The choice is made as in a dispatch table. It is kept in the user's cache folder for later processes with
    this device and this PyTorch; a warning says so if it can't be. Nothing else should use the GPU meanwhile.

    Args: as `attnlab.attend`.

    Raises:
        UserError: there is no GPU, `attend` calls SDPA for such tensors in any case, or SDPA can't be timed on them.
        torch.AcceleratorError: the device failed.
    """
    import torch

    from attnlab.serving import attend
    from attnlab.serving import trial as autotune

    with _lock:
        timed = autotune.take(q, k, v, causal, scale, choices.CLOCKS)
        chosen, least = choices.fastest(_verdicts(timed))
        speedups = {name: Interval(row["speedup"], row["low"], row["high"]) for name, row in least.items()}
        attend.tuned_at(q, k, v, causal, scale)  # reads what was kept before
        words = attend.layout_words(q, k, v, causal, scale)
        attend.settle(words, chosen)
        device_name = torch.cuda.get_device_name(q.device)
        source = tuning.hashes([chosen], device_name).get(chosen, "")
        entry = tuned.Entry(implementation=chosen, source=source)
        try:
            file = tuned.keep(device_name, str(torch.__version__), words, entry)
        except (OSError, RuntimeError) as error:
            warnings.warn(f"what attnlab.tune found is kept in this process alone: {error}", stacklevel=2)
            file = None
    return Found(chosen, speedups, timed.out, file)


def ensure(q: "Tensor", k: "Tensor", v: "Tensor", causal: bool, scale: float | None) -> None:
    """Tune a layout that was not; a warning says why if that can't be done, once for each layout."""
    from attnlab.serving import attend

    with _lock:
        words = attend.layout_words(q, k, v, causal, scale)
        if attend.tuned_at(q, k, v, causal, scale) or words in _refused:
            return
        try:
            tune(q, k, v, causal, scale)
        except UserError as error:
            _refused.add(words)
            warnings.warn(f"attend isn't tuned for {words}: {error}", stacklevel=2)


def _verdicts(timed: "Timed") -> pd.DataFrame:
    """By candidate and clock, the verdict on the values where the candidate gains least."""
    rows = [
        {"implementation": name, "batch": 1, "heads": 1, "seq_len": 1, "head_dim": 8, "values": str(number)}
        | block.timing.model_dump()
        | {"latency_us": latency_us, "tick_us": block.tick_us}
        for number, block in enumerate(timed.blocks)
        for name, latencies_us in block.latencies_us.items()
        for latency_us in latencies_us
    ]
    return frames.worst(frames.compare(pd.DataFrame(rows), FALLBACK))
