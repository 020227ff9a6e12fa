"""The gate on shared heads, decoding, packed sequences and training. Plain self-attention is in test_gate.py."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, product

import pytest
import torch
from conftest import gated, told
from torch.nn.functional import scaled_dot_product_attention

from attnlab.measuring.gate.check import OUTPUTS, Check, Error
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.session import checks as checking
from attnlab.measuring.session import rounds
from attnlab.measuring.subjects import inputs, outputs, registry, sdpa
from attnlab.measuring.subjects.implementation import Implementation, Unsupported, attempt, by_sequence, with_gradients
from attnlab.measuring.subjects.oracle import composed, of_each_head
from attnlab.measuring.subjects.sdpa import REGISTRY
from attnlab.runs import schema
from attnlab.study import implementations
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL, STANDARD

pytestmark = pytest.mark.usefixtures("locked")

CPU = torch.device("cpu")
GROUPED = Shape(2, 6, 65, 32, dtype="float32", kv_heads=2)
DECODE = Shape(3, 4, 1, 32, dtype="float32", kv_len=129)
SPREAD = Shape(3, 4, 50, 32, dtype="float32", lengths="spread")
DRAWN = Shape(6, 4, 40, 32, dtype="bfloat16", lengths="log-normal 20 1", values="positional 25")
TRAINING = Shape(2, 3, 33, 32, dtype="float16", direction="training")
SHAPES = [
    GROUPED,
    GROUPED.resized(causal=True, kv_heads=1),
    DECODE,
    DECODE.resized(kv_heads=2),
    DECODE.resized(seq_len=5),
    SPREAD,
    SPREAD.resized(causal=True),
    SPREAD.resized(batch=12, seq_len=9),  # more sequences than the longest has tokens
    TRAINING,
    TRAINING.resized(causal=True),
    TRAINING.resized(heads=4, kv_heads=2),
    TRAINING.resized(causal=True, dtype="float32"),
    GROUPED.resized(layout="tokens first"),
    GROUPED.resized(causal=True, scale=0.05),
    DECODE.resized(seq_len=5, causal=True, kv_heads=2),
    DECODE.resized(seq_len=5, layout="tokens first", scale=0.4, causal=True),
    TRAINING.resized(layout="tokens first", scale=0.3),
    TRAINING.resized(direction="backward"),
    TRAINING.resized(direction="backward", causal=True, kv_heads=1, layout="tokens first", scale=0.3),
]
DTYPES = {
    "forward": ("float32", "bfloat16", "float16"),
    "training": ("bfloat16", "float16"),
    "backward": ("bfloat16", "float32"),
}


# Inputs


def test_inputs_are_contiguous_or_hold_a_tokens_heads_side_by_side_and_in_training_there_is_a_gradient():
    for shape in (GROUPED, DECODE, TRAINING):
        assert all(tensor.is_contiguous() for tensor in inputs.draw(shape, 0, CPU))
    for tensor in inputs.draw(SPREAD.resized(kv_heads=2), 0, CPU, schema.CONSTANT_ROWS):
        assert tensor[0].transpose(0, 1).is_contiguous()
    q, k, _, gradient = inputs.draw(TRAINING.resized(kv_heads=1), 0, CPU)
    assert (gradient.shape, k.shape) == (q.shape, (2, 1, 33, 32))
    assert 0.9 < gradient.std() < 1.1
    assert not torch.equal(gradient, q)


# The oracle, against torch's own attention in float64


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_oracle_is_attention(shape):
    drawn = inputs.draw(shape, 0, CPU)
    sequences, scale = shape.sequences if shape.lengths == "spread" else (), shape.scale or None
    alone = shape.direction == "backward"
    exact = Gate(drawn, shape.causal, sequences=sequences, scale=scale, backward=alone)._oracle
    right = partial(repeated, scale=scale)
    given = tuple(tensor.double() for tensor in drawn)
    if shape.trains:
        expected = with_gradients(right, given, shape.causal)[alone:]
    elif shape.lengths == "spread":
        expected = (by_sequence(right, *given, shape.causal, sequences),)
    else:
        expected = (right(*given, shape.causal),)
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-12)


def repeated(q, k, v, causal, scale=None):
    """Torch's attention, with keys and values repeated for the heads that share them, and an explicit mask."""
    shared = q.shape[1] // k.shape[1]
    k, v = (torch.stack([x] * shared, 2).flatten(1, 2) for x in (k, v))
    queries, keys = (torch.arange(tensor.shape[2]) - tensor.shape[2] for tensor in (q, k))
    seen = queries[:, None] >= keys if causal else None
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


# Honest ones pass


def honest():
    return Implementation("kernel.honest", sdpa.sdpa, ragged=partial(by_sequence, sdpa.sdpa))


PLAIN = Shape(2, 3, 65, 64, dtype="float32")
SYNTHETIC = [kind for kind in STANDARD if not kind.startswith("captured")]
PLAINLY = [*product(["sdpa.flash"], ["float32", "float16"]), *product(["sdpa.math"], ["float32", "bfloat16"])]
PASSING = [
    *product(["honest"], (shape.resized(dtype=dtype) for shape in SHAPES for dtype in DTYPES[shape.direction])),
    *product(["sdpa.auto", "sdpa.flash", "sdpa.math", "reference.float64"], [*SHAPES, SPREAD.resized(kv_heads=2)]),
    *product(["dispatch.attend"], [shape for shape in SHAPES if shape.trains]),
    *product(["sdpa.padded", "sdpa.each", "sdpa.math"], [SPREAD.resized(kv_heads=2, causal=True), DRAWN]),
    *((name, PLAIN.resized(dtype=dtype, values=kind)) for (name, dtype), kind in product(PLAINLY, SYNTHETIC)),
]


@pytest.mark.parametrize(("name", "shape"), PASSING, ids=str)
def test_what_is_honest_passes_or_torch_says_why_not(name, shape):
    subject, checks = gated(honest() if name == "honest" else registry.find(name), shape)
    if subject.status == "skipped":
        assert name != "honest", subject.reason
        assert shape.values in (NORMAL, DRAWN.values), subject.reason
        assert 0 < len(subject.reason) < 300
        assert "\n" not in subject.reason
        return
    assert subject.alive, subject.reason
    assert checks["passed"].all()
    extremes = () if shape.trains else schema.EXTREMES
    expected = [("before", shape.values), *(("before", kind) for kind in extremes), ("after", shape.values)]
    assert [*zip(checks["moment"], checks["inputs"], strict=True)] == expected
    assert (set(checks["route"]), set(checks["values"])) == ({"call"}, {shape.values})


# Saboteurs: each is right but for one thing


def of_values(change):
    """Attention to keys and values that `change` has replaced."""
    return lambda q, k, v, causal: sdpa.sdpa(q, change(k), change(v), causal)


def attends_to_the_token_before_its_sequence(q, k, v, causal, sequences):
    output = by_sequence(sdpa.sdpa, q, k, v, causal, sequences)
    begin, end = sequences[0], sequences[0] + sequences[1]
    keys, values = (x[:, :, begin - 1 : end] for x in (k, v))
    output[:, :, begin:end] = scaled_dot_product_attention(q[:, :, begin:end], keys, values)
    return output


def takes_all_for_as_long_as_the_mean(q, k, v, causal, sequences):
    tokens, number = sum(sequences), len(sequences)
    even = tuple(tokens * (i + 1) // number - tokens * i // number for i in range(number))
    return by_sequence(sdpa.sdpa, q, k, v, causal, even)


def leaves_out_the_last_sequence(q, k, v, causal, sequences):
    output, whole = torch.empty_like(q), slice(-sequences[-1])
    output[:, :, whole] = by_sequence(sdpa.sdpa, q, k, v, causal, sequences)[:, :, whole]
    return output


def seeing(further):
    """Attention in which query i sees keys up to i + `further`, with or without a mask."""

    def attention(q, k, v, causal, scale=None):
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(further)
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)

    return attention


WRONG = "error against float64: max "
MASKED = DECODE.resized(seq_len=5, causal=True, scale=0.4)
CAUGHT = {
    "the next kv head": (of_values(lambda x: x.roll(1, 1)), GROUPED),
    "kv heads interleaved": (of_values(lambda x: x.repeat(1, 3, 1, 1)), GROUPED),
    "the first kv head for all": (of_values(lambda x: x[:, :1].expand_as(x)), GROUPED),
    "another head's values": (lambda q, k, v, causal: sdpa.sdpa(q, k, v.flip(1), causal), GROUPED),
    "ignores the last key": (of_values(lambda x: x[:, :, :-1]), DECODE),
    "sees a key too many": (of_values(lambda x: torch.cat([x, torch.zeros_like(x[:, :, :1])], 2)), DECODE),
    # A lower triangular mask over one query and many keys: what `is_causal` means to some.
    "sees the first key alone": (
        lambda q, k, v, causal: scaled_dot_product_attention(q, k, v, is_causal=True),
        DECODE,
    ),
    "a mask aligned to the begin": (seeing(0), MASKED),
    "a mask off by one": (seeing(1 + 129 - 5), MASKED),
    "no scale": (lambda q, k, v, causal, scale: sdpa.sdpa(q, k, v, causal), MASKED),
    "attends across": (lambda q, k, v, causal, sequences: sdpa.sdpa(q, k, v, causal), SPREAD),
    "attends to the token before": (attends_to_the_token_before_its_sequence, SPREAD),
    "all as long as the mean": (takes_all_for_as_long_as_the_mean, SPREAD),
    "leaves out the last sequence": (leaves_out_the_last_sequence, SPREAD),
}
"""Saboteurs, and the shape at which the gate catches each. For packed sequences, the call takes their lengths."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CAUGHT)
def test_who_confuses_heads_keys_or_sequences_is_caught(name, dtype):
    call, shape = CAUGHT[name]
    saboteur = Implementation("kernel.saboteur", sdpa.sdpa, ragged=call) if shape == SPREAD else call
    said = f"{50 * 4 * 32} of {101 * 4 * 32} elements are not finite; " * (call is leaves_out_the_last_sequence)
    for at in (shape, *([DECODE.resized(kv_len=1025)] if shape == DECODE else [])):
        subject, _ = gated(saboteur, at.resized(dtype=dtype))
        assert subject.status == "failed"
        assert re.match(f"before timing, call(, constant rows)?: {said}{WRONG}", subject.reason), subject.reason


@dataclass(frozen=True)
class Spoiled(Implementation):
    """A correct implementation whose O, dQ, dK and dV are changed by `spoil` before they are returned."""

    spoil: Callable | None = None

    def bound(self, given, shape):
        call = super().bound(given, shape)
        return lambda: self.spoil(*call(), *given)


def spoiled(spoil):
    return Spoiled("kernel.saboteur", sdpa.sdpa, spoil=spoil)


def only(name, change):
    """A `spoil` that changes the output of this name, one of O, dQ, dK and dV."""
    number = OUTPUTS.index(name)
    return lambda *given: (*given[:number], change(given[number]), *given[number + 1 : 4])


def unwritten_in_part(fresh, dv):
    fresh[:, :, 1:] = dv[:, :, 1:]
    return fresh


def past_its_end(dq):
    written = outputs.like(dq).copy_(dq)
    written.as_strided((1,), (1,), written.storage_offset() + written.numel()).fill_(0)
    return written


def keeps(which, copied):
    """A `spoil` that returns the outputs of the first call for those of O, dQ, dK and dV with the numbers `which`."""
    kept = {}

    def spoil(*given):
        for i in which:
            kept.setdefault(i, given[i].clone() if copied else given[i])
        return tuple((kept[i].clone() if copied else kept[i]) if i in which else given[i] for i in range(4))

    return spoil


ELEMENTS = TRAINING.query_elements
ROW = 2 * 3 * 32
NOT_WRITTEN = f"{ROW} of {ELEMENTS} elements {{}}; error of dV against float64: max inf"
EACH = "(2, 3, 33, 32)"
TRAINED = {
    "dK is twice as large": (only("dK", lambda dk: 2 * dk), "error of dK against float64: max "),
    "dK is one percent off": (only("dK", lambda dk: 1.01 * dk), "error of dK against float64: max "),
    "dQ lacks the scale": (only("dQ", lambda dq: dq * 32**0.5), "error of dQ against float64: max "),
    "dQ and dK change places": (lambda o, dq, dk, dv, *given: (o, dk, dq, dv), "error of d"),
    "O is one percent off": (only("O", lambda o: 1.01 * o), "error against float64: max "),
    "dV is not a number": (
        only("dV", lambda dv: torch.full_like(dv, torch.nan)),
        f"{ELEMENTS} of {ELEMENTS} elements are not finite; error of dV against float64: max inf",
    ),
    "a row of dV is not written": (
        only("dV", lambda dv: unwritten_in_part(torch.empty_like(dv), dv)),
        NOT_WRITTEN.format("are not finite"),
    ),
    "a row of dV is not written, between guards": (
        only("dV", lambda dv: unwritten_in_part(outputs.like(dv), dv)),
        NOT_WRITTEN.format("not written"),
    ),
    "dQ is written past its end": (only("dQ", past_its_end), "wrote outside its output: 2 bytes after it"),
    "dO is changed": (lambda *given: (given[-1].mul_(2) is None or given)[:4], "changed its inputs: dO"),
    "dO is handed back as dQ": (
        lambda o, dq, dk, dv, q, k, v, gradient: (o, gradient, dk, dv),
        "returned memory of its inputs; error of dQ ",
    ),
    "dV is one row for all": (
        only("dV", lambda dv: dv[:, :, :1].expand_as(dv)),
        "returned elements that share memory; error of dV ",
    ),
    "O is returned alone": (lambda o, *given: o, f"returned {EACH}, not {', '.join(4 * [EACH])}"),
    "dV is left out": (lambda *given: given[:3], f"returned {', '.join(3 * [EACH])}, not {EACH}, "),
    "one comes too many": (
        lambda o, dq, dk, dv, *given: (o, dq, dk, dv, o.sum()),
        f"returned {', '.join(4 * [EACH])}, (), not ",
    ),
    "dK is transposed": (
        only("dK", lambda dk: dk.transpose(2, 3)),
        f"returned {EACH}, {EACH}, (2, 3, 32, 33), {EACH}, not ",
    ),
    "gradients are of before": (
        keeps((1, 2, 3), copied=False),
        f"returned what it had returned before, {ELEMENTS} of {ELEMENTS} elements not written",
    ),
    "gradients are copies": (keeps((1, 2, 3), copied=True), "after timing, call: error of d"),
    "O alone is a copy": (
        keeps((0,), copied=True),
        "after timing, call: returned its output for earlier inputs; error ",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), TRAINED.values(), ids=TRAINED)
def test_a_saboteur_of_training_is_caught_and_the_reason_says_at_what(spoil, said):
    subject, checks = gated(spoiled(spoil), TRAINING)
    assert subject.status == "failed"
    before = [] if said.startswith("after timing") else ["before timing, call: "]
    assert subject.reason.startswith("".join([*before, said])), subject.reason
    assert checks["passed"].tolist() == [True] * (not before) + [False]


@pytest.mark.parametrize("kind", ["sd 24", "stairs 12"])
@pytest.mark.parametrize("direction", ["training", "backward"])
def test_gradients_of_other_values_pass_and_who_is_wrong_there_alone_is_caught(kind, direction):
    shape = TRAINING.resized(direction=direction, values=kind, dtype="bfloat16", heads=8, seq_len=96)

    def right_on_small_scores(q, k, v, causal):
        scale = q.shape[3] ** -0.5
        return sdpa.sdpa(q, k, v, causal, scale * (0.8 if (q @ k.mT).max() * scale > 10 else 1))

    for call in (sdpa.sdpa, right_on_small_scores):
        subject, _ = gated(Implementation("kernel.mine", call), shape)
        assert subject.alive == (call is sdpa.sdpa), subject.reason
        assert gated(Implementation("kernel.mine", call), shape.plain)[0].alive


class KeepsO(torch.autograd.Function):
    """Attention that hides O from autograd: after a change of the inputs in place, its backward pass has the old O."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.output, ctx.causal = composed(q, k, v, causal), causal
        return ctx.output.clone()

    @staticmethod
    def backward(ctx, dout):
        q, k, v = (tensor.double() for tensor in ctx.saved_tensors)
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[3]), -1)
        ds = p * (dout.double() @ v.mT - (dout * ctx.output).sum(-1, keepdim=True)) / math.sqrt(q.shape[3])
        return *(x.to(dout.dtype) for x in (ds @ k, ds.mT @ q, p.mT @ dout.double())), None


def test_a_backward_pass_alone_is_of_the_forward_pass_of_the_values_in_place():
    shape = TRAINING.resized(direction="backward")
    windows = inputs.Windows(shape, CPU, 3)
    on, refresh = honest().on(windows)
    for seed in range(3):
        windows.draw(seed)
        refresh()
        for window in (0, 2):
            expected = with_gradients(sdpa.sdpa, windows[window], False)[1:]
            assert all(map(torch.equal, on(window)(), expected))
    subject, _ = gated(Implementation("kernel.saboteur", KeepsO.apply), shape)
    assert subject.reason.startswith("after timing, call: error of d"), subject.reason


def test_gradients_of_each_query_head_are_not_those_of_the_head_that_is_shared():
    def of_the_first_that_shares_it(o, dq, dk, dv, q, k, v, gradient):
        _, _, apart, _ = with_gradients(sdpa.sdpa, (q, *of_each_head(q, k, v)[1:], gradient), False)
        return o, dq, apart[:, ::2].contiguous(), dv

    subject, _ = gated(spoiled(of_the_first_that_shares_it), TRAINING.resized(heads=4, kv_heads=2))
    assert subject.reason.startswith("before timing, call: error of dK against float64: max "), subject.reason


def test_backward_passes_that_add_in_another_order_pass_and_who_is_off_at_every_other_run_is_caught():
    steps = count()
    subject, _ = gated(spoiled(only("dQ", lambda dq: torch.nextafter(dq, dq + next(steps) % 2))), TRAINING)
    assert subject.alive, subject.reason
    subject, _ = gated(spoiled(only("dQ", lambda dq: dq * (1 + next(steps) % 2))), TRAINING)
    assert subject.reason.startswith("before timing, call: error of dQ against float64: max "), subject.reason


# What the gate tells


@pytest.mark.parametrize("shape", [GROUPED, DECODE.resized(kv_heads=2), SPREAD], ids=str)
def test_a_share_of_the_heads_is_compared(shape, monkeypatch):
    monkeypatch.setattr(checking, "COMPARED_SCORES", 2 * shape.scores // (shape.heads * shape.batch))
    seen, few = [], checking.few_heads
    monkeypatch.setattr(checking, "few_heads", lambda shape: seen.append(few(shape)) or seen[-1])
    subject, _ = gated(honest(), shape)
    assert subject.alive, subject.reason
    heads = shape.heads * (1 if shape.lengths == "spread" else shape.batch)
    assert [set(some) < set(range(heads)) for some in seen] == [True] * len(schema.EXTREMES)


def test_the_check_speaks_of_the_output_that_strays_farthest():
    assert OUTPUTS == ("O", "dQ", "dK", "dV")
    drawn = inputs.draw(TRAINING, 0, CPU)
    gate = Gate(drawn, False)
    o, dq, dk, dv = with_gradients(sdpa.sdpa, drawn, False)
    assert gate.check((o, dq, dk, dv)).passed
    check = gate.check((o, dq + 1e-2, dk + 1, dv + 1e-1))
    assert (check.output, check.passed) == ("dK", False)
    assert check.error.maximum == pytest.approx(1, rel=1e-2)
    assert check.strain > 2


@pytest.mark.parametrize(
    ("strain", "kept"), [(0.0, 0.0), (0.16666, 0.167), (0.5, 0.5), (1.0001, 1.01), (123.4, 124.0), (math.inf, math.inf)]
)
def test_a_strain_is_kept_in_three_digits_and_above_one_stays_above(strain, kept):
    assert rounds.in_three_digits(strain) == pytest.approx(kept)


def test_strain_is_in_units_of_what_is_allowed():
    assert Check(Error(1.0, 0.1), Error(1.0, 0.2)).strain == 0.5
    assert Check(Error(1.0, 0.9), Error(1.0, 0.1)).strain == pytest.approx(4.5)
    assert Check(Error(0.0, 0.0), Error(0.0, 0.0)).strain == 0.0
    assert Check(Error(1e-9, 0.0), Error(0.0, 0.0)).strain == float("inf")


# What isn't done is said


def refusal(implementation, shape):
    call = implementation.bound(inputs.draw(shape, 0, CPU), shape)
    with implementation.selected():
        return told(partial(attempt, call), Unsupported)


def test_what_is_not_supported_is_refused_with_one_reason():
    plain = Implementation("kernel.plain", sdpa.sdpa, differentiable=False)
    assert refusal(plain, TRAINING) == "kernel.plain computes no gradients"
    assert refusal(plain, SPREAD) == "kernel.plain takes sequences of one length"
    for name in implementations.PACKED:
        assert refusal(REGISTRY[name], GROUPED) == "takes sequences of unlike lengths alone"
    assert refusal(REGISTRY["sdpa.varlen"], SPREAD).endswith(" an NVIDIA GPU")
    assert refusal(registry.find("dispatch.attend"), SPREAD) == "dispatch.attend takes sequences of one length"
    for name in implementations.PEERS:
        for shape in (GROUPED, DECODE):
            assert refusal(registry.find(name), shape).endswith(" an NVIDIA GPU")


def test_a_call_leaves_no_graph_of_autograd_behind():
    drawn = inputs.draw(TRAINING, 0, CPU)
    returned = REGISTRY["sdpa.auto"].bound(drawn, TRAINING)()
    assert [tensor.requires_grad for tensor in (*returned, *drawn)] == [False] * 8
    assert [tensor.grad for tensor in drawn] == [None] * 4


# Other values than normal ones


def loses_a_key_that_attracts_all(q, k, v, causal):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    attracted = scores[..., 0] - scores[..., 1:].mean(-1)
    if attracted.std() < 2 and attracted.mean() > 4:
        k, v = k[:, :, 1:], v[:, :, 1:]
    return sdpa.sdpa(q, k, v, causal)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_is_wrong_on_a_sink_alone_is_caught_where_one_is_timed(dtype):
    for kind in ("normal", "rising 24", "outliers"):
        subject, _ = gated(loses_a_key_that_attracts_all, PLAIN.resized(dtype=dtype, values=kind))
        assert subject.alive, subject.reason
    for kind in ("sink 8", "sink 13"):
        subject, checks = gated(loses_a_key_that_attracts_all, PLAIN.resized(dtype=dtype, values=kind))
        assert subject.reason.startswith(f"before timing, call: {WRONG}")
        assert checks[["moment", "inputs", "passed"]].values.tolist() == [["before", kind, False]]


def adds_with_few_bits(q, k, v, causal):
    """Attention that adds as Hopper's tensor cores in FP8: 32 keys at a time, to sums truncated to 14 bits."""
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    probabilities = (scores - scores.amax(-1, keepdim=True)).exp()
    added = torch.zeros_like(q, dtype=torch.float32)
    for some, values in zip(probabilities.split(32, -1), v.float().split(32, -2), strict=True):
        added = ((added + some @ values).view(torch.int32) & -(2**10)).view(torch.float32)
    return (added / probabilities.sum(-1, keepdim=True)).to(q.dtype)


def test_who_adds_with_few_bits_is_caught_where_v_has_a_mean():
    found = {}
    for kind in ("normal", "outliers", "offset 1"):
        drawn = inputs.draw(Shape(1, 1, 1024, 64, values=kind), 0, CPU)
        found[kind] = Gate(drawn, False, kind).check(adds_with_few_bits(*drawn, False)).passed
    assert found == {"normal": True, "outliers": True, "offset 1": False}
