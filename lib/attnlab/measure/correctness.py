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

All implementations have to be the same in every bit from run to run: the environment is locked to deterministic
algorithms, and nothing that is timed here adds with atomics.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from attnlab.measure import devices, inputs, outputs, scrub, streams
from attnlab.measure.attention import composed, float64
from attnlab.measure.clocks import Call, Replay
from attnlab.measure.inputs import Inputs

# How far an implementation may be from the oracle, in units of the framework's own low-precision error: the criterion
# of FlashAttention's test suite.
ALLOWED = 2.0
# The first elements of an output, by which it is known again.
KNOWN_BY = 4096
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
    """

    error: Error
    framework_error: Error
    unavoidable: Error = NONE
    faults: tuple[str, ...] = ()

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
    def _allowed(self) -> Error:
        return Error(
            ALLOWED * max(self.framework_error.maximum, self.unavoidable.maximum),
            ALLOWED * max(self.framework_error.mean, self.unavoidable.mean),
        )

    @property
    def _distance(self) -> str:
        unit = Error(self._allowed.maximum / ALLOWED, self._allowed.mean / ALLOWED)
        return (
            f"error against float64: max {self.error.maximum:.2e} mean {self.error.mean:.2e}, "
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
        given: Q, K and V; they are to be changed by nobody but the gate.
        kind: of `inputs.KINDS`, what they are.
        heads: of those of all batches, the ones whose values are compared; None for all. Everything else that the gate
            looks at is looked at in all of them.
    """

    def __init__(
        self, given: Inputs, causal: bool, kind: str = inputs.NORMAL, heads: Sequence[int] | None = None
    ) -> None:
        self._inputs = given
        self._values = tuple(tensor.clone() for tensor in given)
        self._returned: torch.Tensor | None = None
        self._heads = None if heads is None else torch.tensor(heads, device=given[0].device)
        q, k, v = (self._compared(tensor) for tensor in given)
        self._oracle = float64(q, k, v, causal)
        self._framework_error = Error.between(composed(q, k, v, causal), self._oracle)
        self._unavoidable = _unavoidable(q, k, v, causal, self._oracle) if kind != inputs.NORMAL else NONE

    def check(self, output: torch.Tensor, faults: Sequence[str] = ()) -> Check:
        """Compare an output computed from the inputs of this gate, of which `faults` are known already."""
        if output.shape != self._inputs[0].shape:
            wrong = f"returned {tuple(output.shape)}, not {tuple(self._inputs[0].shape)}"
            return Check(UNBOUNDED, self._framework_error, self._unavoidable, (*faults, wrong))
        error = Error.between(self._compared(output), self._oracle)
        return Check(error, self._framework_error, self._unavoidable, tuple(dict.fromkeys(faults)))

    def examine(self, call: Call, earlier: set[bytes] | None = None) -> Check:
        """Run `call`, twice, and check what it returns and how it came about.

        Args:
            earlier: by what outputs for earlier inputs are known again; this one is added to them.
        """
        self._returned = None
        first, faults = self._run(call, 0)
        if first.shape != self._inputs[0].shape:
            return self.check(first, faults)
        second, more = self._run(call, 1, streams.before_inputs)
        faults += more
        if differing := _unlike(first, second):
            again, _ = self._run(call, 1)
            faults.append(_why_different(differing, first.numel(), only_before_inputs=not _unlike(first, again)))
        if earlier is not None:
            known_by = _bits(first).flatten()[:KNOWN_BY].cpu().numpy().tobytes()
            if known_by in earlier:
                faults.append("returned its output for earlier inputs")
            earlier.add(known_by)
        return self.check(first, faults)

    def examine_captured(self, call: Call) -> Check:
        """Capture a graph of one call, of which nothing but the calling stream's work is part, and check its replay."""
        with outputs.guarded(outputs.POISONS[0]) as guards:
            try:
                replay = streams.captured(call)
            except streams.NotCaptured as error:
                fault = (
                    f"does work that the stream which calls it doesn't order: no graph of it can be captured, {error}"
                )
                return Check(UNBOUNDED, self._framework_error, self._unavoidable, (fault,))
        return self.examine_replay(replay, guards)

    def examine_replay(self, replay: Replay, guards: outputs.Guards | None = None) -> Check:
        """Replay a graph that reads the inputs of this gate, twice, and check what it computes."""
        self._returned = None
        first, faults = self._run(lambda: _replayed(replay), 0, guards=guards)
        second, more = self._run(lambda: _replayed(replay), 1, guards=guards)
        faults += more
        if differing := _unlike(first, second):
            faults.append(_why_different(differing, first.numel(), only_before_inputs=False))
        return self.check(first, faults)

    def _run(
        self,
        call: Call,
        turn: int,
        calling: Callable[[Call, Inputs, tuple[torch.Tensor, ...]], torch.Tensor] | None = None,
        guards: outputs.Guards | None = None,
    ) -> tuple[torch.Tensor, list[str]]:
        """A copy of the output of a run, the first or second, on poisoned memory, and what is wrong about that run."""
        device = self._inputs[0].device
        scrub.fill(device, scrub.WORDS[turn])
        devices.synchronize(device)
        try:
            with outputs.guarded(outputs.POISONS[turn]) as fresh:
                output = calling(call, self._inputs, self._values) if calling else call()
            at_once = output.clone()
            devices.synchronize(device)
            return at_once, self._faults(output, at_once, guards or fresh)
        finally:
            for held, value in zip(self._inputs, self._values, strict=True):
                held.copy_(value)

    def _faults(self, output: torch.Tensor, at_once: torch.Tensor, guards: outputs.Guards) -> list[str]:
        faults = guards.overruns()
        changed = [
            name for name, held, value in zip("QKV", self._inputs, self._values, strict=True) if _differing(held, value)
        ]
        if changed:
            faults.append(f"changed its inputs: {', '.join(changed)}")
        if any(_overlap(output, held) for held in self._inputs):
            return [*faults, "returned memory of its inputs"]
        if any(size > 1 and not stride for size, stride in zip(output.shape, output.stride(), strict=True)):
            return [*faults, "returned elements that share memory"]
        if late := _differing(at_once, output):
            faults.append(
                f"wrote {late} of {output.numel()} elements after the stream that called it had gone on: it works on "
                "another stream"
            )
        unwritten = guards.unwritten(output, at_once)
        if unwritten:
            faults.append(f"{unwritten} of {output.numel()} elements not written")
        elif self._returned is not None and _overlap(output, self._returned) and (left := int(at_once.isnan().sum())):
            faults.append(f"returned what it had returned before, {left} of {output.numel()} elements not written anew")
            unwritten = left
        if not_finite := int((~at_once.isfinite()).sum()) - unwritten:
            faults.append(f"{not_finite} of {output.numel()} elements are not finite")
        output.fill_(torch.nan)  # who returns this memory again has to write it again
        self._returned = output
        return faults

    def _compared(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._heads is None else tensor.flatten(0, 1)[self._heads].unsqueeze(0)


def _unavoidable(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, oracle: torch.Tensor) -> Error:
    seq_len, head_dim = q.shape[-2:]
    hidden = torch.ones(seq_len, seq_len, dtype=torch.bool, device=q.device).triu(1) if causal else None
    largest, total, ulp = 0.0, 0.0, 0.0
    group = max(1, HELD_SCORES // seq_len**2)
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


def _replayed(replay: Replay) -> torch.Tensor:
    replay.output.fill_(torch.nan)
    replay.graph.replay()
    return replay.output


def _differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """In how many elements two tensors differ, bit by bit."""
    return int((_bits(a) != _bits(b)).sum())


def _unlike(first: torch.Tensor, second: torch.Tensor) -> int:
    """In how many elements two runs differ, but for those that are not a number in either."""
    return int(((_bits(first) != _bits(second)) & ~(first.isnan() & second.isnan())).sum())


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
