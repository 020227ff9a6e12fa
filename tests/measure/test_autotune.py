"""`attnlab.tune` and `attend(autotune=True)` without a GPU. With a GPU: test_gpu_backends.py."""

import re
import warnings
from functools import partial
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from conftest import forget_choices, table, told
from test_attend import Q, tensor
from test_tune import Clock
from torch.nn.functional import scaled_dot_product_attention

import attnlab
from attnlab.measuring.clocks import cuda_events, originals
from attnlab.measuring.instruments import environment
from attnlab.measuring.subjects import sdpa
from attnlab.measuring.subjects.case import Replay
from attnlab.measuring.subjects.implementation import Implementation
from attnlab.measuring.subjects.oracle import composed
from attnlab.runs import tuned
from attnlab.serving import attend, calls, trial, tune
from attnlab.serving.choices import CLOCKS

HERE = "NVIDIA H200", str(torch.__version__)
OTHER = (2, 4, 34, 32)


def tensors(*sizes: int) -> list[torch.Tensor]:
    return [tensor(*sizes or Q) for _ in range(3)]


def takes(ms, name, called, wrong=1):
    def call(q, k, v, causal=False, scale=None, is_causal=False):
        Clock.ns += ms * 1_000_000
        called.append(name)
        return wrong * composed(q, k, v, causal or is_causal, scale)

    return call


@pytest.fixture(autouse=True)
def gpu(monkeypatch, h200):
    """A machine on which torch reports an H200, and tensors that report this GPU."""
    forget_choices(monkeypatch)
    monkeypatch.setattr(tune, "_refused", set())
    monkeypatch.setattr(tuned, "counted", True)
    monkeypatch.setattr(calls, "KIND", type(tensor(1)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.fixture
def called(monkeypatch):
    """The names of called backends: SDPA takes 5 ms, flash 4, cuDNN 2 but is wrong, math 16; all others raise."""
    names = []
    monkeypatch.setitem(sdpa.REGISTRY, "sdpa.math", Implementation("sdpa.math", takes(16, "math", names)))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(originals, "perf_counter_ns", lambda: Clock.ns)
    monkeypatch.setattr(cuda_events, "capture", lambda case, pool: setattr(case, "many", Replay(None, 1, None)))
    direct = {"sdpa.flash": takes(4, "flash", names), "sdpa.cudnn": takes(2, "cudnn", names, wrong=2)}
    monkeypatch.setattr(calls, "_DIRECT", direct)
    monkeypatch.setattr(calls, "scaled_dot_product_attention", takes(5, "sdpa", names))
    return names


def samples(timing, *flash, values="normal"):
    """Samples with these latencies of flash, in µs, and 10 µs for SDPA."""
    us = {"sdpa.auto": (10.0, 10.1), "control.sdpa.auto": (10.1, 10.0), "sdpa.flash": flash}
    return [trial.row(name, values, timing, one) for name, taken in us.items() for one in 5 * taken]


@pytest.fixture
def takings(monkeypatch, called):
    """The timed layouts. Nothing is timed: `takings.rows` are the samples."""

    class Takings(list):
        rows = ()

    made = Takings()
    made.rows = [row for timing in CLOCKS for row in samples(timing, 8.0, 8.1)]

    def take(q, k, v, causal, scale, timings):
        trial.require_shape(q, k, v, causal)
        made.append((tuple(q.shape), causal, scale))
        return pd.DataFrame(made.rows), {"sdpa.cudnn": "too late"}

    monkeypatch.setattr(trial, "take", take)
    return made


def test_on_a_cpu_it_is_sdpa_compiled_too(monkeypatch):
    monkeypatch.undo()
    given = [torch.randn(Q, requires_grad=True) for _ in range(3)]
    call = partial(attend.attend, autotune=True)
    for one in (call, torch.compile(call, fullgraph=True, backend="eager")):
        torch.testing.assert_close(one(*given), scaled_dot_product_attention(*given))
    assert calls.layouts is None
    assert told(lambda: attnlab.tune(*given)).startswith("attnlab.tune takes plain tensors on an NVIDIA GPU: ")


# Samples


def test_the_fastest_that_passes_the_gate_is_chosen_and_the_others_are_out_with_a_reason(called):
    found = attnlab.tune(*tensors())
    assert found.chosen == "sdpa.flash"
    assert found.speedups["sdpa.flash"].estimate == pytest.approx(1.25)
    assert "error against float64" in found.out["sdpa.cudnn"]
    assert found.out["sdpa.math"] == "takes 3.2 times as long as sdpa.auto"
    assert set(found.out) == {"sdpa.cudnn", "sdpa.efficient", "sdpa.math", "kernel.best"}
    assert not any("\n" in reason for reason in found.out.values())
    called.clear()
    attend.attend(*tensors())
    assert called == ["flash"]
    said = str(found).splitlines()
    assert said[0] == "attend calls sdpa.flash for tensors of this layout."
    assert said[1].endswith(": sdpa.flash 1.250 (1.250 to 1.250).")
    assert said[-1] == f"This is kept in {tuned.path(*HERE)}."


def test_strides_are_those_of_the_tensors_and_values_stay(called, monkeypatch):
    seen, flash = set(), calls._DIRECT["sdpa.flash"]
    monkeypatch.setitem(calls._DIRECT, "sdpa.flash", lambda q, *a, **n: seen.add(q.stride()) or flash(q, *a, **n))
    given = [one.transpose(1, 2) for one in tensors(2, 33, 4, 32)]
    assert attnlab.tune(*given, causal=True, scale=0.3).chosen == "sdpa.flash"
    assert seen == {given[0].stride()}
    assert not any(tensor.any() for tensor in given)


@pytest.mark.parametrize(
    ("module", "name", "error", "said"),
    [
        (calls, "scaled_dot_product_attention", RuntimeError("No kernel."), "time SDPA on these tensors: No kernel."),
        (trial, "Gate", torch.OutOfMemoryError("CUDA out\nof memory"), "measure this: CUDA out of memory"),
        (trial, "Gate", RuntimeError("no stream"), "measure this: no stream"),
    ],
)
def test_a_failure_meanwhile_is_told_in_a_line(called, monkeypatch, module, name, error, said):
    monkeypatch.setattr(module, name, Mock(side_effect=error))
    assert told(lambda: attnlab.tune(*tensors())) == f"attnlab.tune can't {said}"


# The choice, and its file

EAGER, DEVICE = CLOCKS


@pytest.mark.parametrize(
    ("blocks", "chosen"),
    [
        ([(EAGER, 10.0, 10.1), (DEVICE, 10.0, 10.1)], "sdpa.auto"),
        ([(EAGER, 5.0, 16.0), (DEVICE, 5.0, 16.0)], "sdpa.auto"),  # an uncertain difference
        ([(EAGER, 8.0, 8.1), (DEVICE, 12.0, 12.1)], "sdpa.auto"),
        ([(EAGER, 8.0, 8.1), (EAGER, 10.0, 10.1), (DEVICE, 10.0, 10.1)], "sdpa.auto"),  # another input distribution
        ([(EAGER, 8.0, 8.1), (DEVICE, 10.0, 10.1)], "sdpa.flash"),
    ],
)
def test_the_choice_is_faster_by_one_clock_on_all_values_and_slower_by_none(takings, blocks, chosen):
    takings.rows = [row for number, block in enumerate(blocks) for row in samples(*block, values=str(number))]
    found = attnlab.tune(*tensors())
    nothing = ", since nothing is certainly faster" if chosen == "sdpa.auto" else ""
    assert str(found).startswith(f"attend calls {chosen} for tensors of this layout{nothing}.\n")
    assert tuned.load(*HERE) == {calls.layout_words(*tensors(), False, None): chosen}


def test_autotune_measures_a_layout_once_and_plain_calls_and_later_processes_go_by_it(takings, called, monkeypatch):
    attend.attend(*tensors())
    for _ in range(3):
        attend.attend(*tensors(), autotune=True)
        attend.attend(*tensors(*OTHER), autotune=True)
    attend.attend(*tensors(), scale=0.5, autotune=True)
    assert takings == [(Q, False, None), (OTHER, False, None), (Q, False, 0.5)]
    assert called == ["sdpa"] + 7 * ["flash"]
    forget_choices(monkeypatch)
    attend.attend(*tensors())
    attend.attend(*tensors(), autotune=True)
    attend.attend(*tensors(2, 4, 35, 32))
    assert called[8:] == ["flash", "flash", "sdpa"]
    assert len(takings) == 3


def test_tensors_that_are_for_sdpa_in_any_case_are_not_tuned(takings, called, monkeypatch):
    monkeypatch.setattr(calls, "scaled_dot_product_attention", lambda q, k, v, **_: called.append("sdpa"))
    q, k, v = tensors()
    for given in ([q.requires_grad_(), k, v], [q[0], k[0], v[0]], [q, k, v[..., :16]]):
        attend.attend(*given, autotune=True)
    assert (takings, called) == ([], ["sdpa"] * 3)


def test_nothing_is_tuned_while_a_graph_is_captured(takings, called, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        attend.attend(*tensors(), autotune=True)
        assert "while a CUDA graph is captured" in told(lambda: attnlab.tune(*tensors()))
    assert (takings, called) == ([], ["sdpa"])
    attend.attend(*tensors(), autotune=True)
    assert (len(takings), called) == (1, ["sdpa", "flash"])


def test_a_refusal_to_tune_is_told_in_a_line_and_once_for_each_layout(takings, called):
    shared = tensor(2, 1, 33, 32, dtype=torch.float32).expand(Q)
    for given, said in (
        ([torch.zeros(Q)] * 3, "takes plain tensors on an NVIDIA GPU: for others, attend calls SDPA"),
        ([None] * 3, "takes plain tensors"),
        ([one[0] for one in tensors()], "has nothing to choose"),
        ([shared] * 3, "can't fill tensors whose elements share memory"),
    ):
        assert told(partial(attnlab.tune, *given)).startswith(f"attnlab.tune {said}")
    with warnings.catch_warnings(record=True) as warned:
        for other in (tensors(), [shared] * 3, tensors(*OTHER), [shared] * 3):
            attend.attend(*other, autotune=True)
    (one,) = warned
    assert re.match(r"attend isn't tuned for Q \(2, 4, 33, 32\) [^\n]*: attnlab\.tune can't fill", str(one.message))
    assert called == ["flash", "sdpa", "flash", "sdpa"]


def test_a_folder_that_takes_no_file_is_warned_of_and_the_choice_serves_this_process(takings, called, data):
    data.parent.joinpath("cache").write_text("a file")
    with pytest.warns(UserWarning, match="^what attnlab.tune found is kept in this process alone: ") as warned:
        _ = [attend.attend(*tensors(), autotune=True) for _ in range(2)]
    assert (len(warned), len(takings), called) == (1, 1, ["flash"] * 2)
    with pytest.warns(UserWarning, match="this process alone"):
        found = attnlab.tune(*tensors())
    assert (found.file, str(found).splitlines()[-1]) == (None, "This holds for this process alone.")


def test_a_table_that_is_named_and_a_run_go_without_tuned_layouts(takings, called, tmp_path, unlocked):
    attend.attend(*tensors(), autotune=True)
    named = tmp_path / "named.json"
    named.write_text(table().model_dump_json())
    attend.use(named)
    attend.attend(*tensors())
    environment.lock()
    attend.use()
    attend.attend(*tensors())
    assert called == ["flash", "sdpa", "sdpa"]
