"""PyTorch's SDPA backends and the references they are checked against, callable."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

T = TypeVar("T")
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]

# Scores held at once by the references, in elements: 2 GiB of float64.
REFERENCE_CHUNK = 2**28


class Unsupported(Exception):
    """An implementation does not do this shape on this device; the message is its reason."""


class OutOfMemory(Exception):
    """The device's memory does not hold this case."""


class Broken(Exception):
    """An implementation can't be called at all: its kernel doesn't compile, or can't be launched as it is stated."""


@dataclass(frozen=True)
class Implementation:
    """Something that computes attention.

    Attributes:
        call: ``(q, k, v, causal) -> o``, all of ``(batch, heads, seq_len, head_dim)``.
        selected: a context in which `call` runs this implementation. It is entered outside the timed window, since
            a program that has chosen its backend doesn't choose it again at each call.
        resources: ``(q, causal) ->`` what a kernel of the ladder needs and launches; None for what isn't ours.
    """

    name: str
    call: Attention
    selected: Callable[[], AbstractContextManager[object]] = nullcontext
    resources: Callable[[torch.Tensor, bool], dict[str, Any]] | None = None


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """PyTorch's scaled_dot_product_attention, with the default scale 1/√D."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def composed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """softmax(Q·Kᵀ/√D)·V from single operations, in the dtype of the inputs.

    Walks over groups of heads, so that the scores of long sequences fit. Any S ≥ 1; the mask is lower triangular.
    """
    batch, heads, seq_len, head_dim = q.shape
    group = max(1, REFERENCE_CHUNK // seq_len**2)
    flat = [x.reshape(batch * heads, seq_len, head_dim) for x in (q, k, v)]
    hidden = torch.ones(seq_len, seq_len, dtype=torch.bool, device=q.device).triu(1) if causal else None
    output = torch.empty_like(flat[0])
    for start in range(0, batch * heads, group):
        part = slice(start, start + group)
        scores = (flat[0][part] / math.sqrt(head_dim)) @ flat[1][part].transpose(1, 2)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        output[part] = torch.softmax(scores, dim=-1) @ flat[2][part]
    return output.reshape(q.shape)


def float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The oracle: `composed` in double precision, on the same input values."""
    return composed(q.double(), k.double(), v.double(), causal)


def _backend(name: str, backend: SDPBackend) -> Implementation:
    return Implementation(name, sdpa, lambda: sdpa_kernel([backend]))


_IMPLEMENTATIONS = (
    Implementation("sdpa.auto", sdpa),
    _backend("sdpa.flash", SDPBackend.FLASH_ATTENTION),
    _backend("sdpa.cudnn", SDPBackend.CUDNN_ATTENTION),
    _backend("sdpa.efficient", SDPBackend.EFFICIENT_ATTENTION),
    _backend("sdpa.math", SDPBackend.MATH),
    Implementation("reference.float64", float64),
)
REGISTRY = {implementation.name: implementation for implementation in _IMPLEMENTATIONS}


def attempt(work: Callable[[], T]) -> T:
    """Do something with an implementation, telling a shape that it refuses from memory that does not suffice.

    Raises:
        Unsupported: the implementation or the framework refused; carries the reason that it gives.
        OutOfMemory: the allocation failed.
        Broken: it can't be called at all.
        torch.AcceleratorError: the device itself failed, after which nothing that it says can be trusted.
    """
    with _all_warnings() as caught:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(_one_line(error)) from None
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            message = _one_line(error)
            if "DefaultCPUAllocator" in message:
                raise OutOfMemory(message) from None
            raise Unsupported(_reason(message, [str(warning.message) for warning in caught])) from None


@contextmanager
def _all_warnings() -> Iterator[list[warnings.WarningMessage]]:
    # torch gives a warning of its own once a process; the second shape that is refused deserves its reason too.
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        torch.set_warn_always(before)


def _reason(message: str, said: list[str]) -> str:
    # torch explains itself in warnings: a heading for each backend ("... not used because:"), then its reasons. A
    # backend that the selection itself switched off is no reason.
    told = [" ".join(text.split(" (Triggered", 1)[0].split()) for text in said]
    reasons = [text for text in told if "not used because" not in text and "runtime disabled" not in text]
    return reasons[0] if reasons else message


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
