"""PyTorch's SDPA backends and the references they are checked against, callable."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.shapes import Shape

T = TypeVar("T")
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
Ragged = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, tuple[int, ...]], torch.Tensor]
Tensors = tuple[torch.Tensor, ...]

# Scores held at once by the references, in elements: 2 GiB of float64.
REFERENCE_CHUNK = 2**28
# The logger by which torch says why a backend doesn't take nested tensors.
NESTED = "torch.nested._internal.sdpa"
# What torch says of nested tensors whoever uses them, once a process, is not for a log.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
PROTOTYPE = "The PyTorch API of nested tensors is in prototype stage"
warnings.filterwarnings("ignore", message=PROTOTYPE)
NO_REASON = ("not used because", "runtime disabled", PROTOTYPE)


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
        call: ``(q, k, v, causal) -> o``, q and o of ``(batch, heads, seq_len, head_dim)``, k and v of ``(batch,
            kv_heads, kv_len, head_dim)``.
        ragged: the same for sequences that lie end to end: ``(q, k, v, causal, sequences) -> o`` of ``(1, heads,
            tokens, head_dim)``, in memory a token after the other; None where there is no such thing.
        differentiable: whether autograd can go back through `call`.
        selected: a context in which `call` runs this implementation. It is entered outside the timed window, since
            a program that has chosen its backend doesn't choose it again at each call.
        resources: ``(q, causal) ->`` what a kernel of the ladder needs and launches; None for what isn't ours.
    """

    name: str
    call: Attention
    selected: Callable[[], AbstractContextManager[object]] = nullcontext
    resources: Callable[[torch.Tensor, bool], dict[str, Any]] | None = None
    ragged: Ragged | None = None
    differentiable: bool = True

    def bound(self, given: Tensors, shape: Shape) -> Callable[[], Any]:
        """The call that is checked and timed at a shape: of no arguments, on inputs as `inputs.draw` makes them.

        It returns O, in training O, dQ, dK and dV. What this implementation doesn't do is said when it is called.
        """
        if shape.direction == "training":
            return partial(with_gradients, self._differentiated, given, shape.causal)
        q, k, v = given
        if shape.lengths == "spread":
            return partial(self._end_to_end, q, k, v, shape.causal, shape.sequences)
        return partial(self.call, q, k, v, shape.causal)

    def _differentiated(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        if not self.differentiable:
            raise Unsupported(f"{self.name} computes no gradients")
        return self.call(q, k, v, causal)

    def _end_to_end(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sequences: tuple[int, ...]
    ) -> torch.Tensor:
        if self.ragged is None:
            raise Unsupported(f"{self.name} takes sequences of one length")
        return self.ragged(q, k, v, causal, sequences)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """PyTorch's scaled_dot_product_attention, with the default scale 1/√D."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=k.shape[1] != q.shape[1])


def sdpa_ragged(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sequences: tuple[int, ...]
) -> torch.Tensor:
    """The same over sequences that lie end to end, as nested tensors of the jagged layout, without a copy."""
    begins = offsets(sequences, q.device)
    queries, keys, values = (
        torch.nested.nested_tensor_from_jagged(
            tensor[0].transpose(0, 1), begins, min_seqlen=min(sequences), max_seqlen=max(sequences)
        ).transpose(1, 2)
        for tensor in (q, k, v)
    )
    output = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
    return output.transpose(1, 2).values().transpose(0, 1).unsqueeze(0)


@cache
def offsets(sequences: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Where each sequence begins, and where the last one ends."""
    return torch.tensor([0, *accumulate(sequences)], dtype=dtype, device=device)


def with_gradients(attention: Attention, given: Tensors, causal: bool) -> Tensors:
    """O, dQ, dK and dV from Q, K, V and dO: attention forward, and backward from the gradient of O."""
    *inputs, gradient = given
    q, k, v = (tensor.detach().requires_grad_() for tensor in inputs)
    output = attention(q, k, v, causal)
    return output.detach(), *torch.autograd.grad(output, (q, k, v), gradient)


def composed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """softmax(Q·Kᵀ/√D)·V from single operations, in the dtype of the inputs.

    Walks over groups of heads, so that the scores of long sequences fit. Any number of queries and keys; the mask is
    lower triangular.
    """
    seq_len, kv_len, scale = q.shape[2], k.shape[2], math.sqrt(q.shape[3])
    group = max(1, REFERENCE_CHUNK // (seq_len * kv_len))
    hidden = torch.ones(seq_len, kv_len, dtype=torch.bool, device=q.device).triu(1) if causal else None
    parts = []
    for queries, keys, values in zip(*(x.flatten(0, 1).split(group) for x in of_each_head(q, k, v)), strict=True):
        scores = (queries / scale) @ keys.transpose(1, 2)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        parts.append(torch.softmax(scores, dim=-1) @ values)
    return torch.cat(parts).view(q.shape)


def of_each_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q, K and V with keys and values repeated for the heads that share them."""
    shared = q.shape[1] // k.shape[1]
    return (q, k, v) if shared == 1 else (q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1))


def by_sequence(
    attention: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sequences: tuple[int, ...]
) -> torch.Tensor:
    """Attention within each of the sequences that lie end to end."""
    apart = zip(*(tensor.split(sequences, dim=2) for tensor in (q, k, v)), strict=True)
    return torch.cat([attention(queries, keys, values, causal) for queries, keys, values in apart], dim=2)


def float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The oracle: `composed` in double precision, on the same input values."""
    return composed(q.double(), k.double(), v.double(), causal)


def _backend(name: str, backend: SDPBackend) -> Implementation:
    return Implementation(name, sdpa, lambda: sdpa_kernel([backend]), ragged=sdpa_ragged)


_IMPLEMENTATIONS = (
    Implementation("sdpa.auto", sdpa, ragged=sdpa_ragged),
    _backend("sdpa.flash", SDPBackend.FLASH_ATTENTION),
    _backend("sdpa.cudnn", SDPBackend.CUDNN_ATTENTION),
    _backend("sdpa.efficient", SDPBackend.EFFICIENT_ATTENTION),
    _backend("sdpa.math", SDPBackend.MATH),
    Implementation("reference.float64", float64, ragged=partial(by_sequence, float64)),
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
    with _all_warnings() as said:
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
            raise Unsupported(_reason(message, said())) from None


@contextmanager
def _all_warnings() -> Iterator[Callable[[], list[str]]]:
    """Inside, torch's warnings are kept instead of shown, and the function says which there were."""
    # torch gives a warning of its own once a process; the second shape that is refused deserves its reason too. Of
    # nested tensors it tells by a logger.
    before, logger, kept = torch.is_warn_always_enabled(), logging.getLogger(NESTED), _Kept()
    torch.set_warn_always(True)
    logger.addHandler(kept)
    logger.propagate = False
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield lambda: [*(str(warning.message) for warning in caught), *kept.messages]
    finally:
        logger.propagate = True
        logger.removeHandler(kept)
        torch.set_warn_always(before)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def _reason(message: str, said: list[str]) -> str:
    # torch explains itself in warnings: a heading for each backend ("... not used because:"), then its reasons. A
    # backend that the selection itself switched off is no reason, nor is it that nested tensors are a prototype.
    told = [" ".join(text.split(" (Triggered", 1)[0].split()) for text in said]
    reasons = [text for text in told if not any(words in text for words in NO_REASON)]
    return reasons[0] if reasons else message


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
