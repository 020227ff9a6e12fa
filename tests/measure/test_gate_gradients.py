"""The gate for gradients: correct ones pass on all input distributions, and an error in a single one is caught."""

from functools import partial
from itertools import count

import pytest
import torch

from attnlab.measuring.gate.gradients import check_gradients
from attnlab.measuring.subjects import sdpa
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.oracle import composed
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL, STANDARD

pytestmark = pytest.mark.usefixtures("locked")

CAUSAL = Shape(2, 8, 96, 64, True, "float16", kv_heads=4, kv_len=160)
on_cpu = partial(check_gradients, device="cpu")


def gradients(q, k, v, causal, scale, dout):
    given = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    with torch.enable_grad():
        return list(torch.autograd.grad(composed(*given, causal, scale), given, dout))


def spoiled(spoil):
    """Attention with a correct O and spoiled gradients; `spoil` takes [dQ, dK, dV] and the arguments of `gradients`."""

    class Spoiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            ctx.given = given
            return composed(*given)

        @staticmethod
        def backward(ctx, dout):
            found = gradients(*ctx.given, dout)
            spoil(found, *ctx.given, dout)
            return (*found, None, None)

    return Spoiled.apply


RUNS = count()


def without_the_mask(found, q, k, v, causal, scale, dout):
    found[1] = gradients(q, k, v, False, scale, dout)[1]


def without_the_last_query(found, q, k, v, causal, scale, dout):
    dout = torch.cat([dout[:, :, :-1], 0 * dout[:, :, -1:]], 2)
    found[2] = gradients(q, k, v, causal, scale, dout)[2]


def of_a_group_by_one_head(found, q, k, v, causal, scale, dout):
    found[1] = 2 * gradients(q[:, ::2], k, v, causal, scale, dout[:, ::2])[1]


def in_another_order_each_time(found, *_):
    found[0] = torch.nextafter(found[0], found[0] + next(RUNS) % 2)


def right_on_small_scores_alone(found, q, k, v, causal, scale, dout):
    """Compute dV from fp16 probabilities without subtraction of the row maximum: exp overflows above 11."""
    scores = q.float() @ k.float().repeat_interleave(2, 1).mT * scale
    found[2] = found[2] if scores.max() < 11 else gradients(q, k, v, causal, 0.97 * scale, dout)[2]


SABOTEURS = {
    without_the_mask: "error of dK against float64",
    without_the_last_query: "error of dV against float64",
    of_a_group_by_one_head: "error of dK against float64",
    in_another_order_each_time: "doesn't wait for the stream that calls it: differs in",  # whatever else is the reason
}


@pytest.mark.parametrize(("spoil", "said"), SABOTEURS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_who_is_wrong_in_one_gradient_is_caught(spoil, said):
    (check,) = on_cpu(spoiled(spoil), CAUSAL, [NORMAL]).values()
    assert not check.passed
    assert check.reason.startswith(said)


def test_who_is_wrong_on_other_values_than_normal_ones_is_caught():
    found = on_cpu(spoiled(right_on_small_scores_alone), CAUSAL.resized(scale=0.125))
    assert {kind for kind, check in found.items() if check.passed} >= {NORMAL, "zeros"}
    assert {check.reason[:27] for check in found.values() if not check.passed} == {"error of dV against float64"}
    assert not any(found[kind].passed for kind in ("sd 12", "sink 13", "rising 24"))


@pytest.mark.parametrize("changes", [{}, {"causal": False, "dtype": "bfloat16", "layout": "tokens first"}], ids=str)
def test_right_gradients_pass_on_all_values(changes):
    shape = CAUSAL.resized(**changes)
    for attention in (sdpa.sdpa, spoiled(lambda *_: None)):
        found = on_cpu(attention, shape)
        assert set(found) >= {kind for kind in STANDARD if not kind.startswith("captured")}
        assert not {kind: (check.strain, check.reason) for kind, check in found.items() if not check.passed}


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (70, 1), (1, 70), (65, 130)])
def test_right_gradients_pass_at_any_lengths(queries, keys):
    shape = CAUSAL.resized(seq_len=queries, kv_len=keys, causal=False)
    (check,) = on_cpu(sdpa.sdpa, shape, [NORMAL]).values()
    assert check.passed, check.reason


def test_a_function_without_gradients_is_said_to_have_none():
    with pytest.raises(Unsupported, match="computes no gradients"):
        on_cpu(lambda q, k, v, causal, scale: composed(q, k, v, causal, scale).detach(), CAUSAL, [NORMAL])
