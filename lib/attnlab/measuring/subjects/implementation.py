"""Implementations of attention: their calls, their operands and their errors."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from textwrap import shorten
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnlab.measuring.subjects import oracle
from attnlab.measuring.watch import Spoiled
from attnlab.study.shapes import Shape

T = TypeVar("T")
Attention = Callable[..., Tensor]
"""``(q, k, v, causal) -> o``. Functions of the registry also take the keyword `scale`, the factor of the scores."""
Tensors = tuple[Tensor, ...]
# In this logger, torch says why a backend doesn't take nested tensors.
NESTED = "torch.nested._internal.sdpa"
# Suppress torch's notice about nested tensors, which appears once per process.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
PROTOTYPE = "The PyTorch API of nested tensors is in prototype stage"
warnings.filterwarnings("ignore", message=PROTOTYPE)
LONGEST_REASON = 300
"""The most characters of an error message of a user's function."""
NO_REASON = ("not used because", "runtime disabled", PROTOTYPE)
"""Warnings with these words don't say why a backend doesn't take the tensors."""


class Unsupported(Exception):
    """An implementation does not serve this shape on this device; the message is its reason."""


class OutOfMemory(Exception):
    """The device's memory does not hold this case."""


class Broken(Exception):
    """An implementation can't be called at all: its kernel doesn't compile, or can't launch as its entry states."""


class Numbers:
    """The numbers that a call multiplies, with whose attention the gate compares its output: here, its inputs.

    Attributes:
        as_drawn: whether they equal the inputs as they were drawn.
    """

    as_drawn = True

    def __init__(self, given: Tensors) -> None:
        self._given = given

    def now(self) -> Tensors:
        """The current Q, K and V; in training also the gradient of O."""
        return self._given

    def composed(
        self, attention: Attention, compared: Tensors, causal: bool, scale: float | None, heads: Tensor | None
    ) -> Tensors:
        """The outputs of `attention`, which is composed of torch operations, so that errors are the framework's own.

        It gets the numbers, or those of the compared `heads`; these are numbered over all batches.
        """
        return computed(attention, compared, causal, scale)

    def widened(self, output: Tensor) -> Tensor:
        """An output in the form in which it is compared."""
        return output


@dataclass(frozen=True)
class Operands:
    """The numbers that an implementation multiplies: here, its inputs. FP8 has other numbers (`fp8.subjects`)."""

    def of(self, windows: Any, window: int = 0) -> Numbers:
        """The numbers of a window of `inputs.Windows`; raises Unsupported if there are none."""
        return Numbers(windows[window])

    def reference(self, plain: "Implementation") -> "Implementation":
        """Turn `plain`, which multiplies its inputs, into an implementation that multiplies these numbers."""
        return plain


@dataclass(frozen=True)
class Implementation:
    """A function that computes attention, and its properties.

    Attributes:
        call: q and o are ``(batch, heads, seq_len, head_dim)``, k and v are ``(batch, kv_heads, kv_len, head_dim)``. A
            causal mask is aligned to the end.
        selected: a context in which `call` runs this implementation. It is entered outside the timed window, since a
            program chooses its backend once, not at each call.
        resources: takes the arguments of `call` and returns columns of the table ``resources``; None unless it is a
            kernel of the ladder.
        ragged: ``(q, k, v, causal, sequences) -> o`` for sequences that are packed end to end. Tensors are ``(1,
            heads, tokens, head_dim)``, stored tokens first. None if there is no such call.
        differentiable: whether autograd can differentiate `call`.
        repeats: whether a forward pass has to give the same bits every time on the same inputs.
        operands: the numbers that it multiplies. Its outputs are compared with attention of these numbers.
    """

    name: str
    call: Attention
    selected: Callable[[], AbstractContextManager[object]] = nullcontext
    resources: Callable[..., dict[str, Any]] | None = None
    ragged: Callable[[Tensor, Tensor, Tensor, bool, tuple[int, ...]], Tensor] | None = None
    differentiable: bool = True
    repeats: bool = False
    operands: Operands = Operands()

    def bound(self, given: Tensors, shape: Shape) -> Callable[[], Any]:
        """The call that is checked and timed at a shape, without arguments, on inputs as `inputs.Windows` holds them.

        It returns O; in training O, dQ, dK and dV; for the backward pass alone dQ, dK and dV. If this implementation
        doesn't serve the shape, the call raises Unsupported.
        """
        call = partial(self.call, scale=shape.scale) if shape.scale else self.call
        if shape.trains:
            attention = call if self.differentiable else partial(_refused, f"{self.name} computes no gradients")
            if shape.direction == "backward":
                return BackwardPass(attention, self.selected, given, shape.causal)
            return partial(with_gradients, attention, given, shape.causal)
        if shape.ragged:
            ragged = self.ragged or partial(_refused, f"{self.name} takes sequences of one length")
            q, k, v = given
            return partial(ragged, q, k, v, shape.causal, shape.sequences)
        return partial(call, *given, shape.causal)

    def on(self, windows: Any) -> tuple[Callable[[int], Callable[[], Any]], Callable[[], None]]:
        """A function that returns the call on a window of `inputs.Windows`, and one that updates calls to new values.

        Raises Unsupported: it can't be called on such windows.
        """
        bound: dict[int, Callable[[], Any]] = {}

        def call(window: int) -> Callable[[], Any]:
            if window not in bound:
                bound[window] = self.bound(windows[window], windows.shape)
            return bound[window]

        def refresh() -> None:
            for each in bound.values():
                if renew := getattr(each, "refresh", None):
                    renew()

        return call, refresh


def _refused(reason: str, *_: Any) -> Tensor:
    raise Unsupported(reason)


def with_gradients(attention: Attention, given: Tensors, causal: bool) -> Tensors:
    """O, dQ, dK and dV from Q, K, V and dO, by a forward and a backward pass."""
    *inputs, gradient = given
    output, leaves = _forward(attention, inputs, causal)
    return output.detach(), *torch.autograd.grad(output, leaves, gradient)


def _forward(attention: Attention, inputs: Sequence[Tensor], causal: bool) -> tuple[Tensor, list[Tensor]]:
    """O, and copies of the inputs with respect to which autograd can differentiate it."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = attention(*leaves, causal)
    if not output.requires_grad:
        raise Unsupported("computes no gradients")
    return output, leaves


class BackwardPass:
    """dQ, dK and dV from an earlier forward pass: the first call makes it, and `refresh` repeats it.

    Autograd saves tensors of the forward pass. `refresh` keeps their addresses, so that a captured graph of the call
    reads the tensors of the current values.
    """

    def __init__(self, attention: Attention, selected: Callable[[], Any], given: Tensors, causal: bool) -> None:
        self._attention, self._selected, self._causal = attention, selected, causal
        *self._inputs, self._gradient = given
        self._kept: list[Tensor] = []
        self._made: tuple[Tensor, list[Tensor]] | None = None

    def __call__(self) -> Tensors:
        if self._made is None:
            self._made = self._again()
        output, leaves = self._made
        return torch.autograd.grad(output, leaves, self._gradient, retain_graph=True)

    def refresh(self) -> None:
        """Repeat the forward pass with the current values."""
        if self._made is not None:
            self._again()

    def _again(self) -> tuple[Tensor, list[Tensor]]:
        places = count()

        def keep(tensor: Tensor) -> int:
            place = next(places)
            if self._made is None:
                self._kept.append(tensor)
            elif tensor.data_ptr() != self._kept[place].data_ptr():
                self._kept[place].copy_(tensor)
            return place

        kept = torch.autograd.graph.saved_tensors_hooks(keep, self._kept.__getitem__)
        with self._selected(), _of_forward_passes(self._gradient.device), kept:
            return _forward(self._attention, self._inputs, self._causal)


@contextmanager
def _of_forward_passes(device: torch.device) -> Iterator[None]:
    """A context with a separate stream on a GPU: autograd runs a backward pass on the stream of its forward pass.

    A graph that is captured on another stream can wait for this one, but not for the default stream.
    """
    if device.type != "cuda":
        yield
        return
    stream, outside = _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(outside)
    with torch.cuda.stream(stream):
        yield
    outside.wait_stream(stream)


_stream = cache(torch.cuda.Stream)


def computed(attention: Attention, given: Tensors, causal: bool, scale: float | None = None) -> Tensors:
    """O from Q, K and V; with the gradient of O also dQ, dK and dV, by `oracle.gradients`.

    The gradients use O as a forward pass stores it, rounded. Autograd would use the probabilities instead, with which
    errors of dS cancel if one key has nearly all of the weight.
    """
    if len(given) == 3:
        return (attention(*given, causal),)
    q, k, v, dout = given
    return attention(q, k, v, causal), *oracle.gradients(q, k, v, dout, causal, scale)[:3]


def by_sequence(
    attention: Attention, q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]
) -> Tensor:
    """Attention within each of the sequences that are packed end to end."""
    apart = zip(*(tensor.split(sequences, dim=2) for tensor in (q, k, v)), strict=True)
    return torch.cat([attention(queries, keys, values, causal) for queries, keys, values in apart], dim=2)


def attempt(work: Callable[[], T]) -> T:
    """The result of `work`; an implementation's errors are raised as one of the following.

    Raises:
        Unsupported: the implementation or the framework refused; the message is its reason.
        OutOfMemory: an allocation failed.
        Broken: the implementation can't be called at all.
        torch.AcceleratorError: a GPU failed; its later results can't be trusted.
    """
    with _all_warnings() as caught:
        try:
            return work()
        except MemoryError as error:
            raise OutOfMemory(raised(error)) from None
        except RuntimeError as error:
            if fatal(error):
                raise
            if isinstance(error, torch.AcceleratorError):
                raise Unsupported(str(error).splitlines()[0]) from None
            message = " ".join(str(error).split())
            if ran_out_of_memory(error):
                raise OutOfMemory(message) from None
            raise Unsupported(_reason(message, [str(warning.message) for warning in caught])) from None


def fatal(error: BaseException) -> bool:
    """Whether this process can't continue: its state can't be restored, or its GPU failed.

    Without a driver, a call that needs a GPU raises the same error, which is harmless.
    """
    return isinstance(error, Spoiled) or (isinstance(error, torch.AcceleratorError) and torch.cuda.is_initialized())


def raised(error: BaseException) -> str:
    """The message of an error of this module, else an exception in one line of at most `LONGEST_REASON` characters."""
    if isinstance(error, Unsupported | OutOfMemory | Broken):
        return str(error)
    return short(f"{type(error).__name__}: {error}".removesuffix(": "))


def short(words: str) -> str:
    """A text in one line of at most `LONGEST_REASON` characters."""
    return shorten(words, LONGEST_REASON, placeholder=" …")


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error of torch says that an allocation failed, on a GPU or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def _all_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """A context that collects torch's warnings in the list instead of showing them."""
    # torch warns once per process, but each shape that is skipped needs its reason. About nested tensors torch logs.
    before, logger = torch.is_warn_always_enabled(), logging.getLogger(NESTED)
    torch.set_warn_always(True)
    logger.addFilter(_warned)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        logger.removeFilter(_warned)
        torch.set_warn_always(before)


def _warned(record: logging.LogRecord) -> bool:
    warnings.warn(record.getMessage(), stacklevel=1)
    return False


def _reason(message: str, said: list[str]) -> str:
    # torch explains itself in warnings: a heading for each backend ("... not used because:"), then its reasons.
    lines = (" ".join(text.split(" (Triggered", 1)[0].split()) for text in said)
    return next((line for line in lines if not any(words in line for words in NO_REASON)), message)
