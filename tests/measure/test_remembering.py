"""Timed calls compute instead of returning kept results, and every output is compared. Saboteurs in Python, on the CPU.

Kernels: test_gpu_gate.py.
"""

import random
from unittest.mock import Mock

import pytest
import torch
from conftest import gated, subjected, timed, told

from attnlab.measuring.gate import reference_check
from attnlab.measuring.gate.check import Error
from attnlab.measuring.gate.gate import GROWTH
from attnlab.measuring.gate.reference_check import Bound, ReferenceCheck, Tally
from attnlab.measuring.session.checks import gate_of
from attnlab.measuring.subjects import sdpa
from attnlab.measuring.subjects.implementation import Implementation, OutOfMemory
from attnlab.measuring.subjects.oracle import composed
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing
from attnlab.study.values import STANDARD

pytestmark = pytest.mark.usefixtures("locked")

SHAPE = Shape(2, 3, 65, 64, dtype="float32")
WARM, COLD = (Timing(clock="eager", cache=cache) for cache in ("warm", "cold"))


class Counts:
    """Computes honestly, and counts its computations."""

    computed = 0

    def __call__(self, q, k, v, causal):
        self.computed += 1
        return sdpa.sdpa(q, k, v, causal)


class RemembersTensors(Counts):
    """Returns an earlier result for tensors at the same addresses that torch reports as unchanged."""

    def __init__(self):
        self.kept = {}

    def key(self, *tensors):
        return tuple((tensor.data_ptr(), tensor.shape, tensor._version) for tensor in tensors)

    def __call__(self, q, k, v, causal):
        key = self.key(q, k, v)
        if key not in self.kept:
            self.kept[key] = super().__call__(q, k, v, causal)
        return self.kept[key].clone()


class RemembersValues(RemembersTensors):
    """The same for tensors of any size that begin with the same values."""

    def key(self, *tensors):
        return tuple(float(value) for tensor in tensors for value in tensor[0, 0, 0, :4].abs())


class ComputesAhead(Counts):
    """Computes at every second call and returns the same result at the next: first calls are never timed."""

    kept = None

    def __call__(self, q, k, v, causal):
        if self.kept is None:
            self.kept = super().__call__(q, k, v, causal)
            return self.kept.clone()
        kept, self.kept = self.kept, None
        return kept


class RarelyWrong(Counts):
    """Sets a head to 0 in every 61st call."""

    def __call__(self, q, k, v, causal):
        output = super().__call__(q, k, v, causal)
        if self.computed % 61 == 0:
            output[-1, -1] = 0
        return output


class OffByARounding(Counts):
    """Is off by one rounding: in one element, now and then, or in a growing number of elements."""

    def __init__(self, drifts=False):
        self.drifts, self.random = drifts, random.Random(0)

    def __call__(self, q, k, v, causal):
        output = super().__call__(q, k, v, causal)
        first = 0 if self.drifts else self.random.randrange(output.numel())
        some = output.view(-1)[first:][: 4**self.computed if self.drifts else 1]
        some.copy_(torch.nextafter(some, some + 1))
        return output


@pytest.mark.parametrize("cache", [WARM, COLD], ids=str)
@pytest.mark.parametrize("make", [Counts, RemembersTensors], ids=lambda make: make.__name__)
def test_who_remembers_has_nothing_to_remember_when_it_is_timed(make, cache):
    call = make()
    subject, _ = timed(call, SHAPE, cache, samples=2)
    assert subject.alive, subject.reason
    before = call.computed
    subject, samples = timed(call, SHAPE, cache, samples=20)
    assert subject.alive, subject.reason
    assert len(samples) == 20
    assert all(0 <= sample["strain"] <= 1 for sample in samples)
    gate = before - 2 * (2 if cache == WARM else 1)
    assert call.computed - before == gate + 20 * (2 if cache == WARM else 1)


@pytest.mark.parametrize("kind", [kind for kind in STANDARD if not kind.startswith("captured")])
def test_what_is_timed_on_other_values_stays_within_the_gate(kind):
    subject, samples = timed(Counts(), SHAPE.resized(values=kind), WARM, samples=5)
    assert subject.alive, subject.reason
    assert [sample["values"] for sample in samples] == [kind] * 5
    assert all(0 <= sample["strain"] <= 1 for sample in samples)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(RemembersValues, "normal")] + [(ComputesAhead, kind) for kind in ("normal", "sink 8", "positional 25", "scales")],
)
def test_who_remembers_values_or_computes_before_it_is_timed_computes_the_wrong(make, kind):
    subject, samples = timed(make(), SHAPE.resized(values=kind), WARM, samples=5)
    assert subject.status == "failed"
    where = "while timed, eager warm, round 0"
    assert subject.reason.startswith(f"{where}: error against sdpa.flash on the same inputs: max ")
    assert len(samples) == 5
    assert all(sample["strain"] > 1 for sample in samples)


@pytest.mark.parametrize("cache", [WARM, COLD], ids=str)
def test_who_is_wrong_in_one_of_61_calls_is_caught_in_100_samples(cache):
    subject, _ = timed(RarelyWrong(), SHAPE, cache)
    assert subject.status == "failed"
    assert subject.reason.startswith(f"while timed, {cache}, round ")


def test_who_differs_by_a_rounding_is_marked_and_timed_and_who_differs_nowhere_is_not():
    peer = Implementation("peer.saboteur", OffByARounding())
    subject, checks = gated(peer, SHAPE)
    assert subject.alive, subject.reason
    assert checks["differing"].between(1, 2).all()
    subject, samples = timed(peer, SHAPE, WARM, samples=5)
    assert (subject.alive, len(samples)) == (True, 5)
    _, checks = gated(Implementation("peer.honest", Counts()), SHAPE)
    assert (checks["differing"] == 0).all()


def test_who_differs_more_and_more_is_caught():
    subject, _ = gated(Implementation("peer.saboteur", OffByARounding(drifts=True)), SHAPE)
    assert subject.reason.startswith("before timing, call: differs more with every run on the same inputs: in ")
    assert GROWTH <= 4**3


# The reference


def appointed(windows):
    reference = ReferenceCheck(windows)
    windows.draw(1)
    reference.appoint(gate_of(windows))
    return reference


def test_where_memory_does_not_hold_a_reference_the_next_one_serves(monkeypatch):
    full = Mock(side_effect=torch.OutOfMemoryError("no room"))
    _, windows, _ = subjected(sdpa.sdpa, SHAPE, "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(reference_check, "REFERENCES", (Implementation("full", full), reference_check.COMPOSED))
        assert appointed(windows).name == reference_check.COMPOSED.name
    monkeypatch.setattr(ReferenceCheck, "_computed", full)
    assert "no room" in told(lambda: ReferenceCheck(windows).appoint(gate_of(windows)), OutOfMemory)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 4, 65, 32, dtype="bfloat16"),
        Shape(2, 4, 1, 32, kv_heads=2, kv_len=70),
        Shape(3, 4, 50, 32, lengths="spread"),
        Shape(2, 3, 33, 32, dtype="float32", direction="training"),
        Shape(2, 3, 33, 32, dtype="bfloat16", direction="backward", values="sd 24"),
    ],
    ids=str,
)
def test_the_reference_is_as_right_as_what_passes_the_gate(shape):
    session, windows, subject = subjected(Implementation("sdpa.auto", sdpa.sdpa, ragged=sdpa.sdpa_ragged), shape, "cpu")
    reference = appointed(windows)
    windows.draw(7)
    tally = Tally(reference, 2, session.device)
    tally.compare(subject.case.call())
    wrong = subject.case.call()
    (wrong[-1] if isinstance(wrong, tuple) else wrong)[0, -1, -1] += 1
    tally.compare(wrong)
    right, wrong = tally.read()
    assert 0 <= right.strain <= 1 < wrong.strain
    assert str(wrong).startswith(f"error against {reference.name} on the same inputs: max ")


def test_an_output_is_poisoned_once_it_is_compared():
    session, windows, subject = subjected(sdpa.sdpa, SHAPE, "cpu")
    tally = Tally(appointed(windows), 3, session.device)
    output = subject.case.call()
    tally.compare(output)
    assert output.isnan().all()
    tally.compare(output)
    first, second = tally.read()
    assert first.strain <= 1
    assert second.strain == float("inf")


def test_the_reference_looks_at_what_is_there_now():
    _, windows, _ = subjected(sdpa.sdpa, SHAPE, "cpu")
    reference = appointed(windows)
    first = reference.look()[0][0].clone()
    windows.draw(3)
    assert torch.equal(reference.look()[0][0], first)
    reference.forget()
    assert not torch.equal(reference.look()[0][0], first)
    right = sdpa.sdpa(*windows[0], False)
    bound = reference.bounds[0]
    assert Error.between(reference.look()[0][0], right.double()).within(bound.at(bound.unit))


@pytest.mark.parametrize(("call", "status"), [(composed, "measured"), (ComputesAhead(), "failed")])
def test_an_output_that_is_farther_off_than_other_values_allow_is_judged_on_its_own(monkeypatch, call, status):
    appoint, bounds_on, asked = ReferenceCheck.appoint, ReferenceCheck.bounds_on, []

    def strictly(reference, gate):
        # As if the gate's values had by chance been easier than all timed values.
        appoint(reference, gate)
        tiny = Error(1e-15, 1e-15)
        reference.bounds = [Bound(tiny, tiny, unit=0.0) for _ in reference.bounds]

    monkeypatch.setattr(ReferenceCheck, "appoint", strictly)
    monkeypatch.setattr(ReferenceCheck, "bounds_on", lambda *given: asked.append(given[2]) or bounds_on(*given))
    subject, samples = timed(Implementation("peer.any", call), SHAPE, WARM, samples=3)
    assert subject.status == status, subject.reason
    assert asked == [0] * (3 if subject.alive else 1)
    assert all((sample["strain"] <= 1) == subject.alive for sample in samples)


def test_rounding_may_cost_more_where_outputs_are_larger():
    # No element reached 2 when it was measured: the error is tiny by chance, although rounding can cost 2^-11 there.
    bound = Bound(Error(2.0**-10, 1e-5), Error(1e-5, 1e-6), unit=2.0**-10)
    assert bound.at(2.0**-10) == Error(1.5 * 2.0**-10, 1e-5 + 1e-6)
    assert bound.at(2.0**-9) == Error(1.5 * 2.0**-9, 1e-5 + 1e-6)
    assert bound.at(2.0**-14) == bound.at(2.0**-10)
    assert Bound(Error(0.5, 0.1), Error(0.25, 0.1), unit=2.0**-10).at(2.0**-10) == Error(0.75, 0.1 + 0.1)


def test_two_right_outputs_may_be_a_unit_apart_on_other_values():
    shape = Shape(1, 1, 4, 64, dtype="float16")
    session, windows, _ = subjected(sdpa.sdpa, shape, "cpu")
    for memory in windows[0]:
        memory.div_(4)
    tally = Tally(appointed(windows), 2, session.device)
    for memory in windows[0]:
        memory.mul_(16)
    tally._reference.forget()
    for units in (1, 8):
        output = tally._reference.look()[0][0].clone()
        largest = output.abs().argmax()
        output.view(-1)[largest] += units * torch.finfo(torch.float16).eps * 2.0 ** output.abs().max().log2().floor()
        tally.compare(output)
    near, far = tally.read()
    assert near.strain <= 1 < far.strain
