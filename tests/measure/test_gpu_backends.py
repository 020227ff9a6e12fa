"""Shapes beyond plain self-attention, peers, and `attnlab.attend` by a table, on an NVIDIA GPU (`make test-gpu`)."""

from functools import partial
from itertools import product

import pytest
import torch
from conftest import forget_choices, gated
from torch.nn.functional import scaled_dot_product_attention

import attnlab
from attnlab.measure.gate import ordering
from attnlab.measure.gate.gate import Gate
from attnlab.measure.instruments import inspection
from attnlab.measure.peers import cudnn
from attnlab.measure.subjects import attend, inputs, registry
from attnlab.measure.subjects.implementation import Unsupported, attempt
from attnlab.measure.subjects.sdpa import REGISTRY
from attnlab.runs import tuned
from attnlab.study.shapes import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu", "released")]

GPU = torch.device("cuda")
PLAIN = Shape(4, 8, 512, 64)
GROUPED = Shape(2, 8, 257, 64, causal=True, dtype="bfloat16", kv_heads=2)
DECODE = Shape(4, 8, 1, 64, kv_len=513)
GROUPED_DECODE = DECODE.resized(kv_heads=2)
SPREAD = Shape(4, 8, 200, 64, lengths="spread")
CAUSAL_SPREAD = SPREAD.resized(causal=True)
TRAINING = Shape(2, 4, 128, 64, direction="training")
CAUSAL_TRAINING = Shape(8, 8, 512, 64, causal=True, direction="training")
SHAPES = [GROUPED, DECODE, GROUPED_DECODE, SPREAD, CAUSAL_SPREAD, TRAINING, CAUSAL_TRAINING]
# cuDNN's kernel for one query isn't the same in every bit from run to run, and torch's call of it for sequences end to
# end can't be captured, nor can the math backend's: the gate refuses all these, and so what SDPA chooses for one query.
CAUGHT = {
    ("sdpa.cudnn", DECODE): "differ",
    ("sdpa.cudnn", GROUPED_DECODE): "differ",
    ("sdpa.auto", DECODE): "differ",
    ("sdpa.auto", GROUPED_DECODE): "differ",
    ("sdpa.cudnn", SPREAD): "can be captured",
    ("sdpa.math", SPREAD): "can be captured",
    ("sdpa.cudnn", CAUSAL_SPREAD): "can be captured",
}
SERVES = {
    "sdpa.auto": SHAPES,
    "sdpa.flash": SHAPES,
    "sdpa.cudnn": [GROUPED, TRAINING, CAUSAL_TRAINING],
    "sdpa.efficient": [DECODE, CAUSAL_SPREAD, TRAINING, CAUSAL_TRAINING],
    "sdpa.math": [GROUPED, DECODE, GROUPED_DECODE, TRAINING, CAUSAL_TRAINING],
}
"""The shapes that a backend of SDPA has to serve; others it may refuse with a reason."""


def ran(call):
    """The kernels of one call, the longest first."""
    call()
    torch.cuda.synchronize()
    return inspection.kernels(call, GPU)


# SDPA's backends


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SERVES)
def test_a_backend_passes_or_says_why_not(name, shape):
    subject, checks = gated(REGISTRY[name], shape, "cuda")
    if subject.status == "skipped":
        assert shape not in SERVES[name], subject.reason
        assert subject.reason
        assert "\n" not in subject.reason
        assert "prototype" not in subject.reason
    elif subject.status == "failed":
        assert CAUGHT.get((name, shape), "nothing") in subject.reason, f"{name} at {shape}: {subject.reason}"
    else:
        assert subject.alive, subject.reason
        assert checks["passed"].all()
        assert {"call", "graph of 1"} == set(checks["route"])


@pytest.mark.parametrize("name", ["sdpa.flash", "sdpa.efficient"])
def test_what_ran_are_kernels_and_no_calls_of_the_host(name):
    case = REGISTRY[name].bound(inputs.draw(PLAIN, 0, GPU), PLAIN)
    with REGISTRY[name].selected():
        names = ran(case)
    assert names
    assert not [one for one in names if one.startswith(("cuda", "cuLaunch", "Activity"))], names


def test_stale_gradients_are_caught_on_a_gpu_too():
    kept = []
    honest = REGISTRY["sdpa.flash"]

    class Stale(type(honest)):
        def bound(self, *given):
            call = super().bound(*given)

            def stale():
                o, *gradients = call()
                kept.append([gradient.clone() for gradient in gradients])
                return o, *(gradient.clone() for gradient in kept[0])

            return stale

    subject, _ = gated(Stale(honest.name, honest.call, honest.selected), TRAINING, "cuda")
    assert subject.status == "failed"
    assert "error of d" in subject.reason, subject.reason


# Peers


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 4, 256, 64),
        Shape(2, 4, 256, 64, causal=True),
        Shape(2, 8, 256, 64, causal=True, dtype="bfloat16", kv_heads=2),
        Shape(4, 8, 1, 64, dtype="bfloat16", kv_heads=2, kv_len=512),
        CAUSAL_TRAINING,
    ],
    ids=str,
)
def test_flex_attention_passes(shape):
    subject, checks = gated(registry.find("peer.flex"), shape, "cuda")
    assert subject.alive, subject.reason
    assert checks["passed"].all()


def test_flex_attention_is_compiled():
    shape = Shape(2, 4, 256, 64)
    names = ran(registry.find("peer.flex").bound(inputs.draw(shape, 0, GPU), shape))
    assert "triton" in names[0], names


@pytest.mark.parametrize("shape", [PLAIN.resized(causal=True), GROUPED, CAUSAL_SPREAD, CAUSAL_TRAINING], ids=str)
def test_flash_attn_4_passes_where_it_is_installed(shape):
    peer = registry.find("peer.flash4")
    subject, _ = gated(peer, shape, "cuda")
    if subject.status == "skipped" and subject.reason.startswith("flash-attn-4"):
        pytest.skip(subject.reason)
    assert subject.alive, subject.reason


@pytest.mark.parametrize(
    "shape",
    [
        PLAIN,
        PLAIN.resized(causal=True, head_dim=128, dtype="bfloat16"),
        PLAIN.resized(causal=True, layout="tokens first"),
        PLAIN.resized(causal=True, seq_len=200, kv_len=712),
        PLAIN.resized(scale=0.05, seq_len=333),
        GROUPED,
    ],
    ids=str,
)
def test_cudnn_by_its_frontend_passes_where_it_is_installed(shape):
    subject, checks = gated(cudnn_by_its_frontend(), shape, "cuda")
    assert subject.alive, subject.reason
    assert checks["passed"].all()
    assert {"call", "graph of 1"} == set(checks["route"])


def test_cudnn_runs_its_own_kernels_and_plans_a_layout_once():
    peer = cudnn_by_its_frontend()
    names = ran(peer.bound(inputs.draw(PLAIN, 0, GPU), PLAIN))
    assert "sdpa" in names[0], names
    planned = dict(cudnn._plans)
    peer.bound(inputs.draw(PLAIN, 1, GPU), PLAIN)()
    assert cudnn._plans == planned


@pytest.mark.parametrize("shape", [PLAIN.resized(dtype="float32"), PLAIN.resized(head_dim=60)], ids=str)
def test_what_cudnn_does_not_serve_it_refuses_in_a_line(shape):
    subject, _ = gated(cudnn_by_its_frontend(), shape, "cuda")
    assert subject.status == "skipped", subject.reason
    assert "\n" not in subject.reason


@pytest.mark.parametrize(
    "shape",
    [
        PLAIN,
        PLAIN.resized(causal=True, head_dim=128, dtype="bfloat16"),
        GROUPED.resized(layout="tokens first"),
        Shape(3, 8, 1, 64, kv_heads=2, kv_len=320),
        Shape(2, 8, 5, 128, True, "bfloat16", kv_heads=2, kv_len=777, layout="tokens first"),
        Shape(1, 8, 16, 64, True, kv_heads=2, kv_len=512),
        PLAIN.resized(scale=0.05, seq_len=333),
        CAUSAL_SPREAD,
    ],
    ids=str,
)
def test_flashinfer_passes_where_it_is_installed(shape):
    subject, checks = gated(registry.find("peer.flashinfer"), shape, "cuda")
    if subject.status == "skipped" and subject.reason.startswith(("FlashInfer is not", "FlashInfer lacks")):
        pytest.skip(subject.reason)
    assert subject.alive, subject.reason
    assert checks["passed"].all()


def cudnn_by_its_frontend():
    """The peer; skips where its package isn't installed."""
    try:
        cudnn.installed(GPU)
    except Unsupported as error:
        pytest.skip(str(error))
    return registry.find("peer.cudnn")


# `attnlab.attend` by a table


def needs(name: str, shape: Shape) -> list[str]:
    """The kernels that an implementation runs when it is called by its name; skips if it isn't available here."""
    implementation = registry.find(name)
    call = implementation.bound(inputs.draw(shape, 0, GPU), shape)
    try:
        with implementation.selected():
            attempt(call)
            return ran(call)
    except Unsupported as error:
        pytest.skip(f"{name}: {error}")


CHOSEN = ["sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math", "kernel.overlap"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *product(CHOSEN, (PLAIN, PLAIN.resized(causal=True))),
        *product(("sdpa.flash", "sdpa.cudnn"), (GROUPED,)),
        ("sdpa.flash", DECODE),
    ],
    ids=str,
)
def test_attend_runs_the_very_kernel_that_the_table_names(by_table, name, shape):
    named = needs(name, shape)
    by_table((shape, name))
    drawn = inputs.draw(shape, 0, GPU)
    call = partial(attnlab.attend, *drawn, shape.causal)
    assert set(ran(call)) == set(named)
    gate = Gate(drawn, shape.causal)
    for check in (gate.examine(call), gate.examine_captured(call)):
        assert check.passed, check.reason


def test_the_direct_operators_compute_what_sdpa_does_bit_for_bit():
    drawn = inputs.draw(PLAIN, 0, GPU)
    for name, direct in attend._DIRECT.items():
        with REGISTRY[name].selected():
            expected = scaled_dot_product_attention(*drawn, is_causal=True)
        assert torch.equal(direct(*drawn, True), expected), name


def test_shapes_apart_from_the_table_are_for_sdpa(by_table):
    by_table((PLAIN, "sdpa.math"))
    other = PLAIN.resized(seq_len=256)
    expected = needs("sdpa.auto", other)
    drawn = inputs.draw(other, 0, GPU)
    assert set(ran(partial(attnlab.attend, *drawn))) == set(expected)


@pytest.mark.parametrize("name", CHOSEN)
def test_attend_serves_any_layout_by_itself_or_by_sdpa(by_table, name):
    needs(name, PLAIN)
    by_table((PLAIN, name))
    drawn = inputs.draw(PLAIN, 0, GPU)
    expected = scaled_dot_product_attention(*(tensor.double() for tensor in drawn))
    layouts = {
        "contiguous": drawn,
        "a token's heads side by side": [t.transpose(1, 2).contiguous().transpose(1, 2) for t in drawn],
        "head_dim strided": [t.transpose(2, 3).contiguous().transpose(2, 3) for t in drawn],
        "cut out of a longer cache": [torch.cat([t, t], 2)[:, :, : PLAIN.seq_len] for t in drawn],
    }
    for layout, given in layouts.items():
        try:
            plain = scaled_dot_product_attention(*given)
        except RuntimeError:
            continue  # SDPA itself doesn't
        for output in (plain, attnlab.attend(*given)):
            error = (output.double() - expected).abs().max().item()
            assert error < 2e-3, f"{name}, {layout}: {error}"


def test_what_the_operator_does_not_take_is_for_sdpa(by_table):
    # SDPA pads head dimensions that are no multiple of 8 before it calls the operator.
    shape = PLAIN.resized(head_dim=60)
    by_table((shape, "sdpa.flash"))
    drawn = inputs.draw(shape, 0, GPU)
    check = Gate(drawn, False).examine(partial(attnlab.attend, *drawn))
    assert check.passed, check.reason


@pytest.mark.parametrize("name", ["sdpa.flash", "kernel.overlap"])
def test_attend_has_gradients_whatever_the_table_says(by_table, name):
    needs(name, PLAIN)
    by_table((PLAIN, name))
    training = PLAIN.resized(direction="training")
    given = inputs.draw(training, 0, GPU)
    call = attend.DISPATCHED.bound(given, training)
    check = Gate(given, False).examine(call)
    assert check.passed, check.reason
    with torch.no_grad():
        q, k, v = (tensor.requires_grad_() for tensor in given[:3])
        assert set(ran(partial(attnlab.attend, q, k, v))) == set(needs(name, PLAIN))


def test_a_graph_of_attend_reads_what_is_in_its_inputs_when_it_is_replayed(by_table):
    named = needs("kernel.overlap", PLAIN)
    by_table((PLAIN, "kernel.overlap"))
    windows = inputs.Windows(PLAIN, GPU)
    windows.draw(0)
    drawn = windows[0]
    call = partial(attnlab.attend, *drawn)
    call()
    replay = ordering.captured(call)
    windows.draw(7)
    replay.graph.replay()
    torch.cuda.synchronize()
    assert Gate(drawn, False).check(replay.output).passed
    assert set(ran(call)) == set(named)


# `attnlab.tune`


@pytest.mark.parametrize("shape", [PLAIN, PLAIN.resized(causal=True), GROUPED_DECODE], ids=str)
def test_what_is_tuned_is_called_in_later_processes_whatever_the_table_says(by_table, monkeypatch, shape):
    by_table((shape, "sdpa.math"))
    monkeypatch.setattr(tuned, "counted", True)
    given = inputs.draw(shape, 0, GPU)
    before = [tensor.clone() for tensor in given]
    found = attnlab.tune(*given, shape.causal)
    assert {*found.speedups, *found.out} == set(tuned.CANDIDATES) - {"sdpa.auto"}
    assert all(map(torch.equal, given, before))
    assert found.chosen != "sdpa.math"
    assert tuned.load(torch.cuda.get_device_name(), torch.__version__) == attend._tuned
    forget_choices(monkeypatch)
    call = partial(attnlab.attend, *given, shape.causal)
    assert set(ran(call)) == set(needs(found.chosen, shape))
    assert Gate(given, shape.causal).check(call()).passed


def test_autotune_measures_before_and_after_a_captured_graph_but_not_in_it(by_table):
    by_table()
    given = inputs.draw(PLAIN, 0, GPU)
    call = partial(attnlab.attend, *given, autotune=True)
    attnlab.attend(*given)
    for number in range(2):
        replay = ordering.captured(call)
        assert len(attend._tuned) == number
        replay.graph.replay()
        torch.cuda.synchronize()
        assert Gate(given, False).check(replay.output).passed
        call()
        assert len(attend._tuned) == 1


def test_tuning_takes_the_strides_of_views_and_leaves_gradients_alone(by_table):
    by_table()
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs.draw(PLAIN, 0, GPU))
    attnlab.attend(q.clone().requires_grad_(), k, v, autotune=True).sum().backward()
    assert attend._tuned == {}
    output = attnlab.attend(q, k, v, autotune=True)
    assert list(attend._tuned) == [attend.layout_words(q, k, v, False, None)]
    assert Gate((q, k, v), False).check(output).passed
