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
"""``(q, k, v, causal) -> o``. Those of the registry take the keyword `scale`, the factor of the scores, as well."""
Ragged = Callable[[Tensor, Tensor, Tensor, bool, tuple[int, ...]], Tensor]
Tensors = tuple[Tensor, ...]
# The logger with which torch says why a backend doesn't take nested tensors.
NESTED = "torch.nested._internal.sdpa"
# Torch's notice of nested tensors to every user, once per process, does not belong in a log.
logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
PROTOTYPE = "The PyTorch API of nested tensors is in prototype stage"
warnings.filterwarnings("ignore", message=PROTOTYPE)
LONGEST_REASON = 300
"""The most characters of a message of a user's function."""
NO_REASON = ("not used because", "runtime disabled", PROTOTYPE)
"""A warning with these words says nothing of why a backend refuses."""


class Unsupported(Exception):
    """An implementation does not serve this shape on this device; the message is its reason."""


class OutOfMemory(Exception):
    """The device's memory does not hold this case."""


class Broken(Exception):
    """An implementation can't be called at all: its kernel doesn't compile, or can't be launched as its entry says."""


class Numbers:
    """The numbers that a call multiplies, by which the gate judges its output: here, its inputs as they are.

    Attributes:
        as_drawn: whether they are the inputs as they were drawn.
    """

    as_drawn = True

    def __init__(self, given: Tensors) -> None:
        self._given = given

    def now(self) -> Tensors:
        """Q, K and V, in training also the gradient of O, as they are now."""
        return self._given

    def composed(
        self, attention: Attention, compared: Tensors, causal: bool, scale: float | None, heads: Tensor | None
    ) -> Tensors:
        """The outputs of torch operations, whose errors are the framework's own: `attention` is composed of these.

        Args:
            compared: the numbers, or those of the `heads` that are compared, numbered over all batches.
        """
        return computed(attention, compared, causal, scale)

    def widened(self, output: Tensor) -> Tensor:
        """An output as it is compared."""
        return output


@dataclass(frozen=True)
class Operands:
    """Which numbers an implementation multiplies: here, its inputs as they are. FP8 has others (`fp8.subjects`)."""

    def of(self, windows: Any, window: int = 0) -> Numbers:
        """The numbers of a window of `inputs.Windows`; raises Unsupported where there are none."""
        return Numbers(windows[window])

    def reference(self, plain: "Implementation") -> "Implementation":
        """An implementation that multiplies these, from one that multiplies its inputs as they are."""
        return plain


@dataclass(frozen=True)
class Implementation:
    """Something that computes attention.

    Attributes:
        call: q and o are ``(batch, heads, seq_len, head_dim)``, k and v are ``(batch, kv_heads, kv_len, head_dim)``. A
            causal mask is aligned to the end.
        selected: a context in which `call` runs this implementation. It is entered outside the timed window, since a
            program that has chosen its backend doesn't choose it again at each call.
        resources: takes the arguments of `call` and returns columns of the table ``resources``; None unless it is a
            kernel of the ladder.
        ragged: ``(q, k, v, causal, sequences) -> o`` for sequences that are packed end to end. Tensors are ``(1,
            heads, tokens, head_dim)``, in memory one token after the other. None if there is no such call.
        differentiable: whether autograd can differentiate `call`.
        repeats: whether a forward pass has to be bitwise the same in every run on the same inputs.
        operands: which numbers it multiplies. Its outputs are compared with attention of these.
    """

    name: str
    call: Attention
    selected: Callable[[], AbstractContextManager[object]] = nullcontext
    resources: Callable[..., dict[str, Any]] | None = None
    ragged: Ragged | None = None
    differentiable: bool = True
    repeats: bool = False
    operands: Operands = Operands()

    def bound(self, given: Tensors, shape: Shape) -> Callable[[], Any]:
        """The call that is checked and timed at a shape, without arguments, on inputs as `inputs.Windows` holds them.

        It returns O, in training O, dQ, dK and dV, of the backward pass alone the last 3. If this implementation
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

    def on(self, windows: Any, shape: Shape) -> tuple[Callable[[int], Callable[[], Any]], Callable[[], None]]:
        """The call on a window of `inputs.Windows`, and a function that makes it see their values as they are now.

        Raises:
            Unsupported: it can't be called on such windows.
        """
        bound: dict[int, Callable[[], Any]] = {}

        def call(window: int) -> Callable[[], Any]:
            return bound.setdefault(window, self.bound(windows[window], shape))

        def refresh() -> None:
            for each in bound.values():
                if renew := getattr(each, "refresh", None):
                    renew()

        return call, refresh


def _refused(reason: str, *_: Any) -> Tensor:
    raise Unsupported(reason)


def with_gradients(attention: Attention, given: Tensors, causal: bool) -> Tensors:
    """O, dQ, dK and dV from Q, K, V and dO: the forward pass, and the backward pass from the gradient of O."""
    *inputs, gradient = given
    output, leaves = _forward(attention, inputs, causal)
    return output.detach(), *torch.autograd.grad(output, leaves, gradient)


def _forward(attention: Attention, inputs: Sequence[Tensor], causal: bool) -> tuple[Tensor, list[Tensor]]:
    """O, which autograd can differentiate by the leaves."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = attention(*leaves, causal)
    if not output.requires_grad:
        raise Unsupported("computes no gradients")
    return output, leaves


class BackwardPass:
    """dQ, dK and dV of a forward pass that was made before: that of the first call, until it is made again.

    Autograd keeps tensors of the forward pass. They stay where they are when `refresh` makes them again, so that a
    graph of the call sees those of the values that are in place.
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
        """Make the forward pass again, of the values that are in place now."""
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
    """Inside, on a GPU, a stream of its own is current: autograd calls a backward pass on that of its forward pass.

    A graph that is captured on another one can wait for it, and couldn't for the default stream.
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
    """O of Q, K and V; of these and the gradient of O also dQ, dK and dV, by `oracle.gradients`.

    These are of O as a forward pass keeps it, rounded. Autograd's would have the probabilities instead: where one key
    has nearly all of the weight, errors of dS cancel there.
    """
    if len(given) == 3:
        return (attention(*given, causal),)
    q, k, v, dout = given
    return attention(q, k, v, causal), *oracle.gradients(q, k, v, dout, causal, scale)[:3]


def by_sequence(
    attention: Attention, q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]
) -> Tensor:
    """Attention within each of several sequences that are packed end to end."""
    apart = zip(*(tensor.split(sequences, dim=2) for tensor in (q, k, v)), strict=True)
    return torch.cat([attention(queries, keys, values, causal) for queries, keys, values in apart], dim=2)


def attempt(work: Callable[[], T]) -> T:
    """The result of `work`, with the errors of an implementation sorted by their meanings.

    Raises:
        Unsupported: the implementation or the framework refused; the message is its reason.
        OutOfMemory: an allocation failed.
        Broken: the implementation can't be called at all.
        torch.AcceleratorError: a GPU failed; nothing that it returns from then on can be trusted.
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
    """Whether nothing can go on in this process: its state can't be put back, or its GPU failed.

    Without a driver, a call that asks for a GPU raises the same error, and harms nothing.
    """
    return isinstance(error, Spoiled) or (isinstance(error, torch.AcceleratorError) and torch.cuda.is_initialized())


def raised(error: BaseException) -> str:
    """An exception in one line that isn't long."""
    return short(f"{type(error).__name__}: {error}".removesuffix(": "))


def short(words: str) -> str:
    """Words of others in one line that isn't long."""
    return shorten(words, LONGEST_REASON, placeholder=" …")


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error of torch says that an allocation failed, on a GPU or on the host."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextmanager
def _all_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Inside, torch's warnings are collected in the list instead of shown."""
    # torch warns once per process, but the next shape that is refused needs its reason too. For nested tensors it logs.
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
