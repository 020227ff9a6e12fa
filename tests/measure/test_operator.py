"""The operator attnlab::attention without a GPU. With one: test_gpu_views.py."""

import pytest
import torch
from conftest import forget_choices
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

import attnlab
from attnlab.measure.subjects import attend, inputs
from attnlab.study.shapes import Shape

CPU = torch.device("cpu")
PLAIN = Shape(2, 4, 33, 16, dtype="float32")
SHAPES = [
    PLAIN,
    PLAIN.resized(causal=True, kv_heads=2, layout="tokens first"),
    PLAIN.resized(seq_len=5, kv_len=33, causal=True, scale=0.3),
]


@pytest.fixture(autouse=True)
def registered():
    """The operator, which comes with `attnlab.attend`."""
    assert attnlab.attend


def drawn(shape, requires_grad=False):
    return [
        tensor.clone(memory_format=torch.preserve_format).requires_grad_(requires_grad)
        for tensor in inputs.draw(shape, 0, CPU)
    ]


def attended(shape):
    return lambda q, k, v: attnlab.attend(q, k, v, shape.causal, shape.scale or None)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_finds_nothing_wrong_with_it(shape, requires_grad):
    given = (*drawn(shape, requires_grad), shape.causal, shape.scale or None)
    torch.library.opcheck(torch.ops.attnlab.attention.default, given)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_compiled_graph_has_no_break_and_computes_the_same(shape):
    given = drawn(shape)
    compiled = torch.compile(lambda *tensors: 2 * attended(shape)(*tensors), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), 2 * attended(shape)(*given))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_its_gradients_are_those_of_sdpa(shape, compiled):
    given = drawn(shape, requires_grad=True)
    call = torch.compile(attended(shape), fullgraph=True, backend="aot_eager") if compiled else None
    ours = call(*given) if call else torch.ops.attnlab.attention(*given, shape.causal, shape.scale or None)
    earlier = shape.kv_len - shape.seq_len
    seen = torch.ones(shape.seq_len, shape.kv_len, dtype=torch.bool).tril(earlier) if shape.causal else None
    theirs = scaled_dot_product_attention(*given, attn_mask=seen, scale=shape.scale or None, enable_gqa=True)
    torch.testing.assert_close(ours, theirs)
    assert compiled or ours.stride() == torch.empty_like(given[0]).stride()
    gradient = torch.randn_like(ours)
    for one, other in zip(*(torch.autograd.grad(output, given, gradient) for output in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_mode_sees_it_whatever_was_called_last(monkeypatch):
    class Seen(TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names += (str(function),)
            return function(*args, **kwargs or {})

    forget_choices(monkeypatch)
    monkeypatch.setattr(attend, "_looked", True)
    monkeypatch.setattr(attend, "is_plain", lambda *_: True)
    q, k, v = drawn(PLAIN)
    for _ in range(2):
        expected = torch.ops.attnlab.attention(q, k, v)
        assert attend._last.is_alike(q, k, v)
        with Seen() as seen:
            attnlab.attend(q, k, v)
            output = torch.ops.attnlab.attention(q, k, v)
        assert "attnlab.attention.default" in seen.names
        assert torch.equal(output, expected)


def test_values_of_another_width_are_refused_in_a_line():
    q, k, v = drawn(PLAIN)
    with pytest.raises(RuntimeError, match=r"V has to have the shape of K, \(2, 4, 33, 16\), not \(2, 4, 33, 8\)"):
        torch.ops.attnlab.attention(q, k, v[..., :8])
