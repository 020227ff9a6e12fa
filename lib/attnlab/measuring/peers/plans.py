"""Import packages that may not be installed, and choose the fastest of a package's plans for a layout of tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from statistics import median
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.subjects.implementation import Unsupported

Plan = Callable[..., Any]
"""A callable for tensors of one layout. Its calls run one after the other on one stream."""
DTYPES = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16"}
"""The dtypes that have plans, with cuDNN's names."""
# Each plan is timed for CALLS calls. Those within FAR_SLOWER times the fastest are timed in ROUNDS more rounds.
CALLS, ROUNDS, FAR_SLOWER = 5, 9, 1.5
# Cycles that the stream waits while calls are queued, 0.5 ms at 2 GHz. They are doubled if the GPU began too early.
HOLD_CYCLES, MOST_HOLD_CYCLES = 1_000_000, 64_000_000


def installed(module: str, title: str, device: torch.device) -> Any:
    """Import a module; raises Unsupported if the device isn't an NVIDIA GPU or a package is missing."""
    if device.type != "cuda":
        raise Unsupported(f"{title} is measured only on an NVIDIA GPU")
    found = imported(module)
    if not isinstance(found, ImportError):
        return found
    missing = found.name or str(found)
    there = not missing.startswith(module.partition(".")[0])
    raise Unsupported(f"{title} lacks {missing}" if there else f"{title} is not installed")


@cache
def imported(module: str) -> Any:
    """A module, or the ImportError that its import raised."""
    try:
        return import_module(module)
    except ImportError as error:
        return error


def require_plannable(title: str, dtype: torch.dtype) -> None:
    """Raise Unsupported for dtypes outside `DTYPES`, and while a graph is captured."""
    if dtype not in DTYPES:
        raise Unsupported(f"{title} takes float16 and bfloat16, not {str(dtype).removeprefix('torch.')}")
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported(f"{title} times its plans at the first call of a layout, which no graph can capture")


@contextmanager
def refusing(refusals: tuple[type[Exception], ...], reasons: list[str]) -> Iterator[None]:
    """A context for a plan's first call: it catches the errors `refusals` and adds their first line to `reasons`.

    Device failures and out-of-memory errors are raised.
    """
    try:
        yield
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except refusals as error:
        reasons.append(next(iter(str(error).splitlines()), type(error).__name__))


def tried(plan: Plan, tensors: tuple[Tensor, ...]) -> Plan:
    """Call a plan once and return it."""
    plan(*tensors)
    torch.cuda.synchronize(tensors[0].device)
    return plan


def fastest(plans: list[Plan], tensors: tuple[Tensor, ...], reason: str) -> Plan:
    """The plan with the least GPU time, by the median over rounds in which plans take turns.

    Raises:
        Unsupported: there are no plans; the message is `reason`.
    """
    if not plans:
        raise Unsupported(reason)
    first_ms = [_calls_ms(plan, tensors) for plan in plans]
    near = [number for number, ms in enumerate(first_ms) if ms <= FAR_SLOWER * min(first_ms)]
    rounds = [{number: _calls_ms(plans[number], tensors) for number in near} for _ in range(ROUNDS)]
    return plans[min(near, key=lambda number: median(ms[number] for ms in rounds))]


def _calls_ms(plan: Plan, tensors: tuple[Tensor, ...], hold_cycles: int = HOLD_CYCLES) -> float:
    """The GPU time in ms of `CALLS` calls in a row, without the host's time to queue them."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(hold_cycles)
    start.record()
    for _ in range(CALLS):
        plan(*tensors)
    end.record()
    began_early = start.query()  # before all were queued: the GPU may have waited for the host
    end.synchronize()
    if began_early and hold_cycles < MOST_HOLD_CYCLES:
        return _calls_ms(plan, tensors, 2 * hold_cycles)
    return start.elapsed_time(end)
