"""The gate: checks that an implementation passes before it is timed.

An output is compared with the float64 oracle, and the way in which it was computed is checked as well
(docs/method.md has the reasons). Each of these fails a check:

- elements that were not written, or are not finite: memory is poisoned before each run;
- bytes written outside the output: it is between guards, if the implementation allocates it with `outputs.like`;
- an output that is no plain tensor, since a subclass may compute it only when it is read;
- inputs that were changed, or returned as the output;
- the output for earlier inputs: inputs change in place from check to check, and a returned output is poisoned;
- in a call that has to be deterministic, 2 runs that differ in any bit; elsewhere, runs that differ more and more.
  Shared memory and registers of the multiprocessors hold other values in the second run;
- work that the calling stream does not order. The second run is called before that stream has written the inputs. That
  stream copies its output at once. A graph captured from the stream has to compute the result by itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from attnlab.measuring.gate import ordering, poison, rounding
from attnlab.measuring.gate.check import NONE, OUTPUTS, UNBOUNDED, Check, Deviation, Error
from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.case import Call, Replay
from attnlab.measuring.subjects.implementation import Attention, Broken, Numbers, Tensors, by_sequence, computed
from attnlab.measuring.subjects.inputs import Inputs
from attnlab.measuring.subjects.oracle import composed, of_each_head
from attnlab.runs.schema import EXTREMES
from attnlab.study.values import NORMAL

# The number of elements at the start of an output that serve as its fingerprint.
FINGERPRINT = 4096
# Runs that differ from the first in ever more elements, in the end in GROWTH times as many, are not merely rounded
# differently.
RUNS, GROWTH = 4, 10
UNLIKE = "differs between two runs on the same inputs, in {} of {} elements"
UNCAPTURED = "does work that the stream which calls it doesn't order: no graph of it can be captured"
LATE = "doesn't wait for the stream that calls it: differs in {} of {} elements when that has yet to write the inputs"


class Gate:
    """The oracle for one set of inputs, against which any number of implementations is checked.

    The mean error may be at most `GATE_FACTOR` times the framework's own on the same inputs. The largest may be that
    many times the sum of the framework's own and of the error of rounding the output once. Rounding scores to float32
    may cost more than the framework's own error, and then takes its place (`rounding.unavoidable`). In a forward pass
    on normal inputs this holds for the largest error only, as a mean is not small by luck.

    An implementation that multiplies other numbers than its inputs, such as e4m3 ones, is checked on those: they give
    the oracle and the framework's own error. The distance of its output from attention of the inputs as drawn is
    recorded too, but is no check.

    Args:
        given: Q, K and V, and in training the gradient of O; only the gate may change them.
        kind: the shape's values, or one of `schema.EXTREMES`.
        heads: in a forward pass, the heads whose values are compared, numbered over all batches; None for all. All
            other checks cover every head.
        sequences: the lengths of sequences that are packed end to end; empty if a batch has one length.
        scale: the factor of the scores; None for 1/√D.
        numbers: the numbers that are multiplied; by default, the inputs.
        backward: whether a call returns dQ, dK and dV alone.
    """

    def __init__(
        self,
        given: Inputs,
        causal: bool,
        kind: str = NORMAL,
        heads: Sequence[int] | None = None,
        sequences: tuple[int, ...] = (),
        scale: float | None = None,
        numbers: Numbers | None = None,
        backward: bool = False,
    ) -> None:
        self._inputs = given
        self._values = tuple(tensor.clone() for tensor in given)
        self._returned: Tensors | None = None
        self._heads = None if heads is None else torch.tensor(heads, device=given[0].device)
        returned = slice(int(backward), 1 if len(given) == 3 else len(OUTPUTS))
        self._names = OUTPUTS[returned]
        self._shapes = tuple(tensor.shape for tensor in (given[0], *given[:3]))[returned]
        right = partial(composed, scale=scale)
        attention: Attention = partial(by_sequence, right, sequences=sequences) if sequences else right
        self._numbers = numbers or Numbers(given)
        every = self._numbers.now()
        compared = every if heads is None else tuple(map(self._compared, of_each_head(*every)))
        wide = tuple(tensor.double() for tensor in compared)
        self._oracle = exact = computed(attention, wide, causal, scale)[returned]
        self._of_drawn = None if kind in EXTREMES else _judged(exact)
        if self._of_drawn is not None and not self._numbers.as_drawn:
            self._of_drawn = _judged(computed(attention, tuple(tensor.double() for tensor in given), causal))
        framework = self._numbers.composed(attention, compared, causal, scale, self._heads)[returned]
        self._bounds = list(
            zip(
                [Error.between(output, oracle) for output, oracle in zip(framework, exact, strict=True)],
                _unavoidable(compared, causal, kind, exact, sequences, scale)[returned],
                [rounding.units(oracle.abs().max(), given[0].dtype).item() / 2 for oracle in exact],
                strict=True,
            )
        )

    def check(self, output: Tensor | Tensors, faults: Sequence[str] = ()) -> Check:
        """Compare an output for this gate's inputs with the oracle.

        Args:
            output: O; in training O, dQ, dK and dV, or the last 3. The tensor with the worst error decides.
            faults: faults that are already known.
        """
        returned = outputs.each(output)
        if wrong := self._misshapen(returned):
            return Check(UNBOUNDED, *self._bounds[0], (*faults, wrong))
        known = tuple(dict.fromkeys(faults))
        each = zip(self.errors(returned), self._bounds, self._names, strict=True)
        checks = [Check(error, *bounds, known, name) for error, bounds, name in each]
        return max(checks, key=lambda check: check.strain)

    def examine(self, call: Call, earlier: set[bytes] | None = None, repeats: bool = True) -> Check:
        """Run `call` at least twice, and check its output and the way in which it is computed.

        Args:
            earlier: fingerprints of the outputs for earlier inputs; that of this output is added.
            repeats: whether every run has to give the same bits.
        """
        self._returned = None
        first, faults = self._run(call, 0)
        if self._misshapen(first):
            return self.check(first, faults)
        second, more = self._run(partial(ordering.before_inputs, call, self._inputs, self._values), 1)
        faults += more
        differing = unlike(first, second)
        if differing and repeats:
            again, _ = self._run(call, 1)
            faults.append((UNLIKE if unlike(first, again) else LATE).format(differing, _elements(first)))
        elif differing:
            faults += self._growing(call, first)
        if earlier is not None:
            fingerprint = _bits(first[0]).flatten()[:FINGERPRINT].cpu().numpy().tobytes()
            if fingerprint in earlier:
                faults.append("returned its output for earlier inputs")
            earlier.add(fingerprint)
        return self._worst([first, second], faults, differing, repeats)

    def examine_captured(self, call: Call, repeats: bool = True) -> Check:
        """Capture a graph of one call, which holds only work that the calling stream orders, and check its replay."""
        with outputs.guarded(outputs.POISONS[0]) as guards:
            try:
                replay = ordering.captured(call)
            except ordering.NotCaptured as error:
                return Check(UNBOUNDED, *self._bounds[0], (f"{UNCAPTURED}, {error}",))
        return self.examine_replay(replay, repeats, guards)

    def examine_replay(self, replay: Replay, repeats: bool = True, guards: outputs.Guards | None = None) -> Check:
        """Replay a graph that reads this gate's inputs twice, and check its outputs."""
        self._returned = None
        (first, faults), (second, more) = (self._run(partial(_replayed, replay), turn, guards) for turn in (0, 1))
        faults += more
        differing = unlike(first, second)
        if differing and repeats:
            faults.append(UNLIKE.format(differing, _elements(first)))
        return self._worst([first, second], faults, differing, repeats)

    def errors(self, returned: Tensor | Tensors) -> list[Error]:
        """The error of each tensor that a call returned, against the oracle."""
        return [
            Error.between(self._compared(tensor), oracle)
            for tensor, oracle in zip(outputs.each(returned), self._oracle, strict=True)
        ]

    @property
    def allowed(self) -> list[Error]:
        """The largest errors with which each tensor that a call returns passes."""
        return [Check(NONE, *bounds).allowed for bounds in self._bounds]

    def _worst(self, runs: list[Tensors], faults: list[str], differing: int, repeats: bool) -> Check:
        """The check of the first run; if runs may differ, that of the run with the largest error."""
        checked = runs[:1] if repeats else runs
        worst = max((self.check(run, faults) for run in checked), key=lambda check: check.strain)
        wanted = None if self._misshapen(runs[0]) else self._of_drawn
        drawn = None if wanted is None else Deviation.between(_judged(tuple(map(self._compared, runs[0]))), wanted)
        return replace(worst, differing=differing, drawn=drawn)

    def _growing(self, call: Call, first: Tensors) -> list[str]:
        """The fault of an implementation whose runs differ more and more from its first run."""
        found = [unlike(first, self._run(call, 1)[0]) for _ in range(RUNS)]
        if all(before < after for before, after in pairwise(found)) and found[-1] >= GROWTH * max(1, found[0]):
            counts = f"{', '.join(map(str, found[:-1]))} and {found[-1]}"
            return [f"differs more with every run on the same inputs: in {counts} of {_elements(first)} elements"]
        return []

    def _misshapen(self, returned: Tensors) -> str:
        """The fault in the shapes or dtypes of an output."""
        shapes = tuple(tensor.shape for tensor in returned)
        if shapes == self._shapes:
            dtypes = {tensor.dtype for tensor in returned} - {self._inputs[0].dtype}
            return f"returned {', '.join(map(str, dtypes))}, not {self._inputs[0].dtype}" if dtypes else ""
        there, wanted = (", ".join(str(tuple(shape)) for shape in each) for each in (shapes, self._shapes))
        return f"returned {there}, not {wanted}"

    def _run(self, call: Call, turn: int, guards: outputs.Guards | None = None) -> tuple[Tensors, list[str]]:
        """Copies of the outputs of a run on poisoned memory, and its faults; `turn`, 0 or 1, chooses the poison."""
        device = self._inputs[0].device
        poison.fill(device, poison.WORDS[turn])
        devices.synchronize(device)
        try:
            with outputs.guarded(outputs.POISONS[turn]) as fresh:
                returned = outputs.each(call())
            if others := [type(output).__name__ for output in returned if not isinstance(output, Tensor)]:
                raise Broken(f"returned {', '.join(others)}, and no tensor")
            at_once = tuple(output.clone() for output in returned)
            devices.synchronize(device)
            return tuple(map(self._numbers.widened, at_once)), self._faults(returned, at_once, guards or fresh)
        finally:
            for held, value in zip(self._inputs, self._values, strict=True):
                held.copy_(value)

    def _faults(self, returned: Tensors, at_once: Tensors, guards: outputs.Guards) -> list[str]:
        """The faults of a run, apart from its errors; `at_once` are copies that the calling stream made."""
        faults = guards.overruns()
        named = zip(("Q", "K", "V", "dO"), self._inputs, self._values, strict=False)
        if changed := [name for name, held, value in named if unlike((held,), (value,))]:
            faults.append(f"changed its inputs: {', '.join(changed)}")
        before = self._returned or (None,) * len(returned)
        self._returned = returned
        for output, copied, earlier in zip(returned, at_once, before, strict=False):
            faults += self._faults_of(output, copied, earlier, guards)
        return faults

    def _faults_of(self, output: Tensor, at_once: Tensor, earlier: Tensor | None, guards: outputs.Guards) -> list[str]:
        """The faults of one returned tensor; `earlier` is the same tensor of the previous run."""
        if wrong := outputs.disguised(output, self._inputs[0].device):
            return [wrong]
        if any(_overlap(output, held) for held in self._inputs):
            return ["returned memory of its inputs"]
        if any(size > 1 and not stride for size, stride in zip(output.shape, output.stride(), strict=True)):
            return ["returned elements that share memory"]
        faults, all_of_it = [], f"of {output.numel()} elements"
        if late := unlike((at_once,), (output,)):
            faults.append(
                f"wrote {late} {all_of_it} after the stream that called it had gone on: it works on another stream"
            )
        if unwritten := guards.unwritten(output, at_once):
            faults.append(f"{unwritten} {all_of_it} not written")
        elif earlier is not None and _overlap(output, earlier) and (unwritten := int(at_once.isnan().sum())):
            faults.append(f"returned what it had returned before, {unwritten} {all_of_it} not written anew")
        finite = at_once.float().isfinite() if at_once.itemsize == 1 else at_once.isfinite()
        if not_finite := int((~finite).sum()) - unwritten:
            faults.append(f"{not_finite} {all_of_it} are not finite")
        output.detach().fill_(torch.nan)  # an implementation that returns this memory again has to write it again
        return faults

    def _compared(self, tensor: Tensor) -> Tensor:
        return tensor if self._heads is None else tensor.flatten(0, 1)[self._heads].unsqueeze(0)


def _judged(returned: Tensors) -> Tensor:
    """The tensor whose accuracy is judged: O, or for a backward pass alone all gradients in one tensor."""
    return torch.cat([tensor.flatten() for tensor in returned]) if len(returned) == 3 else returned[0]


def _unavoidable(
    given: Tensors, causal: bool, kind: str, exact: Tensors, sequences: tuple[int, ...], scale: float | None
) -> Sequence[Error]:
    """The errors that rounding scores to float32 may cause in each output of any implementation; see `Gate`."""
    if len(given) > 3:  # of one key, dQ and dK are exactly 0, and so may be the framework's
        counts = given[0].dtype == torch.float32 or given[1].shape[2] == 1
        return rounding.unavoidable_in_training(given, causal, scale) if counts else len(OUTPUTS) * [NONE]
    if kind != NORMAL:
        return [rounding.unavoidable(given, causal, exact[0], sequences, scale)]
    if given[0].dtype != torch.float32:
        return [NONE]
    return [replace(rounding.unavoidable(given, causal, exact[0], sequences, scale), mean=0.0)]


def _replayed(replay: Replay) -> Tensor | Tensors:
    for output in outputs.each(replay.output):
        output.fill_(torch.nan)
    replay.graph.replay()
    return replay.output


def unlike(first: Tensors, second: Tensors) -> int:
    """The number of elements that differ in any bit, without those that are NaN in both."""
    return sum(
        int(((_bits(one) != _bits(other)) & ~(one.isnan() & other.isnan())).sum())
        for one, other in zip(first, second, strict=True)
    )


def _elements(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _bits(tensor: Tensor) -> Tensor:
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(integers[tensor.element_size()])


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
