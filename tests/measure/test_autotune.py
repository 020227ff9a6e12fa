"""`attnlab.tune` and `attend(autotune=True)` without a GPU. With one: test_gpu_backends.py."""

import re
import warnings
from functools import partial

import pytest
import torch
from conftest import forget_choices
from test_attend import OnGpu
from test_tune import Clock
from torch.nn.functional import scaled_dot_product_attention

import attnlab
from attnlab.base.errors import UserError
from attnlab.measuring.clocks import cuda_events, originals
from attnlab.measuring.instruments import environment
from attnlab.measuring.subjects import sdpa
from attnlab.measuring.subjects.case import Replay
from attnlab.measuring.subjects.implementation import Implementation
from attnlab.measuring.subjects.oracle import composed
from attnlab.runs import tuned
from attnlab.serving import attend
from attnlab.serving import trial as measured
from attnlab.serving import tune as autotune
from attnlab.serving.choices import CLOCKS

CONTROL = "control.sdpa.auto"
SIZES = (2, 4, 33, 32)
HERE = "NVIDIA H200", str(torch.__version__)


def tensors(*sizes: int, dtype=torch.float16) -> list[torch.Tensor]:
    return [torch.zeros(sizes or SIZES, dtype=dtype).as_subclass(OnGpu) for _ in range(3)]


def takes(ms, name, called, wrong=1):
    def call(q, k, v, causal=False, scale=None, is_causal=False):
        Clock.ns += ms * 1_000_000
        called.append(name)
        return wrong * composed(q, k, v, causal or is_causal, scale)

    return call


@pytest.fixture(autouse=True)
def gpu(monkeypatch, data):
    """A machine of which torch says that it has an H200, and tensors that say that they are on it."""
    forget_choices(monkeypatch)
    monkeypatch.setattr(autotune, "_refused", set())
    monkeypatch.setattr(tuned, "counted", True)
    monkeypatch.setattr(attend, "KIND", OnGpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: HERE[0])


@pytest.fixture
def called(monkeypatch):
    """What is called, by name: SDPA takes 5 ms, flash 4, cuDNN 2 but is wrong, math 16, and what is left raises."""
    names = []
    monkeypatch.setitem(sdpa.REGISTRY, "sdpa.math", Implementation("sdpa.math", takes(16, "math", names)))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(originals, "perf_counter_ns", lambda: Clock.ns)
    monkeypatch.setattr(cuda_events, "capture", lambda case, pool: setattr(case, "many", Replay(None, 1, None)))
    monkeypatch.setattr(
        attend,
        "_DIRECT",
        {"sdpa.flash": takes(4, "flash", names), "sdpa.cudnn": takes(2, "cudnn", names, wrong=2)},
    )
    monkeypatch.setattr(attend, "scaled_dot_product_attention", takes(5, "sdpa", names))
    return names


@pytest.fixture
def takings(monkeypatch, called):
    """The layouts that were timed. They are not: flash is said to take `takings.flash` µs where SDPA takes 10."""

    class Takings(list):
        flash = [8.0, 8.1] * 5

    made = Takings()

    def take(q, k, v, causal, scale, timings):
        measured._shape(q, k, v, causal)
        made.append((tuple(q.shape), causal, scale))
        us = {"sdpa.auto": [10.0, 10.1] * 5, CONTROL: [10.1, 10.0] * 5, "sdpa.flash": made.flash}
        return measured.Timed([measured.Block(timing, us, 0.0) for timing in timings], {"sdpa.cudnn": "too late"})

    monkeypatch.setattr(measured, "take", take)
    return made


def test_on_a_cpu_it_is_sdpa_compiled_too(monkeypatch):
    monkeypatch.undo()
    given = [torch.randn(SIZES, requires_grad=True) for _ in range(3)]
    call = partial(attend.attend, autotune=True)
    for one in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        torch.testing.assert_close(one(*given), scaled_dot_product_attention(*given))
    assert not attend._looked
    with pytest.raises(UserError, match=r"^attnlab.tune takes plain tensors on an NVIDIA GPU: [^\n]*$"):
        attnlab.tune(*given)


# What is measured


def test_who_passes_the_gate_and_is_faster_is_chosen_and_the_others_are_out_with_a_reason(called):
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
    seen = set()
    flash = attend._DIRECT["sdpa.flash"]
    monkeypatch.setitem(attend._DIRECT, "sdpa.flash", lambda q, *a, **n: seen.add(q.stride()) or flash(q, *a, **n))
    given = [torch.zeros(2, 33, 4, 32, dtype=torch.float16).as_subclass(OnGpu).transpose(1, 2) for _ in range(3)]
    assert attnlab.tune(*given, causal=True, scale=0.3).chosen == "sdpa.flash"
    assert seen == {given[0].stride()}
    assert not any(tensor.any() for tensor in given)


def test_where_sdpa_fails_nothing_is_timed(called, monkeypatch):
    def refuses(*_, **__):
        raise RuntimeError("No available kernel.")

    monkeypatch.setattr(attend, "scaled_dot_product_attention", refuses)
    with pytest.raises(UserError, match=r"^attnlab\.tune can't time SDPA on these tensors: No available kernel\.$"):
        attnlab.tune(*tensors())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out\nof memory"), RuntimeError("no stream")])
def test_what_fails_meanwhile_is_told_in_a_line(called, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(measured, "Gate", fails)
    said = " ".join(str(error).split())
    with pytest.raises(UserError, match=f"^attnlab.tune can't measure this: {said}$"):
        attnlab.tune(*tensors())


# What is decided and kept


@pytest.mark.parametrize("flash", [[10.0, 10.1] * 5, [11.0, 11.1] * 5, [5.0, 16.0] * 5])
def test_what_is_not_certainly_faster_is_not_chosen(takings, flash):
    takings.flash = flash
    found = attnlab.tune(*tensors())
    assert found.chosen == "sdpa.auto"
    assert str(found).startswith(
        "attend calls sdpa.auto for tensors of this layout, since nothing is certainly faster.\n"
    )
    assert tuned.load(*HERE) == {attend.layout_words(*tensors(), False, None): "sdpa.auto"}


def test_a_clock_that_says_slower_or_values_without_a_gain_decide_against_it(takings, called, monkeypatch):
    def block(timing, us):
        base = {"sdpa.auto": [10.0, 10.1] * 5, CONTROL: [10.1, 10.0] * 5}
        return measured.Block(timing, base | {"sdpa.flash": [us, us + 0.1] * 5}, 0.0)

    eager, device = CLOCKS
    for blocks, chosen in (
        ([block(eager, 8.0), block(device, 12.0)], "sdpa.auto"),
        ([block(eager, 8.0), block(eager, 10.0), block(device, 10.0)], "sdpa.auto"),
        ([block(eager, 8.0), block(device, 10.0)], "sdpa.flash"),
    ):
        monkeypatch.setattr(measured, "take", lambda *_, blocks=blocks: measured.Timed(blocks, {}))
        assert attnlab.tune(*tensors()).chosen == chosen


def test_autotune_measures_a_layout_once_and_plain_calls_and_later_processes_go_by_it(takings, called, monkeypatch):
    attend.attend(*tensors())
    for _ in range(3):
        attend.attend(*tensors(), autotune=True)
        attend.attend(*tensors(2, 4, 34, 32), autotune=True)
    attend.attend(*tensors(), scale=0.5, autotune=True)
    assert takings == [(SIZES, False, None), ((2, 4, 34, 32), False, None), (SIZES, False, 0.5)]
    assert called == ["sdpa"] + 7 * ["flash"]
    forget_choices(monkeypatch)
    attend.attend(*tensors())
    attend.attend(*tensors(), autotune=True)
    attend.attend(*tensors(2, 4, 35, 32))
    assert called[8:] == ["flash", "flash", "sdpa"]
    assert len(takings) == 3


def test_tensors_that_are_for_sdpa_in_any_case_are_not_tuned(takings, called, monkeypatch):
    monkeypatch.setattr(attend, "scaled_dot_product_attention", lambda q, k, v, **_: called.append("sdpa"))
    q, k, v = tensors()
    for given in ([q.requires_grad_(), k, v], [q[0], k[0], v[0]], [q, k, v[..., :16]]):
        attend.attend(*given, autotune=True)
    assert (takings, called) == ([], ["sdpa"] * 3)


def test_nothing_is_tuned_while_a_graph_is_captured(takings, called, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        attend.attend(*tensors(), autotune=True)
        with pytest.raises(UserError, match="while a CUDA graph is captured"):
            attnlab.tune(*tensors())
    assert (takings, called) == ([], ["sdpa"])
    attend.attend(*tensors(), autotune=True)
    assert (len(takings), called) == (1, ["sdpa", "flash"])


def test_what_can_not_be_tuned_is_told_in_a_line(takings, called):
    shared = torch.zeros(2, 1, 33, 32).as_subclass(OnGpu).expand(SIZES)
    for given, said in (
        ([torch.zeros(SIZES)] * 3, "takes plain tensors on an NVIDIA GPU: for others, attend calls SDPA"),
        ([None] * 3, "takes plain tensors"),
        ([tensor[0] for tensor in tensors()], "has nothing to choose"),
        ([shared] * 3, "can't fill tensors whose elements share memory"),
    ):
        with pytest.raises(UserError, match=rf"^attnlab\.tune {said}[^\n]*$"):
            attnlab.tune(*given)
    with warnings.catch_warnings(record=True) as warned:
        for other in (tensors(), [shared] * 3, tensors(2, 4, 34, 32), [shared] * 3):
            attend.attend(*other, autotune=True)
    (one,) = warned
    assert re.match(r"attend isn't tuned for Q \(2, 4, 33, 32\) [^\n]*: attnlab\.tune can't fill", str(one.message))
    assert called == ["flash", "sdpa", "flash", "sdpa"]


def test_a_folder_that_takes_no_file_is_warned_of_and_the_choice_serves_this_process(
    takings, called, monkeypatch, data
):
    data.parent.joinpath("cache").write_text("a file")
    with warnings.catch_warnings(record=True) as warned:
        attend.attend(*tensors(), autotune=True)
        attend.attend(*tensors(), autotune=True)
    assert [str(one.message).partition(":")[0] for one in warned] == [
        "what attnlab.tune found is kept in this process alone"
    ]
    assert (len(takings), called) == (1, ["flash"] * 2)
    with pytest.warns(UserWarning, match="this process alone"):
        found = attnlab.tune(*tensors())
    assert (found.file, str(found).splitlines()[-1]) == (None, "This holds for this process alone.")


def test_a_table_that_is_named_and_a_run_go_without_tuned_layouts(takings, called, monkeypatch, tmp_path, unlocked):
    attend.attend(*tensors(), autotune=True)
    made = attend.Dispatch(run="r", seal="s", device=HERE[0], torch=HERE[1], timing="eager clock", choices=[])
    named = tmp_path / "named.json"
    named.write_text(made.model_dump_json())
    attend.use(named)
    attend.attend(*tensors())
    environment.lock()
    attend.use()
    attend.attend(*tensors())
    assert called == ["flash", "sdpa", "sdpa"]
