"""The gate beyond plain self-attention: shared heads, decoding, sequences end to end, training. Plain: test_gate.py."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from conftest import gated, told
from torch.nn.functional import scaled_dot_product_attention

from attnlab.measuring.gate.check import OUTPUTS, Check, Error
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.peers import subjects as peers
from attnlab.measuring.session import checks as checking
from attnlab.measuring.session import rounds
from attnlab.measuring.subjects import inputs, outputs, registry, sdpa
from attnlab.measuring.subjects.implementation import Implementation, Unsupported, attempt, by_sequence, with_gradients
from attnlab.measuring.subjects.oracle import of_each_head
from attnlab.measuring.subjects.sdpa import REGISTRY
from attnlab.runs import schema
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL, STANDARD

pytestmark = pytest.mark.usefixtures("locked")

CPU = torch.device("cpu")
KINDS = (NORMAL, *schema.EXTREMES)
GROUPED = Shape(2, 6, 65, 32, dtype="float32", kv_heads=2)
DECODE = Shape(3, 4, 1, 32, dtype="float32", kv_len=129)
SPREAD = Shape(3, 4, 50, 32, dtype="float32", lengths="spread")
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
]
DTYPES = {"forward": ("float32", "bfloat16", "float16"), "training": ("bfloat16", "float16")}
OF_EACH_DTYPE = [shape.resized(dtype=dtype) for shape in SHAPES for dtype in DTYPES[shape.direction]]
ALL_KINDS = [["before", kind, "call"] for kind in KINDS] + [["after", "normal", "call"]]
BEFORE_AND_AFTER = [["before", "normal", "call"], ["after", "normal", "call"]]


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


@pytest.mark.parametrize("shape", [GROUPED, DECODE, SPREAD, TRAINING], ids=str)
def test_inputs_are_redrawn_where_they_lie(shape):
    windows = inputs.Windows(shape, CPU)
    windows.draw(0)
    drawn = windows[0]
    places = [(tensor.data_ptr(), tensor.stride()) for tensor in drawn]
    windows.draw(1)
    assert [(tensor.data_ptr(), tensor.stride()) for tensor in windows[0]] == places
    assert all(torch.equal(now, new) for now, new in zip(drawn, inputs.draw(shape, 1, CPU), strict=True))


@pytest.mark.parametrize("shape", [GROUPED, DECODE, SPREAD, SPREAD.resized(kv_heads=2), TRAINING], ids=str)
def test_no_head_meets_the_same_keys_in_two_windows(shape):
    windows = inputs.Windows(shape, CPU, 9)
    windows.draw(0)
    met = []
    for window in range(9):
        q, k, v = windows[window][:3]
        assert (q.shape, k.shape) == tuple(tensor.shape for tensor in inputs.draw(shape, 0, CPU)[:2])
        assert q.stride() == inputs.draw(shape, 0, CPU)[0].stride()
        shared = shape.heads // shape.kv_heads
        one = q.transpose(1, 2) if shape.lengths == "spread" else q
        for batch in range(q.shape[0]):
            for head in range(shape.heads):
                keys = k[batch, head // shared]
                met.append((q[batch, head].data_ptr(), keys.data_ptr()))
        assert v.data_ptr() == windows[0][2].data_ptr()
        assert one.is_contiguous()
    assert len(set(met)) == len(met)


# The oracle, against torch's own attention in float64


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_oracle_is_attention(shape):
    drawn = inputs.draw(shape, 0, CPU)
    sequences, scale = shape.sequences if shape.lengths == "spread" else (), shape.scale or None
    exact = Gate(drawn, shape.causal, sequences=sequences, scale=scale)._oracle
    right = partial(repeated, scale=scale)
    given = tuple(tensor.double() for tensor in drawn)
    if shape.direction == "training":
        expected = with_gradients(right, given, shape.causal)
    elif shape.lengths == "spread":
        expected = (by_sequence(right, *given, shape.causal, sequences),)
    else:
        expected = (right(*given, shape.causal),)
    assert len(exact) == len(expected)
    for mine, theirs in zip(exact, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def repeated(q, k, v, causal, scale=None):
    """Torch's attention, with keys and values repeated for the heads that share them, and a mask made by hand."""
    shared = q.shape[1] // k.shape[1]
    k, v = (torch.stack([x] * shared, 2).flatten(1, 2) for x in (k, v))
    queries, keys = (torch.arange(tensor.shape[2]) - tensor.shape[2] for tensor in (q, k))
    seen = queries[:, None] >= keys if causal else None
    return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)


# Honest ones pass


@pytest.mark.parametrize("shape", OF_EACH_DTYPE, ids=str)
def test_what_is_honest_passes(shape):
    subject, checks = gated(honest(), shape)
    assert subject.status == "measured", subject.reason
    assert checks["passed"].all()
    expected = BEFORE_AND_AFTER if shape.direction == "training" else ALL_KINDS
    assert checks[["moment", "inputs", "route"]].values.tolist() == expected


@pytest.mark.parametrize("name", ["sdpa.auto", "sdpa.flash", "sdpa.math", "reference.float64"])
@pytest.mark.parametrize("shape", [*SHAPES, SPREAD.resized(kv_heads=2)], ids=str)
def test_whoever_torch_has_on_the_cpu_passes_or_says_why_not(name, shape):
    subject, _ = gated(REGISTRY[name], shape)
    assert subject.status in ("measured", "skipped"), subject.reason
    if subject.status == "skipped":
        assert subject.reason
        assert "\n" not in subject.reason
        assert len(subject.reason) < 300


def honest():
    return Implementation("kernel.honest", sdpa.sdpa, ragged=partial(by_sequence, sdpa.sdpa))


# Saboteurs: each is right but for one thing


def of_values(change):
    """Attention to other keys and values than those that are given."""
    return lambda q, k, v, causal: sdpa.sdpa(q, change(k), change(v), causal)


WRONG_HEAD = {
    "the next": of_values(lambda x: x.roll(1, 1)),
    "interleaved": of_values(lambda x: x.repeat(1, 3, 1, 1)),
    "the first for all": of_values(lambda x: x[:, :1].expand_as(x)),
    "another's values": lambda q, k, v, causal: sdpa.sdpa(q, k, v.flip(1), causal),
}


@pytest.mark.parametrize("saboteur", WRONG_HEAD.values(), ids=WRONG_HEAD)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_uses_the_wrong_kv_head_is_caught(saboteur, dtype):
    subject, _ = gated(saboteur, GROUPED.resized(dtype=dtype))
    assert subject.status == "failed"
    assert subject.reason.startswith("before timing, call: error against float64: max "), subject.reason


MISCOUNTED = {
    "ignores the last key": of_values(lambda x: x[:, :, :-1]),
    "sees a key too many": of_values(lambda x: torch.cat([x, torch.zeros_like(x[:, :, :1])], 2)),
    # A lower triangular mask over one query and many keys: what `is_causal` means to some.
    "sees the first key alone": lambda q, k, v, causal: scaled_dot_product_attention(q, k, v, is_causal=True),
}


@pytest.mark.parametrize("saboteur", MISCOUNTED.values(), ids=MISCOUNTED)
@pytest.mark.parametrize("shape", [DECODE, DECODE.resized(dtype="bfloat16"), DECODE.resized(kv_len=1025)], ids=str)
def test_who_miscounts_the_keys_when_decoding_is_caught(saboteur, shape):
    subject, _ = gated(saboteur, shape)
    assert subject.status == "failed"
    assert "error against float64: max " in subject.reason


def attends_across(q, k, v, causal, sequences):
    return sdpa.sdpa(q, k, v, causal)


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
    output = torch.empty_like(q)
    whole = by_sequence(sdpa.sdpa, q, k, v, causal, sequences)
    output[:, :, : -sequences[-1]] = whole[:, :, : -sequences[-1]]
    return output


@pytest.mark.parametrize(
    ("saboteur", "said"),
    [
        (attends_across, "error against float64: max "),
        (attends_to_the_token_before_its_sequence, "error against float64: max "),
        (takes_all_for_as_long_as_the_mean, "error against float64: max "),
        (leaves_out_the_last_sequence, f"{50 * 4 * 32} of {101 * 4 * 32} elements are not finite; "),
    ],
)
def test_who_confuses_sequences_that_lie_end_to_end_is_caught(saboteur, said):
    subject, _ = gated(Implementation("kernel.saboteur", sdpa.sdpa, ragged=saboteur), SPREAD)
    assert subject.status == "failed"
    assert subject.reason.startswith(f"before timing, call: {said}"), subject.reason


@dataclass(frozen=True)
class Spoiled(Implementation):
    """An honest implementation whose O, dQ, dK and dV are spoiled before they are returned."""

    spoil: Callable | None = None

    def bound(self, given, shape, rounded=()):
        call = super().bound(given, shape, rounded)
        return lambda: self.spoil(*call(), *given)


def spoiled(spoil):
    return Spoiled("kernel.saboteur", sdpa.sdpa, spoil=spoil)


def only(name, change):
    """Spoils one of O, dQ, dK and dV."""
    number = OUTPUTS.index(name)
    return lambda *given: (*given[:number], change(given[number]), *given[number + 1 : 4])


def unwritten_in_part(fresh, dv):
    fresh[:, :, 1:] = dv[:, :, 1:]
    return fresh


def past_its_end(dq):
    written = outputs.like(dq).copy_(dq)
    written.as_strided((1,), (1,), written.storage_offset() + written.numel()).fill_(0)
    return written


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
}


@pytest.mark.parametrize(("spoil", "said"), TRAINED.values(), ids=TRAINED)
def test_a_saboteur_of_training_is_caught_and_the_reason_says_at_what(spoil, said):
    subject, checks = gated(spoiled(spoil), TRAINING)
    assert subject.status == "failed"
    assert subject.reason.startswith(f"before timing, call: {said}"), subject.reason
    assert checks["passed"].tolist() == [False]


def test_gradients_of_each_query_head_are_not_those_of_the_head_that_is_shared():
    def of_the_first_that_shares_it(o, dq, dk, dv, q, k, v, gradient):
        _, _, apart, _ = with_gradients(sdpa.sdpa, (q, *of_each_head(q, k, v)[1:], gradient), False)
        return o, dq, apart[:, ::2].contiguous(), dv

    subject, _ = gated(spoiled(of_the_first_that_shares_it), TRAINING.resized(heads=4, kv_heads=2))
    assert subject.reason.startswith("before timing, call: error of dK against float64: max "), subject.reason


class KeepsGradients:
    """Gives back the gradients that it computed first."""

    def __init__(self, copied):
        self.copied, self.kept = copied, None

    def __call__(self, o, dq, dk, dv, *given):
        self.kept = self.kept or (dq, dk, dv)
        if not self.copied:
            return o, *self.kept
        self.kept = tuple(tensor.clone() for tensor in self.kept)
        return o, *(tensor.clone() for tensor in self.kept)


def test_stale_gradients_are_caught():
    subject, _ = gated(spoiled(KeepsGradients(copied=False)), TRAINING)
    said = f"before timing, call: returned what it had returned before, {ELEMENTS} of {ELEMENTS} elements not written"
    assert subject.reason.startswith(said), subject.reason
    subject, checks = gated(spoiled(KeepsGradients(copied=True)), TRAINING)
    assert subject.reason.startswith("after timing, call: error of d"), subject.reason
    assert checks["passed"].tolist() == [True, False]


def test_a_stale_output_with_gradients_of_its_own_is_known_again():
    kept = []

    def first(o, *rest):
        kept.append(o.clone())
        return kept[0].clone(), *rest[:3]

    subject, _ = gated(spoiled(first), TRAINING)
    assert subject.reason.startswith("after timing, call: returned its output for earlier inputs; error "), (
        subject.reason
    )


def test_backward_passes_that_add_in_another_order_pass():
    steps = iter(range(100))

    in_another_order = only("dQ", lambda dq: torch.nextafter(dq, dq + next(steps) % 2))
    subject, _ = gated(spoiled(in_another_order), TRAINING)
    assert subject.alive, subject.reason


def test_who_is_off_at_every_other_run_is_caught_in_training():
    steps = iter(range(100))
    subject, _ = gated(spoiled(only("dQ", lambda dq: dq * (1 + next(steps) % 2))), TRAINING)
    assert subject.reason.startswith("before timing, call: error of dQ against float64: max "), subject.reason


# What the gate tells


@pytest.mark.parametrize("kind", [schema.LARGE_LOGITS, schema.CONSTANT_ROWS])
@pytest.mark.parametrize("shape", [GROUPED, DECODE.resized(kv_heads=2), SPREAD], ids=str)
def test_a_share_of_the_heads_is_compared(shape, kind, monkeypatch):
    monkeypatch.setattr(checking, "COMPARED_SCORES", 2 * shape.scores // (shape.heads * shape.batch))
    seen = []

    class Watched(Gate):
        def __init__(self, given, causal, kind, heads, *more):
            seen.append(heads)
            super().__init__(given, causal, kind, heads, *more)

    monkeypatch.setattr(checking, "Gate", Watched)
    subject, _ = gated(honest(), shape)
    assert subject.alive, subject.reason
    drawn_at = [heads for heads in seen if heads is not None]
    assert len(drawn_at) == 2
    heads = shape.heads * (1 if shape.lengths == "spread" else shape.batch)
    assert all(set(some) < set(range(heads)) for some in drawn_at)


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
    assert refusal(registry.find("dispatch.attend"), SPREAD) == "dispatch.attend takes sequences of one length"
    for peer in peers.PEERS:
        for shape in (GROUPED, DECODE):
            assert refusal(peer, shape).endswith(" an NVIDIA GPU")


def test_a_call_leaves_no_graph_of_autograd_behind():
    drawn = inputs.draw(TRAINING, 0, CPU)
    returned = REGISTRY["sdpa.auto"].bound(drawn, TRAINING)()
    assert [tensor.requires_grad for tensor in (*returned, *drawn)] == [False] * 8
    assert [tensor.grad for tensor in drawn] == [None] * 4


# Other values than normal ones

PLAIN = Shape(2, 3, 65, 64, dtype="float32")
SYNTHETIC = [kind for kind in STANDARD if not kind.startswith("captured")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", SYNTHETIC)
@pytest.mark.parametrize("name", ["sdpa.flash", "sdpa.math"])
def test_whoever_torch_has_on_the_cpu_passes_on_every_kind_of_values(name, kind, dtype):
    subject, checks = gated(REGISTRY[name], PLAIN.resized(dtype=dtype, values=kind))
    assert subject.alive, subject.reason
    assert checks["passed"].all()
    assert checks[["moment", "inputs"]].values.tolist() == [
        ["before", kind], ["before", "large logits"], ["before", "constant rows"], ["after", kind]
    ]  # fmt: skip
    assert set(checks["values"]) == {kind}


def loses_a_key_that_attracts_all(q, k, v, causal):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    attracted = scores[..., 0] - scores[..., 1:].mean(-1)
    if attracted.std() < 2 and attracted.mean() > 4:
        k, v = k[:, :, 1:], v[:, :, 1:]
    return sdpa.sdpa(q, k, v, causal)


@pytest.mark.parametrize("kind", ["sink 8", "sink 13"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_is_wrong_on_a_sink_alone_is_caught_where_one_is_timed(kind, dtype):
    for other in ("normal", "rising 24", "outliers"):
        subject, _ = gated(loses_a_key_that_attracts_all, PLAIN.resized(dtype=dtype, values=other))
        assert subject.alive, subject.reason
    subject, checks = gated(loses_a_key_that_attracts_all, PLAIN.resized(dtype=dtype, values=kind))
    assert subject.reason.startswith("before timing, call: error against float64: max ")
    assert checks[["moment", "inputs", "passed"]].values.tolist() == [["before", kind, False]]


def adds_with_few_bits(q, k, v, causal):
    """Adds as Hopper's tensor cores do in FP8: 32 keys at a time, to sums of 14 bits, cut off and not rounded."""
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    probabilities = (scores - scores.amax(-1, keepdim=True)).exp()
    added = torch.zeros_like(q, dtype=torch.float32)
    for some, values in zip(probabilities.split(32, -1), v.float().split(32, -2), strict=True):
        added = ((added + some @ values).view(torch.int32) & -(2**10)).view(torch.float32)
    return (added / probabilities.sum(-1, keepdim=True)).to(q.dtype)


@pytest.mark.parametrize(("kind", "passes"), {"normal": True, "outliers": True, "offset 1": False}.items())
def test_who_adds_with_few_bits_is_caught_where_v_has_a_mean(kind, passes):
    _, checks = gated(adds_with_few_bits, Shape(1, 1, 1024, 64, values=kind))
    assert checks[["inputs", "passed"]].values[0].tolist() == [kind, passes]


# Another alignment of the mask, another scale


def seeing(further):
    """Attention to so many keys beyond the diagonal from the first query on, whatever the mask."""

    def attention(q, k, v, causal, scale=None):
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(further)
        return scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)

    return attention


def without_the_scale(q, k, v, causal, scale=None):
    return sdpa.sdpa(q, k, v, causal)


@pytest.mark.parametrize("call", [seeing(0), seeing(1 + 129 - 5), without_the_scale])
def test_who_sees_other_keys_or_scales_otherwise_is_caught(call):
    shape = DECODE.resized(seq_len=5, causal=True, scale=0.4)
    subject, _ = gated(call, shape)
    assert not subject.alive
    assert "error against float64" in subject.reason
