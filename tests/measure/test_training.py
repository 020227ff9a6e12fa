"""`attnlab.attend` under autograd without a GPU: formulas replace the kernels. With a GPU: test_gpu_backward.py."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import forget_choices
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import attnlab
from attnlab.measuring.kernels import backward
from attnlab.measuring.subjects import inputs, sdpa
from attnlab.measuring.subjects.oracle import composed, gradients
from attnlab.serving import attend, calls, context, ragged, training
from attnlab.study.shapes import Shape

PYTORCH = F.scaled_dot_product_attention
PLAIN = Shape(2, 4, 33, 16, dtype="float32")
COMPILED = partial(torch.compile, fullgraph=True, backend="aot_eager")


@pytest.fixture
def ran(monkeypatch):
    """The passes that ran, as formulas, for more than 8 queries of tensors that report a GPU."""
    passes = []

    def forward(q, k, v, causal, scale):
        passes.append("forward")
        return composed(q, k, v, causal, scale), gradients(q, k, v, q, causal, scale)[3].float()

    def of_gradient(q, k, v, out, lse, dout, causal, scale):
        passes.append("backward")
        torch.testing.assert_close(lse, gradients(q, k, v, dout, causal, scale)[3].float())
        torch.testing.assert_close(out, composed(q, k, v, causal, scale))
        return tuple(x.contiguous() for x in gradients(q, k, v, dout, causal, scale)[:3])

    def is_plain(*tensors):
        plain = all(type(tensor) is torch.Tensor for tensor in tensors)
        return plain and not context.is_transformed() and not context.asks_for_sdpa()

    forget_choices(monkeypatch)
    torch._dynamo.reset()
    monkeypatch.setattr(calls, "layouts", {})
    monkeypatch.setattr(attend, "is_plain", is_plain)
    monkeypatch.setattr(ragged, "is_plain", is_plain)
    monkeypatch.setattr(training, "serves", lambda q, k, v, *_: q.shape[2] > 8)
    monkeypatch.setattr(backward, "forward", forward)
    monkeypatch.setattr(backward, "backward", of_gradient)
    return passes


def drawn(shape=PLAIN):
    return [tensor.requires_grad_() for tensor in inputs.draw(shape, 0, torch.device("cpu"))]


def require_alike(given, ours, theirs=PYTORCH, **tolerance):
    """Fail unless both functions have the same outputs and gradients; returns our gradients."""
    found = []
    for call in (ours, theirs):
        output = call(*given)
        dout = torch.randn(output.mT.shape, generator=torch.Generator().manual_seed(0)).mT.to(output.dtype)
        found.append([output, *torch.autograd.grad(output, given, dout)])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, **tolerance)
    return found[0][1:]


@pytest.mark.parametrize("causal", [False, True])
def test_each_of_the_packed_sequences_that_is_long_enough_has_gradients_by_the_kernels(ran, causal):
    lengths, key_lengths = [12, 4, 20, 9], [12, 7, 25, 9]
    given = [
        torch.randn(sum(n), heads, 16, requires_grad=True) for n, heads in ((lengths, 4), *2 * ((key_lengths, 2),))
    ]
    ends = [torch.tensor([0, *n]).cumsum(0) for n in (lengths, key_lengths)]

    def each(*tensors):
        parts = zip(*(x.transpose(0, 1)[None].split(n, 2) for x, n in zip(tensors, split, strict=True)), strict=True)
        return torch.cat([composed(*part, causal)[0].transpose(0, 1) for part in parts])

    split = (lengths, key_lengths, key_lengths)
    require_alike(given, lambda *tensors: attnlab.attend_ragged(*tensors, *ends, causal), each)
    assert (ran.count("forward"), ran.count("backward")) == (3, 3)


ROUTES = {
    "eager": attnlab.attend,
    "the operator": lambda *given: torch.ops.attnlab.attention(*given),
    "compiled": lambda *given: COMPILED(attnlab.attend)(*given),
    "compiled for any length": lambda *given: COMPILED(attnlab.attend, dynamic=True)(*given),
}
SHAPES = [
    PLAIN,
    PLAIN.resized(causal=True, kv_heads=2, layout="tokens first"),
    PLAIN.resized(seq_len=17, kv_len=33, causal=True, scale=0.3),
    PLAIN.resized(seq_len=8, kv_len=33, causal=True, kv_heads=1),  # too few queries for the kernels
]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_sdpa_by_our_passes_where_they_serve(ran, route, shape):
    given, options = drawn(shape), (shape.causal, shape.scale or None)
    found = require_alike(given, lambda *q: ROUTES[route](*q, *options), lambda *q: sdpa.sdpa(*q, *options))
    assert ran == (["forward", "backward"] if shape.seq_len > 8 else [])
    strides = [torch.empty_like(tensor).stride() for tensor in given]
    assert not ran or "compiled" in route or [each.stride() for each in found] == strides


AROUND = {
    "a checkpoint": lambda call, *given: checkpoint(call, *given, use_reentrant=False),
    "no gradient of Q": lambda call, q, k, v: call(q.detach(), k, v) + 0 * q,
    "one tensor": lambda call, q, k, v: call(q, q, q) + 0 * k + 0 * v,
    "a gradient that repeats itself": lambda call, *given: call(*given).sum().expand(3, 1, 1),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_gradients_are_those_of_sdpa_whatever_is_around(ran, around):
    require_alike(drawn(), partial(around, attnlab.attend), partial(around, PYTORCH))
    assert set(ran) == {"forward", "backward"}


@pytest.mark.parametrize("compiled", [False, True])
def test_within_the_block_pytorchs_function_has_our_gradients(ran, compiled):
    def ours(*given):
        return F.scaled_dot_product_attention(*given)

    with attnlab.attention():
        require_alike(drawn(), COMPILED(ours) if compiled else ours, PYTORCH)
        assert ran == ["forward", "backward"]
        require_alike(drawn(PLAIN.resized(seq_len=8)), ours, PYTORCH)
    assert len(ran) == 2


@pytest.mark.parametrize("route", ROUTES)
def test_autocast_casts_as_for_sdpa(ran, route):
    def cast(call, *given):
        with torch.autocast("cpu", torch.bfloat16):
            return call(*given)

    found = require_alike(drawn(), partial(cast, ROUTES[route]), partial(cast, PYTORCH), atol=0.05, rtol=0.05)
    assert {each.dtype for each in found} == {torch.float32}
    assert ran == ["forward", "backward"]


def test_gradients_may_be_differentiated_again(ran):
    def again(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):
            return sdpa.sdpa(q, k, v, True)

    def second(call, *given):
        found = torch.autograd.grad(call(*given).square().sum(), given, create_graph=True)
        return sum(each.square().sum() for each in found).view(1, 1)

    ours, tolerance = partial(attnlab.attend, causal=True), {"atol": 1e-3, "rtol": 1e-3}
    require_alike(drawn(), partial(second, ours), partial(second, again), **tolerance)
    assert ran == ["forward", "backward"]  # backward for the gradient of the output itself


TRANSFORMS = {
    "vmap": lambda call, q, k, v: torch.vmap(lambda q: call(q, k, v))(q[None]),
    "grad": lambda call, q, k, v: torch.func.grad(lambda q: call(q, k, v).square().sum())(q),
    "vmap, compiled": lambda call, *given: COMPILED(lambda q, k, v: torch.vmap(call)(q[None], k[None], v[None]))(
        *given
    ),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_of_functorch_are_for_sdpa(ran, transform):
    torch.testing.assert_close(transform(attnlab.attend, *drawn()), transform(PYTORCH, *drawn()))
    assert not ran


def test_five_tensors_are_kept_and_flops_are_counted(ran):
    given, kept = drawn(PLAIN.resized(kv_heads=2)), []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(tuple(x.shape)) or x, lambda x: x)
    with hooks, FlopCounterMode(display=False) as counter:
        attnlab.attend(*given).sum().backward()
    assert kept == [*(tuple(each.shape) for each in given), (2, 4, 33, 16), (2, 4, 33)]
    assert counter.get_total_flops() == 3.5 * 4 * 2 * 4 * 33 * 33 * 16


Q = Shape(2, 4, 512, 64, dtype="float16")
SERVED = [{"head_dim": 128, "dtype": "bfloat16", "causal": True}, {"kv_heads": 1}, {"batch": 1024, "seq_len": 128}]
UNSERVED = [
    *({"seq_len": 511}, {"kv_len": 511}, {"head_dim": 256}, {"dtype": "float32"}, {"scale": 1e4}, {"batch": 2**15}),
    *({"batch": 1024, "seq_len": 127, "kv_len": 128}, {"batch": 8192, "seq_len": 63, "kv_len": 128}),
    {"seq_len": 2**22 + 1, "kv_len": 2**22 + 1},
]


@pytest.mark.parametrize(
    ("changes", "ready", "served"),
    [
        *(({}, ready, ready) for ready in (False, True)),
        *((more, True, True) for more in SERVED),
        *((more, True, False) for more in UNSERVED),
    ],
    ids=str,
)
def test_both_kernels_serve_what_is_long_enough(monkeypatch, changes, ready, served):
    monkeypatch.setattr(training, "_readiness", lambda device: ready)
    shape = Q.resized(**changes)
    with FakeTensorMode():
        sizes = [(shape.batch, shape.heads, shape.seq_len, shape.head_dim)]
        sizes += 2 * [(shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim)]
        given = [torch.empty(size, dtype=getattr(torch, shape.dtype), device="cuda") for size in sizes]
        assert training.serves(*given, shape.causal, shape.scale or None) is served
        assert not training.serves(*(tensor.cpu() for tensor in given), shape.causal, None)
    assert not training.serves(*(torch.empty(size, device="meta") for size in sizes), False, None)
