"""Saboteurs in Python in the timing process: they replace the clock, or return outputs that are not computed yet."""

import time
from functools import partial

import pytest
import torch
from conftest import HonestFor, gated, timed

from attnlab.measuring.clocks import cuda_events, originals
from attnlab.measuring.subjects import outputs, sdpa
from attnlab.measuring.subjects.implementation import Broken
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

pytestmark = pytest.mark.usefixtures("locked")

SHAPE = Shape(2, 3, 65, 64, dtype="float32")
WARM = Timing(clock="eager", cache="warm")
GATED = 40
"""More calls than there are before the rounds."""


def slows_the_clock(q, k, v, causal):
    time.perf_counter_ns = lambda now=originals.perf_counter_ns: now() // 1000
    return sdpa.sdpa(q, k, v, causal)


def spoils_inputs(q, k, v, causal):
    v.mul_(2)
    return sdpa.sdpa(q, k, v, causal)


class Later(torch.Tensor):
    """A tensor that is computed when its content is read."""

    compute = None

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        for later in arguments:
            if isinstance(later, Later) and later.compute:
                compute, later.compute = later.compute, None
                later.as_subclass(torch.Tensor).copy_(compute())
        return super().__torch_function__(function, types, arguments, named or {})


def computes_later(q, k, v, causal):
    later = torch.empty_like(q).as_subclass(Later)
    later.compute = partial(sdpa.sdpa, q, k, v, causal)
    return later


@pytest.mark.parametrize(
    ("saboteur", "fault"),
    [
        (slows_the_clock, "replaced time.perf_counter_ns, by which it is timed"),
        (spoils_inputs, "changed its inputs"),
        (computes_later, "returned a Later on cpu, which is no plain tensor on cpu"),
    ],
)
def test_who_meddles_is_not_timed_or_loses_the_sample(saboteur, fault):
    subject, _ = gated(saboteur, SHAPE)
    assert subject.status == "failed"
    assert fault in subject.reason
    subject, samples = timed(HonestFor(GATED, saboteur), SHAPE, WARM, samples=100)
    assert (subject.status, subject.reason) == ("failed", f"while timed, eager warm: {fault}")
    assert 0 < len(samples) < 100
    assert time.perf_counter_ns is originals.perf_counter_ns


def test_who_puts_the_clock_back_was_timed_by_the_one_that_was_taken(monkeypatch):
    def reading():
        monkeypatch.undo()
        return 0

    def call():
        monkeypatch.setattr(time, "perf_counter_ns", reading)
        return now()

    now = originals.perf_counter_ns
    before = now()
    latency_us, inside = cuda_events.timed(torch.device("cpu"), call)
    assert 0 < latency_us < (now() - before) / 1e3
    assert before < inside


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch.cuda, "Event"),
        (torch.cuda, "synchronize"),
        (torch.cuda.Event, "elapsed_time"),
        (torch.cuda.Event, "__getattribute__"),
        (torch.cuda.CUDAGraph, "replay"),
        (torch.cuda.graph, "__enter__"),
    ],
)
def test_whatever_is_replaced_is_named_and_put_back(owner, name):
    before = vars(owner).get(name)
    with pytest.raises(Broken, match=rf"^replaced \S*{name}, by which it is timed$"), originals.intact():
        setattr(owner, name, lambda *_: 0)
    assert vars(owner).get(name) is before
    with originals.intact():
        pass


def test_what_comes_of_a_replaced_clock_is_told_as_that():
    def call():
        torch.cuda.Event = lambda **_: 0
        torch.cuda.Event().record()

    with pytest.raises(Broken, match=r"^replaced torch\.cuda\.Event, by which it is timed$"), originals.intact():
        call()


def test_the_plain_is_no_disguise():
    plain = torch.zeros(2)
    assert outputs.disguised(plain, plain.device) == ""
    assert outputs.disguised(torch.zeros(2, device="cpu:0"), torch.device("cpu")) == ""  # with any index of the device
    assert outputs.disguised(torch._to_functional_tensor(plain), plain.device)
    assert outputs.disguised(torch.zeros(2, device="meta"), plain.device)
