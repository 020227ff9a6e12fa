"""The gate's tests against cheating: every fault that it must catch, with the reason. Kernels: test_gpu_gate.py."""

import math
from functools import partial
from itertools import product

import ladders
import pytest
import torch
from conftest import gated
from test_remembering import OffByARounding

from attnlab.compile import check, nvrtc
from attnlab.measuring.gate import alone, rounding
from attnlab.measuring.gate.check import Check, Error
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.session import checks as checking
from attnlab.measuring.subjects import inputs, oracle, outputs, sdpa
from attnlab.measuring.subjects.implementation import Implementation, by_sequence
from attnlab.measuring.subjects.sdpa import REGISTRY
from attnlab.runs import schema
from attnlab.study import ladder
from attnlab.study.shapes import Shape

pytestmark = pytest.mark.usefixtures("locked")

CPU = torch.device("cpu")
SHAPE = Shape(2, 3, 65, 64, dtype="float32")
ELEMENTS = SHAPE.query_elements


def honest(q, k, v, causal):
    output = outputs.like(q)
    output.copy_(sdpa.sdpa(q, k, v, causal))
    return output


# Saboteurs: each is correct except for one fault.


def but(spoil):
    """Attention whose output is replaced by `spoil` of the output and the inputs."""
    return lambda q, k, v, causal: spoil(honest(q, k, v, causal), q, k, v)


def after(change):
    """Attention that returns its output after `change` modified it, or the inputs."""
    return but(lambda output, *given: (output, change(output, *given))[0])


def of(replace):
    """Attention of other inputs: `replace` makes them from Q, K and V."""
    return lambda q, k, v, causal: sdpa.sdpa(*replace(q, k, v), causal)


def writes_half(allocate, q, k, v, causal):
    output, half = allocate(q), q.shape[2] // 2
    output[:, :, :half] = sdpa.sdpa(q, k, v, causal)[:, :, :half]
    return output


def zeros_at(begin, count):
    return after(lambda o, *_: o.as_strided((count,), (1,), o.storage_offset() + begin).zero_())


def by_hand(weigh):
    """Attention with unnormalized weights that `weigh` computes from the scores."""

    def attention(q, k, v, causal):
        weights = weigh(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]))
        return weights @ v / weights.sum(-1, keepdim=True)

    return attention


class ReturnsTheLastResult:
    """Computes for the first inputs, and then returns this result for all inputs at the same address."""

    def __init__(self):
        self.kept = {}

    def __call__(self, q, k, v, causal):
        if q.data_ptr() not in self.kept:
            self.kept[q.data_ptr()] = sdpa.sdpa(q, k, v, causal)
        return self.kept[q.data_ptr()]


class CopiesTheLastResult(ReturnsTheLastResult):
    def __call__(self, q, k, v, causal):
        return outputs.like(q).copy_(super().__call__(q, k, v, causal))


class RightForTheFirstSeed:
    """Right for the first inputs, and 1 % off for all others."""

    first = None

    def __call__(self, q, k, v, causal):
        if self.first is None:
            self.first = q.clone()
        return sdpa.sdpa(q, k, v, causal) * (1 if torch.equal(q, self.first) else 1.01)


class KeepsItsOutput:
    """Writes to the same memory at each call, which is allowed."""

    output = None

    def __call__(self, q, k, v, causal):
        self.output = torch.zeros_like(q) if self.output is None else self.output
        return self.output.copy_(sdpa.sdpa(q, k, v, causal))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_len", [1, 7, 64, 127])
def test_what_is_honest_passes(seq_len, causal, dtype):
    for call in (honest, KeepsItsOutput()):
        subject, checks = gated(call, Shape(2, 3, seq_len, 64, causal, dtype))
        assert subject.status == "measured", subject.reason
        assert checks["passed"].all()
        rows = checks[["moment", "inputs", "route"]].agg(", ".join, axis=1)
        before = [f"before, {kind}, call" for kind in ("normal", "large logits", "constant rows")]
        assert rows.tolist() == [*before, "after, normal, call"]


WRONG = "error against float64: max "
ALL, PART = f"{ELEMENTS} of {ELEMENTS} elements", f"{2 * 3 * 33 * 64} of {ELEMENTS} elements"
CAUGHT = {
    "writes nothing": (lambda q, k, v, causal: outputs.like(q), f"{ALL} not written; {WRONG}"),
    "writes half": (partial(writes_half, outputs.like), f"{PART} not written; "),
    "writes half of memory of its own": (partial(writes_half, torch.empty_like), f"{PART} are not finite; "),
    "writes past its end": (zeros_at(ELEMENTS, 3), "wrote outside its output: 12 bytes after it"),
    "writes before its start": (zeros_at(-64, 1), "wrote outside its output: 4 bytes before it"),
    "skips the keys of the tail": (of(lambda q, k, v: (q, k[:, :, :64], v[:, :, :64])), WRONG),
    "skips the rows of the tail": (after(lambda o, *_: o[:, :, 64:].zero_()), WRONG),
    "no maximum in the softmax": (by_hand(torch.exp), "large logits: "),
    "a maximum from zero on": (
        by_hand(lambda scores: (scores - scores.amax(-1, keepdim=True).clamp(min=0)).exp()),
        "constant rows: ",
    ),
    "clamped scores": (by_hand(lambda scores: scores.clamp(-60, 60).softmax(-1)), f"large logits: {WRONG}"),
    "masks what is not causal": (lambda q, k, v, causal: sdpa.sdpa(q, k, v, True), WRONG),
    "adds a hundredth": (but(lambda o, *_: o + 1e-2), WRONG),
    "forgets the scale": (of(lambda q, k, v: (q * 8, k, v)), WRONG),
    "has one nan": (
        after(lambda o, *_: o[-1, -1, -1, -1:].fill_(torch.nan)),
        f"1 of {ELEMENTS} elements are not finite; ",
    ),
    "is wrong in the last row": (after(lambda o, *_: o[-1, -1, -1].zero_()), WRONG),
    "changes its inputs": (after(lambda o, q, k, v: k[-1, -1, -1, -1:].add_(1)), "changed its inputs: K"),
    "works in place": (but(lambda o, q, *_: q.copy_(o)), "changed its inputs: Q; returned memory of its inputs"),
    "returns its values": (but(lambda o, q, k, v: v), f"returned memory of its inputs; {WRONG}"),
    "returns a view of its values": (
        but(lambda o, q, k, v: v[:, :, :1].expand_as(v)),
        "returned memory of its inputs; ",
    ),
    "returns one row for all": (but(lambda o, *_: o[:, :, :1].expand_as(o)), "returned elements that share memory; "),
    "returns the scores": (but(lambda o, q, k, v: q @ k.mT), "returned (2, 3, 65, 65), not (2, 3, 65, 64); "),
    "returns the last result": (
        ReturnsTheLastResult,
        f"returned what it had returned before, {ALL} not written anew; differs between two runs on the same inputs, "
        f"in {ALL}",
    ),
    "copies the last result": (CopiesTheLastResult, "large logits: returned its output for earlier inputs; error"),
    "is right for the first seed": (RightForTheFirstSeed, f"large logits: {WRONG}"),
    "races": (OffByARounding(drifts=False), "differs between two runs on the same inputs, in 2 of "),
}
HALF = ("masks what is not causal", "adds a hundredth", "forgets the scale", "has one nan")


@pytest.mark.parametrize(
    ("name", "dtype"), [*product(CAUGHT, ["float32"]), *product(HALF, ["bfloat16"])], ids=lambda value: value
)
def test_a_saboteur_is_caught_and_the_reason_says_at_what(name, dtype):
    saboteur, reason = CAUGHT[name]
    call = saboteur() if isinstance(saboteur, type) else saboteur
    subject, checks = gated(call, SHAPE.resized(dtype=dtype))
    assert subject.status == "failed"
    at = ", " if reason.startswith(schema.EXTREMES) else ": "
    assert subject.reason.startswith(f"before timing, call{at}{reason}"), subject.reason
    assert checks["passed"].tolist() == [True] * (len(checks) - 1) + [False]  # a failed implementation stops


@pytest.mark.parametrize("seq_len", [1, 2, 64])
def test_who_is_right_for_the_first_normal_inputs_only_is_caught_after_timing_at_the_latest(seq_len):
    class OffForOtherNormalInputs(RightForTheFirstSeed):
        def __call__(self, q, k, v, causal):
            if q.std() > 10:
                return sdpa.sdpa(q, k, v, causal)
            return super().__call__(q, k, v, causal)

    subject, checks = gated(OffForOtherNormalInputs(), Shape(2, 3, seq_len, 64, dtype="bfloat16"))
    assert subject.reason.startswith("after timing, call: error against float64: max ")
    assert checks["passed"].tolist() == [True, True, True, False]


def test_one_who_changes_the_inputs_does_no_harm_to_the_next():
    drawn = inputs.draw(SHAPE, 0, CPU)
    before = [tensor.clone() for tensor in drawn]
    gate = Gate(drawn, False)

    def spoils_and_gives_up():
        drawn[0].zero_()
        raise torch.OutOfMemoryError("none left")

    assert not gate.examine(partial(CAUGHT["works in place"][0], *drawn, False)).passed
    with pytest.raises(torch.OutOfMemoryError):
        gate.examine(spoils_and_gives_up)
    assert all(torch.equal(now, then) for now, then in zip(drawn, before, strict=True))
    assert gate.examine(partial(honest, *drawn, False)).passed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_poison_is_not_a_number_in_any_dtype(dtype):
    q = torch.zeros(1, 2, 3, 8, dtype=getattr(torch, dtype))
    for poison in outputs.POISONS:
        with outputs.guarded(poison) as guards:
            output = outputs.like(q)
        assert output.isnan().all()
        assert (output.shape, output.dtype) == (q.shape, q.dtype)
        assert output.is_contiguous()
        assert output.storage_offset() * output.element_size() % outputs.ALIGNMENT == 0
        assert guards.overruns() == []
        assert guards.unwritten(output, output) == output.numel()
        output[0, 0, 1, :3] = torch.nan  # written, although with NaN
        assert guards.unwritten(output, output) == output.numel() - 3
    assert outputs.like(q).untyped_storage().nbytes() == q.nbytes  # no guards outside the context


def test_guards_span_two_heads_where_those_are_long():
    q = torch.zeros(1, 2, 8192, 128, dtype=torch.float16)
    with outputs.guarded(outputs.POISONS[0]):
        output = outputs.like(q)
    assert output.untyped_storage().nbytes() == q.nbytes + 2 * 2 * 8192 * 128 * 2


def test_large_logits_reach_beyond_what_exp_can_take():
    q, k, _ = inputs.draw(Shape(4, 4, 64, 64), 0, CPU, schema.LARGE_LOGITS)
    scores = q.float() @ k.float().transpose(-1, -2) / 8
    assert 45 < scores.std() < 55
    assert (scores.amax(-1) > math.log(torch.finfo(torch.float32).max)).float().mean() > 0.5
    assert (scores.softmax(-1).amax(-1) > 0.99).float().mean() > 0.5


def test_constant_rows_weigh_all_keys_alike_beyond_what_exp_can_take():
    shape = Shape(2, 4, 64, 64)
    q, k, v = inputs.draw(shape, 0, CPU, schema.CONSTANT_ROWS)
    assert (k == k[:, :, :1]).all()
    assert k.is_contiguous()
    torch.testing.assert_close(oracle.float64(q, k, v, False), v.double().mean(2, keepdim=True).expand_as(v))
    scores = (q.float() @ k.float().transpose(-1, -2) / 8)[..., 0]
    assert scores.max() > 88.7
    assert scores.min() < -103.9


@pytest.mark.parametrize("name", ["sdpa.flash", "sdpa.math"])
@pytest.mark.parametrize("seed", range(5))
def test_float32_is_not_refused_for_the_last_bit_of_a_score(name, seed):
    drawn = inputs.draw(Shape(1, 2, 63, 64, dtype="float32"), seed, CPU, schema.LARGE_LOGITS)
    with REGISTRY[name].selected():
        check = Gate(drawn, False, schema.LARGE_LOGITS).examine(partial(sdpa.sdpa, *drawn, False))
    assert check.passed, check.reason
    assert check.unavoidable.maximum < 1e-3


def test_right_float32_is_not_refused_where_few_errors_of_the_framework_are_small_by_luck():
    lucky = []
    for seed in (889, 1458, 2198):
        drawn = inputs.draw(Shape(1, 8, 64, 64, dtype="float32"), seed, CPU)
        with REGISTRY["sdpa.math"].selected():
            check = Gate(drawn, False).check(sdpa.sdpa(*drawn, False))
        assert check.passed, check.reason
        lucky.append(check.error.maximum > 2 * check.framework_error.maximum)
    assert any(lucky)  # on each machine, at one of the seeds


def off_by_units(output):
    """Adds a few units in the last place; more in float32, where the framework has errors of some units, too."""
    units = 32 if output.dtype == torch.float32 else 2
    return output + units * rounding.units(output.double(), output.dtype).to(output.dtype)


def forgets_to_rescale(q, k, v, causal):
    """Keeps the sums of the first half of the keys without rescaling when the maximum grows."""
    half = k.shape[2] // 2
    scores = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    first, top = scores[..., :half].amax(-1, keepdim=True), scores.amax(-1, keepdim=True)
    weights = torch.cat([(scores[..., :half] - first).exp(), (scores[..., half:] - top).exp()], -1)
    return (weights @ v.float() / weights.sum(-1, keepdim=True)).to(q.dtype)


def sees_one_key_more(q, k, v, causal):
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(2)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, ~hidden)


SUBTLE = {
    "one key dropped": of(lambda q, *given: (q, *(torch.cat([x[:, :, :5], x[:, :, 6:]], 2) for x in given))),
    "scale off by 1 %": lambda q, k, v, causal: sdpa.sdpa(q, k, v, causal, 1.01 / math.sqrt(q.shape[-1])),
    "output off by 1 %": but(lambda o, *_: o * 1.01),
    "a rescale missed": forgets_to_rescale,
    "off by units everywhere": but(lambda o, *_: off_by_units(o)),
    "mask off by one": sees_one_key_more,
    "a stale row": after(lambda o, *_: o[-1, -1, -1].copy_(o[-1, -1, -2])),
}


@pytest.mark.parametrize("seq_len", [64, 512])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_subtle_fault_is_refused_at_small_shapes_and_large(dtype, seq_len):
    drawn = inputs.draw(Shape(1, 8, seq_len, 64, dtype=dtype), 0, CPU)
    gates = [Gate(drawn, causal) for causal in (False, True)]
    for name, call in SUBTLE.items():
        causal = name == "mask off by one"
        assert gates[causal].check(call(*drawn, causal)).strain > 1, name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", [schema.LARGE_LOGITS, schema.CONSTANT_ROWS])
def test_what_is_unavoidable_is_what_errors_in_the_scores_do(kind, causal):
    q, k, v = (x.double() for x in inputs.draw(Shape(1, 4, 32, 64), 0, CPU, kind))
    assert Gate((q, k, v), causal).check(v).unavoidable == Error(0.0, 0.0)
    unavoidable = Gate((q, k, v), causal, kind).check(v).unavoidable
    ulp = 2**-23 * (q.norm(dim=-1).amax(-1) * k.norm(dim=-1).amax(-1)).max() / 8
    hidden = torch.ones(32, 32, dtype=torch.bool).triu(1) & causal
    scores = (q @ k.transpose(-1, -2) / 8).masked_fill(hidden, -math.inf)
    right, generator, errors = scores.softmax(-1) @ v, torch.Generator().manual_seed(0), []
    for _ in range(500):
        off = ulp * torch.randn(scores.shape, generator=generator, dtype=torch.float64)
        errors.append((scores + off).softmax(-1) @ v - right)
    deviation = torch.stack(errors).square().mean(0).sqrt()
    assert unavoidable.mean == pytest.approx(deviation.mean().item(), rel=0.02)
    assert unavoidable.maximum == pytest.approx(deviation.max().item(), rel=0.1)


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_unavoidable_in_training_is_what_errors_in_the_products_do(causal):
    drawn = inputs.draw(Shape(1, 2, 24, 16, kv_heads=1, dtype="float32", direction="training"), 0, CPU)
    q, k, v, gradient = (tensor.double() for tensor in drawn)
    largest = [tensor.norm(dim=-1).amax(-1).view(1, -1, 1, 1) for tensor in (q, k, v, gradient)]
    of_score, of_product = 2**-23 * largest[0] * largest[1] / 4, 2**-23 * largest[2] * largest[3]
    hidden = torch.ones(24, 24, dtype=torch.bool).triu(1) & causal
    generator = torch.Generator().manual_seed(0)

    def computed(amount):
        noise = [amount * torch.randn(1, 2, 24, size, generator=generator, dtype=torch.float64) for size in (24, 24, 1)]
        p = (q @ k.mT / 4 + of_score * noise[0]).masked_fill(hidden, -math.inf).softmax(-1)
        o = p @ v
        products, total = gradient @ v.mT + of_product * noise[1], (gradient * o).sum(-1, keepdim=True)
        ds = p * (products - total - of_product * noise[2])
        return o, ds @ k / 4, (ds.mT @ q / 4).sum(1), (p.mT @ gradient).sum(1)

    right, draws = computed(0), [computed(1) for _ in range(500)]
    for found, exact, off in zip(
        rounding.unavoidable_in_training(drawn, causal), right, zip(*draws, strict=True), strict=True
    ):
        deviation = (torch.stack(off) - exact).square().mean(0).sqrt()
        assert found.mean == pytest.approx(deviation.mean().item(), rel=0.03)
        assert found.maximum == pytest.approx(deviation.max().item(), rel=0.15)


def one_by_one(q, k, v, causal):
    return torch.cat([honest(*(x[i : i + 1] for x in (q, k, v)), causal) for i in range(q.shape[0])])


def rounds_otherwise_alone(q, k, v, causal):
    output = one_by_one(q, k, v, causal)
    if q.shape[0] == 1:
        output[0, 0, 0, :2] = output[0, 0, 0, :2].nextafter(torch.tensor(torch.inf))
    return output


def takes_no_sequence_alone(q, k, v, causal):
    if q.shape[0] == 1:
        raise RuntimeError("a batch of one")
    return one_by_one(q, k, v, causal)


@pytest.mark.parametrize(
    ("call", "shape", "differing"),
    [
        (one_by_one, SHAPE.resized(batch=3), 0),
        (rounds_otherwise_alone, SHAPE.resized(batch=3), 2),
        (rounds_otherwise_alone, SHAPE.resized(batch=1), None),
        (takes_no_sequence_alone, SHAPE.resized(batch=3), None),
        (one_by_one, SHAPE.resized(batch=3, direction="training"), None),
        (one_by_one, SHAPE.resized(batch=3, lengths="spread"), None),
    ],
)
def test_a_sequence_alone_is_compared_with_itself_in_the_batch(call, shape, differing):
    asked = Implementation("kernel.asked", call, ragged=partial(by_sequence, call)), inputs.draw(shape, 0, CPU), shape
    assert {alone.differing(*asked) for _ in range(20)} == {differing}  # each call draws one of 3 sequences


def test_a_share_of_the_heads_is_compared_and_all_else_is_looked_at_in_all(monkeypatch):
    monkeypatch.setattr(checking, "COMPARED_SCORES", 2 * 65**2)
    assert gated(honest, SHAPE)[0].alive
    # 6 heads give 15 pairs: 100 equal draws have a probability of 15^-99.
    assert len({tuple(checking.few_heads(SHAPE)) for _ in range(100)}) > 1

    def leaves_out_a_head_of_large_logits(head, q, k, v, causal):
        output = outputs.like(q)
        for number in range(q.shape[0] * q.shape[1]):
            if number != head or q.std() < 10:
                at = divmod(number, 3)
                output[at] = sdpa.sdpa(*(x[at][None, None] for x in (q, k, v)), causal)[0, 0]
        return output

    for head in range(6):
        subject, _ = gated(partial(leaves_out_a_head_of_large_logits, head), SHAPE)
        assert f"{65 * 64} of {ELEMENTS} elements not written" in subject.reason


def test_a_reason_says_the_fault_and_the_error_only_if_that_is_too_large():
    error, framework = Error(1.0, 0.1), Error(1.0, 0.1)
    assert Check(error, framework, faults=("changed its inputs: V",)).reason == "changed its inputs: V"
    both = Check(Error(3.0, 0.1), framework, faults=("changed its inputs: V",)).reason
    assert both.startswith("changed its inputs: V; error against float64: max 3.00e+00")
    assert not Check(error, framework, faults=("changed its inputs: V",)).passed


def test_the_saboteurs_among_the_kernels_compile(tmp_path, monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATTNLAB_KERNELS", str(ladders.write_saboteurs(tmp_path / "kernels")))
    honest, *wrong = ladder.load()
    # The honest kernel in every dtype and with each mask. The others share its code: each once.
    expressions = [*check.expressions(honest), *(one.expression("float16", one.tiles[0], False) for one in wrong)]
    build = nvrtc.build(honest, "sm_80", expressions)
    assert set(build.instances) == set(expressions), build.error
    assert len(expressions) == 4 + 19
    assert [line for one in (honest, *wrong) for line in check.wrong(one, "sm_80", build)] == []
