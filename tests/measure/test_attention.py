"""`attnlab.attention`: what reaches `attend` within the block, what is left to PyTorch, and what is put back."""

from contextlib import nullcontext
from functools import partial
from threading import Event, Thread

import pytest
import torch
import torch.nn.functional as F

import attnlab
from attnlab.serving import attention

PYTORCH = F.scaled_dot_product_attention
Q = torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(0))
KEYS = torch.randn(2, 4, 12, 16, generator=torch.Generator().manual_seed(1))
MASK = torch.ones(8, 8, dtype=torch.bool).tril()


@pytest.fixture
def calls(monkeypatch):
    """What `attend` was called with."""
    calls = []
    inner = attention.attend
    monkeypatch.setattr(attention, "attend", lambda *given: calls.append(given) or inner(*given))
    yield calls
    assert F.scaled_dot_product_attention is PYTORCH


def outcome(given, options, context):
    torch.manual_seed(0)
    try:
        with context:
            return F.scaled_dot_product_attention(*given, **options)
    except (RuntimeError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize(
    ("given", "options", "reaches"),
    [
        ((Q, Q, Q), {}, True),
        ((Q, Q, Q, None, 0.0, True), {"scale": 0.5}, True),
        ((Q, KEYS, KEYS), {}, True),
        ((Q, KEYS[:, :2], KEYS[:, :2]), {"enable_gqa": True}, True),
        ((Q, Q, Q, MASK), {}, False),
        ((Q, Q, Q), {"dropout_p": 0.5}, False),
        ((Q, KEYS, KEYS), {"is_causal": True}, False),
        ((Q, KEYS[:, :2], KEYS[:, :2]), {}, False),  # an error
        ((Q, KEYS[:, :3], KEYS[:, :3]), {"enable_gqa": True}, False),
        ((Q, KEYS, KEYS[..., :8]), {}, False),
        ((Q[0], Q[0], Q[0]), {}, False),
        ((Q, Q.double(), Q.double()), {}, False),
        ((Q.clone().requires_grad_(), Q, Q), {}, False),
        ((torch.nn.Parameter(Q, requires_grad=False), Q, Q), {}, False),
        ((Q, Q, Q), {"scale": float("nan")}, False),
        ((Q, Q, Q), {"scale": -0.5}, True),
        ((Q, Q), {}, False),  # errors, in PyTorch's words
        ((Q, Q, Q), {"is_causal": None}, False),
        ((Q, Q, Q), {"causal": True}, False),
        (3 * [Q.int()], {}, False),
        (3 * [torch.nested.nested_tensor([*Q]).transpose(1, 2)], {}, False),
        (3 * [Q.to("meta")], {}, True),
    ],
)
def test_within_the_block_attend_computes_what_it_serves_and_pytorch_the_rest(calls, given, options, reaches):
    expected = outcome(given, options, nullcontext())
    found = outcome(given, options, attnlab.attention())
    assert len(calls) == reaches
    if isinstance(expected, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, equal_nan=True)
        assert found.requires_grad == expected.requires_grad


def test_nested_blocks_errors_and_threads_put_pytorchs_function_back(calls):
    def fail():
        with attnlab.attention():
            with attnlab.attention():
                pass
            assert F.scaled_dot_product_attention is not PYTORCH
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert F.scaled_dot_product_attention is PYTORCH
    entered, leave = Event(), Event()

    def work():
        with attnlab.attention():
            entered.set()
            leave.wait()

    other = Thread(target=work)
    with attnlab.attention():
        other.start()
        entered.wait()
    assert F.scaled_dot_product_attention is not PYTORCH
    leave.set()
    other.join()


def test_the_function_of_another_library_computes_what_attend_does_not_and_is_put_back(calls, monkeypatch):
    asked = []

    def theirs(*given, **options):
        asked.append(options)
        return PYTORCH(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", theirs)
        for _ in range(2):
            with attnlab.attention(), attnlab.attention():
                F.scaled_dot_product_attention(Q, Q, Q)
                F.scaled_dot_product_attention(Q, Q, Q, attn_mask=MASK)
            assert F.scaled_dot_product_attention is theirs
    assert asked == 2 * [{"attn_mask": MASK}]  # as it was called
    assert len(calls) == 2


class Model(torch.nn.Module):
    def forward(self, q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.parametrize(
    "made",
    [
        torch.jit.script,
        partial(torch.jit.trace, example_inputs=Q),
        lambda model: torch.export.export(model, (Q,)).module(),
        torch.fx.symbolic_trace,
        torch.vmap,
    ],
    ids=["scripted", "traced", "exported", "symbolically traced", "vmap"],
)
def test_a_model_that_is_transformed_within_the_block_computes_the_same(made):
    given = Q[None] if made is torch.vmap else Q
    with attnlab.attention():
        found = made(Model())(given)
    torch.testing.assert_close(found, PYTORCH(given, given, given, is_causal=True))


def test_a_compiled_model_calls_the_operator_within_the_block_without_a_graph_break():
    graphs = []

    def model(q, k):
        return F.scaled_dot_product_attention(q, k, k, is_causal=q.shape[2] == k.shape[2]) + 1

    compiled = torch.compile(model, fullgraph=True, backend=lambda graph, _: graphs.append(graph.code) or graph.forward)
    expected = compiled(Q, Q)
    with attnlab.attention():
        torch.testing.assert_close(compiled(Q, Q), expected)
        torch.testing.assert_close(compiled(Q, KEYS), model(Q, KEYS))
    compiled(Q, Q)
    with attnlab.attention():
        compiled(Q, Q)  # compiled before
    assert ["ops.attnlab.attention" in code for code in graphs] == [False, True, True]
