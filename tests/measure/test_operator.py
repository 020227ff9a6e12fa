"""The operator attnlab::attention without a GPU. With a GPU: test_gpu_views.py."""

from functools import partial

import pytest
import torch
from conftest import forget_choices, keeping
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

import attnlab
from attnlab.measuring.subjects import inputs
from attnlab.serving import attend, calls, ragged
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
    """The operator, which `attnlab.attend` registers."""
    assert attnlab.attend
    torch._dynamo.reset()  # compilations of other tests count towards its limit


def drawn(shape, requires_grad=False):
    return [
        tensor.clone(memory_format=torch.preserve_format).requires_grad_(requires_grad)
        for tensor in inputs.draw(shape, 0, CPU)
    ]


@pytest.mark.parametrize(("shape", "requires_grad"), [(SHAPES[1], True), (SHAPES[1], False), (SHAPES[2], True)])
def test_torch_finds_nothing_wrong_with_it(shape, requires_grad):
    given = (*drawn(shape, requires_grad), shape.causal, shape.scale or None)
    torch.library.opcheck(torch.ops.attnlab.attention.default, given)


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flops_are_counted_as_those_of_sdpa(monkeypatch, shape, lengths):
    forget_choices(monkeypatch)
    monkeypatch.setattr(calls, "layouts", {})
    monkeypatch.setattr(attend, "is_plain", lambda *_: True)
    given = drawn(shape)
    options = {"kv_lens": torch.tensor([7, shape.kv_len])} if lengths else {}
    call = partial(attnlab.attend, causal=shape.causal, **options)
    counted = []
    for counting in (math_alone, call, torch.compile(call, backend="aot_eager")):
        with FlopCounterMode(display=False) as counter:
            counting(*given)
        counted.append(counter.get_total_flops())
    assert counted == 3 * [4 * shape.batch * shape.heads * shape.seq_len * shape.kv_len * shape.head_dim]


def math_alone(q, k, v):
    """SDPA by the math backend, whose FLOPs PyTorch counts on a CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


@pytest.mark.parametrize(
    ("dtype", "lengths", "requires_grad"),
    [("float32", False, False), ("float32", True, True), ("float16", True, False), ("float64", False, True)],
)
def test_compiled_under_autocast_it_gives_the_dtype_that_sdpa_does(dtype, lengths, requires_grad):
    shape = PLAIN.resized(dtype=dtype)
    given = drawn(shape, requires_grad)
    options = {"kv_lens": torch.tensor([33, 33])} if lengths else {}
    compiled = torch.compile(lambda *tensors: attnlab.attend(*tensors, **options), fullgraph=True, backend="aot_eager")
    for cast in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", cast):
            expected = scaled_dot_product_attention(*given)
            torch.testing.assert_close(compiled(*given), expected)
            torch.testing.assert_close(attnlab.attend(*given, **options), expected)
            packed, ends = [each[0].transpose(0, 1) for each in given], torch.tensor([0, 33])
            torch.testing.assert_close(attnlab.attend_ragged(*packed, ends, ends).transpose(0, 1), expected[0])
            if not lengths:
                torch.testing.assert_close(torch.ops.attnlab.attention(*given), expected)


@pytest.mark.parametrize(
    "changed",
    [
        lambda q, k, v: (q[:, :, :5], k, v[..., :8]),
        lambda q, k, v: (q[:1], k, v),
        lambda *given: [TwoTensor(each, each.clone()) for each in given],
    ],
    ids=["another width of V", "one Q for a batch", "a subclass"],
)
def test_compiled_calls_that_it_does_not_serve_are_for_sdpa(changed):
    graphs, given = [], changed(*drawn(PLAIN))

    def compared(call, q, k, v):
        return call(q, k, v).sum(2) + v.sum(2)

    compiled = torch.compile(partial(compared, attnlab.attend), fullgraph=True, dynamic=True, backend=keeping(graphs))
    torch.testing.assert_close(compiled(*given), compared(scaled_dot_product_attention, *given))
    assert "attnlab" not in graphs[0]


def test_values_of_another_width_are_refused_in_a_line():
    q, k, v = drawn(PLAIN)
    with pytest.raises(RuntimeError, match=r"V has to have the shape of K, \(2, 4, 33, 16\), not \(2, 4, 33, 8\)"):
        torch.ops.attnlab.attention(q, k, v[..., :8])


def test_torch_finds_nothing_wrong_with_those_of_unlike_lengths():
    q, k, v = drawn(PLAIN)
    lengths, ends = torch.tensor([7, 33]), torch.tensor([0, 1, 4], dtype=torch.int32)
    torch.library.opcheck(torch.ops.attnlab.attention_of_lengths.default, (q, k, v, lengths, True, None, lengths))
    pages = torch.tensor([[0], [1]], dtype=torch.int32)
    paged = (q, k, v, lengths, True, None, None, pages)
    torch.library.opcheck(torch.ops.attnlab.attention_of_lengths.default, paged)
    torch.library.opcheck(torch.ops.attnlab.attention_packed.default, (q[0], k[0], v[0], ends, ends, True, 0.5))


def test_a_mode_that_traces_sees_packed_sequences(monkeypatch):
    monkeypatch.setattr(ragged, "head_dims", lambda *_: (16,))
    ends = torch.tensor([0, 1, 4], dtype=torch.int32)
    traced = make_fx(lambda q: attnlab.attend_ragged(q, q, q, ends, ends))(drawn(PLAIN)[0][0])
    assert "ops.attnlab.attention_packed" in traced.code
