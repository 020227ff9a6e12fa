"""The gate: nothing is timed whose result is wrong, or right for the wrong reason.

An output is compared with the float64 oracle; how it came about is looked at as well. Each of these fails a check:

- elements that were not written, or are not finite: memory is poisoned before each run;
- bytes written outside the output: it lies between guards (where the implementation allocates it with `outputs.like`);
- inputs that were changed, or handed back as the output;
- the output of earlier inputs: inputs change in place from check to check, and an output that was returned is poisoned;
- two runs that differ in any bit: between them what multiprocessors hold in shared memory and registers changes, so
  that a kernel which reads what it didn't write shows, and one with a race has a second chance to;
- work that the calling stream doesn't order: the second run is called before that stream has written the inputs, its
  output is copied by that stream at once, and a graph captured from the stream has to compute the result alone.

A forward pass has to be the same in every bit from run to run: the environment is locked to deterministic algorithms,
and nothing that is timed here adds with atomics. Backward passes do add with them, and each run of one is held to the
error instead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from attnlab.measure import devices, inputs, outputs, scrub, streams
from attnlab.measure.attention import Attention, Tensors, by_sequence, composed, of_each_head, with_gradients
from attnlab.measure.clocks import Call, Replay
from attnlab.measure.inputs import Inputs

# How far an implementation may be from the oracle, in units of the framework's own low-precision error: the criterion
# of FlashAttention's test suite.
ALLOWED = 2.0
# The first elements of an output, by which it is known again.
KNOWN_BY = 4096
# What a call returns: the first alone, or all in training.
OUTPUTS = ("O", "dQ", "dK", "dV")
# Scores held at once where the effect of their rounding is worked out, in elements: 128 MiB of float64, several times.
HELD_SCORES = 2**24


@dataclass(frozen=True)
class Error:
    """Distance of an output from the float64 oracle, in absolute values; infinite where an element isn't finite."""

    maximum: float
    mean: float

    @classmethod
    def between(cls, output: torch.Tensor, oracle: torch.Tensor) -> "Error":
        """Compare `output` with `oracle`, tensors of the same shape, a slab at a time to bound memory."""
        worst, total = 0.0, 0.0
        for got, right in zip(output.flatten(0, 1).split(64), oracle.flatten(0, 1).split(64), strict=True):
            distance = (got.double() - right).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
            worst = max(worst, distance.max().item())
            total += distance.sum().item()
        return cls(worst, total / oracle.numel())

    def within(self, allowed: "Error") -> bool:
        """Whether neither the maximum nor the mean is larger than what is allowed."""
        return self.maximum <= allowed.maximum and self.mean <= allowed.mean


NONE, UNBOUNDED = Error(0.0, 0.0), Error(math.inf, math.inf)


@dataclass(frozen=True)
class Check:
    """The verdict of the gate on one output.

    Attributes:
        error: of the implementation, against the oracle.
        framework_error: of the same formula composed from torch operations in the dtype of the inputs.
        unavoidable: what the rounding of large scores in float32 does to the output; see `Gate`.
        faults: what is wrong besides the error, in words.
        output: of `OUTPUTS`, whose errors these are: where there are several, the farthest from what is allowed.
    """

    error: Error
    framework_error: Error
    unavoidable: Error = NONE
    faults: tuple[str, ...] = ()
    output: str = OUTPUTS[0]

    @property
    def passed(self) -> bool:
        """Both the maximum and the mean error are at most twice the framework's, and nothing else is wrong."""
        return not self.faults and self.error.within(self._allowed)

    @property
    def reason(self) -> str:
        """What to tell of a check that failed."""
        wrong = not self.error.within(self._allowed)
        return "; ".join([*self.faults, *([self._distance] if wrong or not self.faults else [])])

    @property
    def strain(self) -> float:
        """How far the larger of the two errors is, in units of what is allowed."""
        allowed = self._allowed
        return max(_ratio(self.error.maximum, allowed.maximum), _ratio(self.error.mean, allowed.mean))

    @property
    def _allowed(self) -> Error:
        return Error(
            ALLOWED * max(self.framework_error.maximum, self.unavoidable.maximum),
            ALLOWED * max(self.framework_error.mean, self.unavoidable.mean),
        )

    @property
    def _distance(self) -> str:
        unit = Error(self._allowed.maximum / ALLOWED, self._allowed.mean / ALLOWED)
        of = "" if self.output == OUTPUTS[0] else f" of {self.output}"
        return (
            f"error{of} against float64: max {self.error.maximum:.2e} mean {self.error.mean:.2e}, "
            f"allowed {ALLOWED:g}x max {unit.maximum:.2e} mean {unit.mean:.2e}"
        )


class Gate:
    """The oracle for one set of inputs, against which any number of implementations is checked.

    What is allowed is twice the framework's own error on the same inputs, and for normal inputs nothing else. Where
    logits are large, the error hangs on how the last bit of a few scores was rounded: of keys that nearly tie, or of
    the one key of a tile's rest. In float32 the framework may be luckier there than an implementation that is as good.
    So twice `unavoidable` is allowed there as well: the standard deviation of an output when each score is off, on its
    own, by one float32 ulp of |q|·|k|/√D, the most that its terms add up to. To first order that is this ulp times
    √(Σ P_j² (v_j - o)²), P being the row of the softmax. In float16 and bfloat16 the framework's error is far larger.

    Args:
        given: Q, K and V, in training the gradient of O besides; they are to be changed by nobody but the gate.
        kind: of `inputs.KINDS`, what they are; in training normal.
        heads: of those of all batches, the ones whose values are compared, in a forward pass; None for all. Everything
            else that the gate looks at is looked at in all of them.
        sequences: how long each is that lies end to end; none where a batch has one length.
    """

    def __init__(
        self,
        given: Inputs,
        causal: bool,
        kind: str = inputs.NORMAL,
        heads: Sequence[int] | None = None,
        sequences: tuple[int, ...] = (),
    ) -> None:
        self._inputs = given
        self._values = tuple(tensor.clone() for tensor in given)
        self._returned: Tensors | None = None
        self._heads = None if heads is None else torch.tensor(heads, device=given[0].device)
        self._shapes = tuple(tensor.shape for tensor in (given[0], *given[:3]))[: self._outputs]
        attention: Attention = partial(by_sequence, composed, sequences=sequences) if sequences else composed
        compared = self._compared_inputs()
        exact = _computed(attention, tuple(tensor.double() for tensor in compared), causal)
        self._oracle = exact
        self._framework_errors = [
            Error.between(output, oracle)
            for output, oracle in zip(_computed(attention, compared, causal), exact, strict=True)
        ]
        self._unavoidable = _unavoidable(compared, causal, exact[0], sequences) if kind != inputs.NORMAL else NONE

    @property
    def _outputs(self) -> int:
        """How many tensors a call returns."""
        return 1 if len(self._inputs) == 3 else len(OUTPUTS)

    def check(self, output: torch.Tensor | Tensors, faults: Sequence[str] = ()) -> Check:
        """Compare what was computed from the inputs of this gate, of which `faults` are known already.

        In training these are four tensors, of which the check speaks of the one whose error is the worst.
        """
        returned = _each(output)
        if wrong := self._misshapen(returned):
            return Check(UNBOUNDED, self._framework_errors[0], self._unavoidable, (*faults, wrong))
        told = tuple(dict.fromkeys(faults))
        checks = [
            Check(Error.between(self._compared(tensor), oracle), framework_error, self._unavoidable, told, name)
            for tensor, oracle, framework_error, name in zip(
                returned, self._oracle, self._framework_errors, OUTPUTS, strict=False
            )
        ]
        return max(checks, key=lambda check: check.strain)

    def examine(self, call: Call, earlier: set[bytes] | None = None) -> Check:
        """Run `call`, twice, and check what it returns and how it came about.

        Args:
            earlier: by what outputs for earlier inputs are known again; this one is added to them.
        """
        self._returned = None
        first, faults = self._run(call, 0)
        if self._misshapen(first):
            return self.check(first, faults)
        second, more = self._run(call, 1, streams.before_inputs)
        faults += more
        if self._exact and (differing := _unlike(first, second)):
            again, _ = self._run(call, 1)
            faults.append(_why_different(differing, _elements(first), only_before_inputs=not _unlike(first, again)))
        if earlier is not None:
            known_by = _bits(first[0]).flatten()[:KNOWN_BY].cpu().numpy().tobytes()
            if known_by in earlier:
                faults.append("returned its output for earlier inputs")
            earlier.add(known_by)
        return self._worse(first, second, faults)

    def examine_captured(self, call: Call) -> Check:
        """Capture a graph of one call, of which nothing but the calling stream's work is part, and check its replay."""
        with outputs.guarded(outputs.POISONS[0]) as guards:
            try:
                replay = streams.captured(call)
            except streams.NotCaptured as error:
                fault = (
                    f"does work that the stream which calls it doesn't order: no graph of it can be captured, {error}"
                )
                return Check(UNBOUNDED, self._framework_errors[0], self._unavoidable, (fault,))
        return self.examine_replay(replay, guards)

    def examine_replay(self, replay: Replay, guards: outputs.Guards | None = None) -> Check:
        """Replay a graph that reads the inputs of this gate, twice, and check what it computes."""
        self._returned = None
        first, faults = self._run(lambda: _replayed(replay), 0, guards=guards)
        second, more = self._run(lambda: _replayed(replay), 1, guards=guards)
        faults += more
        if self._exact and (differing := _unlike(first, second)):
            faults.append(_why_different(differing, _elements(first), only_before_inputs=False))
        return self._worse(first, second, faults)

    @property
    def _exact(self) -> bool:
        """Whether two runs have to be the same in every bit."""
        return self._outputs == 1

    def _worse(self, first: Tensors, second: Tensors, faults: list[str]) -> Check:
        """The check of the first run, or of the one farther from the oracle where they may differ."""
        runs = [first] if self._exact else [first, second]
        return max((self.check(run, faults) for run in runs), key=lambda check: check.strain)

    def _misshapen(self, returned: Tensors) -> str:
        """What is wrong with the shapes of what was returned."""
        shapes = tuple(tensor.shape for tensor in returned)
        if shapes == self._shapes:
            return ""
        there, wanted = (", ".join(str(tuple(shape)) for shape in each) for each in (shapes, self._shapes))
        return f"returned {there}, not {wanted}"

    def _run(
        self,
        call: Call,
        turn: int,
        calling: Callable[[Call, Inputs, tuple[torch.Tensor, ...]], Any] | None = None,
        guards: outputs.Guards | None = None,
    ) -> tuple[Tensors, list[str]]:
        """Copies of what a run returns, the first or second, on poisoned memory, and what is wrong about that run."""
        device = self._inputs[0].device
        scrub.fill(device, scrub.WORDS[turn])
        devices.synchronize(device)
        try:
            with outputs.guarded(outputs.POISONS[turn]) as fresh:
                returned = _each(calling(call, self._inputs, self._values) if calling else call())
            at_once = tuple(output.clone() for output in returned)
            devices.synchronize(device)
            return at_once, self._faults(returned, at_once, guards or fresh)
        finally:
            for held, value in zip(self._inputs, self._values, strict=True):
                held.copy_(value)

    def _faults(self, returned: Tensors, at_once: Tensors, guards: outputs.Guards) -> list[str]:
        faults = guards.overruns()
        changed = [
            name
            for name, held, value in zip(("Q", "K", "V", "dO"), self._inputs, self._values, strict=False)
            if _differing(held, value)
        ]
        if changed:
            faults.append(f"changed its inputs: {', '.join(changed)}")
        before = self._returned or (None,) * len(returned)
        self._returned = returned
        for output, copied, earlier in zip(returned, at_once, before, strict=False):
            faults += self._faults_of(output, copied, earlier, guards)
        return faults

    def _faults_of(
        self, output: torch.Tensor, at_once: torch.Tensor, earlier: torch.Tensor | None, guards: outputs.Guards
    ) -> list[str]:
        """What is wrong with one tensor that was returned, `earlier` being what stood in its place the last time."""
        faults = []
        if any(_overlap(output, held) for held in self._inputs):
            return ["returned memory of its inputs"]
        if any(size > 1 and not stride for size, stride in zip(output.shape, output.stride(), strict=True)):
            return ["returned elements that share memory"]
        if late := _differing(at_once, output):
            faults.append(
                f"wrote {late} of {output.numel()} elements after the stream that called it had gone on: it works on "
                "another stream"
            )
        unwritten = guards.unwritten(output, at_once)
        if unwritten:
            faults.append(f"{unwritten} of {output.numel()} elements not written")
        elif earlier is not None and _overlap(output, earlier) and (left := int(at_once.isnan().sum())):
            faults.append(f"returned what it had returned before, {left} of {output.numel()} elements not written anew")
            unwritten = left
        if not_finite := int((~at_once.isfinite()).sum()) - unwritten:
            faults.append(f"{not_finite} of {output.numel()} elements are not finite")
        output.fill_(torch.nan)  # who returns this memory again has to write it again
        return faults

    def _compared_inputs(self) -> Tensors:
        if self._heads is None:
            return self._inputs
        q, k, v = self._inputs
        return tuple(self._compared(tensor) for tensor in of_each_head(q, k, v))

    def _compared(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._heads is None else tensor.flatten(0, 1)[self._heads].unsqueeze(0)


def _ratio(error: float, allowed: float) -> float:
    return error / allowed if allowed else math.inf * error if error else 0.0


def _computed(attention: Attention, given: Tensors, causal: bool) -> Tensors:
    """O, in training dQ, dK and dV besides, in the dtype of the inputs."""
    if len(given) == 3:
        q, k, v = given
        return (attention(q, k, v, causal),)
    return with_gradients(attention, given, causal)


def _unavoidable(given: Tensors, causal: bool, oracle: torch.Tensor, sequences: tuple[int, ...]) -> Error:
    q, k, v = given
    lengths = sequences or (q.shape[2],)
    keys = sequences or (k.shape[2],)
    q, k, v = of_each_head(q, k, v)
    apart = zip(q.split(lengths, 2), k.split(keys, 2), v.split(keys, 2), oracle.split(lengths, 2), strict=True)
    errors = [(_unavoidable_of(*each, causal=causal), each[0].numel()) for each in apart]
    mean = sum(error.mean * elements for error, elements in errors) / oracle.numel()
    return Error(max(error.maximum for error, _ in errors), mean)


def _unavoidable_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, oracle: torch.Tensor, causal: bool) -> Error:
    seq_len, head_dim = q.shape[-2:]
    kv_len = k.shape[-2]
    hidden = torch.ones(seq_len, kv_len, dtype=torch.bool, device=q.device).triu(1) if causal else None
    largest, total, ulp = 0.0, 0.0, 0.0
    group = max(1, HELD_SCORES // (seq_len * kv_len))
    slabs = zip(*(tensor.flatten(0, 1).split(group) for tensor in (q, k, v, oracle)), strict=True)
    for queries, keys, values, exact in slabs:
        queries, keys, values = queries.double(), keys.double(), values.double()
        scores = queries @ keys.transpose(1, 2) / math.sqrt(head_dim)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        weights = scores.softmax(-1).square_()
        variance = weights @ values**2 - 2 * exact * (weights @ values) + exact**2 * weights.sum(-1, keepdim=True)
        deviation = variance.clamp_(min=0).sqrt_()
        largest = max(largest, deviation.max().item())
        total += deviation.sum().item()
        most = queries.norm(dim=-1).amax(-1) * keys.norm(dim=-1).amax(-1)
        ulp = max(ulp, torch.finfo(torch.float32).eps * most.max().item() / math.sqrt(head_dim))
    return Error(ulp * largest, ulp * total / oracle.numel())


def _each(output: torch.Tensor | Tensors) -> Tensors:
    return output if isinstance(output, tuple) else (output,)


def _replayed(replay: Replay) -> torch.Tensor | Tensors:
    for output in _each(replay.output):
        output.fill_(torch.nan)
    replay.graph.replay()
    return replay.output


def _differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """In how many elements two tensors differ, bit by bit."""
    return int((_bits(a) != _bits(b)).sum())


def _unlike(first: Tensors, second: Tensors) -> int:
    """In how many elements two runs differ, but for those that are not a number in either."""
    return sum(
        int(((_bits(one) != _bits(other)) & ~(one.isnan() & other.isnan())).sum())
        for one, other in zip(first, second, strict=True)
    )


def _elements(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(integers[tensor.element_size()])


def _why_different(differing: int, elements: int, only_before_inputs: bool) -> str:
    where = f"in {differing} of {elements} elements"
    if only_before_inputs:
        return f"doesn't wait for the stream that calls it: differs {where} when that has yet to write the inputs"
    return f"differs between two runs on the same inputs, {where}"


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
