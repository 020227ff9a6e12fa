"""`attnlab.attend` without a GPU: SDPA itself, and the choices by a table. With a GPU: test_gpu_backends.py."""

import math
import re
import sys
from contextlib import nullcontext
from functools import partial
from itertools import accumulate, product
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import choice, forget_choices, table, told
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

import attnlab
from attnlab.base import paths
from attnlab.measuring.instruments import environment
from attnlab.measuring.kernels import rungs
from attnlab.measuring.subjects import inputs, oracle
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.runs import dispatch
from attnlab.serving import attend, calls, ragged
from attnlab.study.shapes import Shape

CPU = torch.device("cpu")
PLAIN = Shape(2, 4, 33, 32, dtype="float32")
SHAPES = [
    PLAIN,
    PLAIN.resized(causal=True),
    PLAIN.resized(dtype="bfloat16", causal=True),
    PLAIN.resized(kv_heads=2),
    PLAIN.resized(kv_heads=1, causal=True),
    PLAIN.resized(seq_len=1, kv_len=65),
    PLAIN.resized(seq_len=1, kv_len=65, kv_heads=2),
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Clears the tables that were read, before and after the test."""
    forget_choices(monkeypatch)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_a_cpu_it_is_sdpa(shape, unlocked):
    environment.lock()
    q, k, v = inputs.draw(shape, 0, CPU)
    expected = scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=shape.kv_heads != shape.heads)
    assert torch.equal(attnlab.attend(q, k, v, causal=shape.causal), expected)
    assert torch.equal(attnlab.attend(q, k, v, shape.causal), expected)
    assert calls.layouts is None  # no search for a table either


def test_it_is_a_name_of_the_package():
    assert attnlab.attend is attend.attend
    assert vars(attnlab)["attend"] is attend.attend  # so that calls don't run the package's __getattr__
    with pytest.raises(AttributeError, match=r"^module 'attnlab' has no attribute 'attends'$"):
        _ = attnlab.attends


# Unequal sequence lengths


@pytest.mark.parametrize(
    ("causal", "kv_heads", "dtype", "compiled"),
    [
        *product([False, True], [4, 1], ["float32", "float64"], [False]),
        *((False, 4, "float64", True), (True, 1, "float32", True)),
    ],
)
def test_lengths_of_sequences_are_those_of_each_alone(causal, kv_heads, dtype, compiled):
    q, k, v = inputs.draw(Shape(5, 4, 3, 32, causal, dtype, kv_heads=kv_heads, kv_len=40), 0, CPU)
    lengths = [40, 17, 2, 0, 90]
    unseen = (torch.arange(40) >= torch.tensor(lengths)[:, None])[:, None, :, None]
    garbage = (tensor.masked_fill(unseen, torch.nan) for tensor in (k, v))
    call = torch.compile(attnlab.attend, backend="eager", fullgraph=True) if compiled else attnlab.attend
    output = call(q, *garbage, causal=causal, kv_lens=torch.tensor(lengths))
    for sequence, length in enumerate(lengths):
        one = slice(sequence, sequence + 1)
        if not length:
            assert not output[one].any()
            continue
        blind = max(0, 3 - length) if causal else 0  # queries before the first key
        right = attnlab.attend(q[one, :, blind:], k[one, :, :length], v[one, :, :length], causal=causal)
        torch.testing.assert_close(output[one, :, blind:], right)
        assert not output[one, :, :blind].any()


QUERY_LENS, KEY_LENS = [3, 0, 1, 10, 9], [5, 4, 0, 3, 9]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_packed_and_padded_are_those_of_each_alone(causal, compiled):
    """Includes more queries than keys, so that the first queries see none, and NaN beyond all lengths."""
    heads, generator = (4, 2, 2), torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    packed = [draw(sum(lens), h, 32) for lens, h in zip((QUERY_LENS, KEY_LENS, KEY_LENS), heads, strict=True)]
    ends = [torch.tensor([0, *accumulate(lens)]) for lens in (QUERY_LENS, KEY_LENS)]
    each = [x.split(lens) for x, lens in zip(packed, (QUERY_LENS, KEY_LENS, KEY_LENS), strict=True)]
    padded = [torch.full((5, h, 10, 32), torch.nan, dtype=torch.float64) for h in heads]
    right = []
    for sequence, parts in enumerate(zip(*each, strict=True)):
        q, k, v = (part.transpose(0, 1) for part in parts)
        for tensor, part in zip(padded, (q, k, v), strict=True):
            tensor[sequence, :, : part.shape[1]] = part
        seen = oracle.seen(torch.tensor([k.shape[1]]), q.shape[1], k.shape[1], causal)[0]
        scores = (q @ k.repeat_interleave(2, 0).mT / 32**0.5).masked_fill(~seen, -torch.inf)
        output = torch.softmax(scores, -1).nan_to_num() @ v.repeat_interleave(2, 0)
        right.append(output.transpose(0, 1))
    compiling = partial(torch.compile, backend="eager", fullgraph=True) if compiled else lambda function: function
    torch.testing.assert_close(compiling(attnlab.attend_ragged)(*packed, *ends, causal), torch.cat(right))
    lengths = {"q_lens": torch.tensor(QUERY_LENS), "kv_lens": torch.tensor(KEY_LENS)}
    found = compiling(attnlab.attend)(*padded, causal=causal, **lengths).transpose(1, 2)
    for output, expected in zip(found, right, strict=True):
        torch.testing.assert_close(output[: len(expected)], expected)
        assert not output[len(expected) :].any()


def test_packed_sequences_that_lie_outside_end_with_the_tensor():
    q, k = torch.randn(9, 2, 32), torch.randn(6, 2, 32)
    output = attnlab.attend_ragged(q, k, k, torch.tensor([-4, 5, 400]), torch.tensor([0, 2, 70]))
    right = attnlab.attend_ragged(q, k, k, torch.tensor([0, 5, 9]), torch.tensor([0, 2, 6]))
    torch.testing.assert_close(output, right)
    given = {"q": q, "k": k, "v": k, "cu_seqlens_q": torch.tensor([0, 9]), "cu_seqlens_k": torch.tensor([0, 6])}
    other_ends = [{"cu_seqlens_q": torch.tensor(ends)} for ends in ([0.0, 9.0], [0])]
    for wrong in (*other_ends, {"q": q[None]}, {"v": k[..., :16]}):
        assert "cu_seqlens" in told(partial(attnlab.attend_ragged, **given | wrong), ValueError)


def test_many_queries_of_sequences_are_a_kernels_for_any_length(monkeypatch):
    q, k, v = inputs.draw(Shape(2, 2, 4, 64, kv_len=9), 0, CPU)
    monkeypatch.setattr(attend, "is_plain", lambda *_: True)
    monkeypatch.setattr(ragged, "split", lambda *_: "few")
    asked = []
    monkeypatch.setattr(ragged, "padded", lambda *given: asked.append(given[3:]) or "ragged")
    lengths = torch.tensor([3, 2**40])
    assert attnlab.attend(q, k, v, kv_lens=lengths) == "few"
    assert attnlab.attend(q, k, v, True, kv_lens=lengths, q_lens=lengths) == "ragged"
    assert attnlab.attend(q, k, v, q_lens=torch.tensor([3], dtype=torch.int32).expand(2)) == "ragged"
    (causal, scale, *found, table), (*_, expanded, _, _) = asked
    assert expanded.is_contiguous()
    assert (causal, scale, table, [each.tolist() for each in found]) == (True, None, None, [[3, 4], [3, 9]])
    assert all(each.dtype == torch.int32 for each in found)
    monkeypatch.setattr(ragged, "MOST_FEW", 3)
    assert attnlab.attend(q, k, v, kv_lens=lengths) == "ragged"


def test_caches_whose_layout_one_kernel_refuses_are_another_ones(monkeypatch):
    q, k, v = inputs.draw(Shape(2, 2, 4, 64, kv_len=9), 0, CPU)
    asked, caches = [], Mock(side_effect=Unsupported("sequences that aren't whole rows apart"))
    kernels = {rungs.CACHES: caches, rungs.FEW: lambda *given: asked.append(given) or "few"}
    monkeypatch.setattr(attend, "is_plain", lambda *_: True)
    monkeypatch.setattr(ragged, "kernel", kernels.get)
    assert attnlab.attend(q, k, v, True, 0.5, kv_lens=torch.tensor([3, 2**40])) == "few"
    ((*given, causal, scale, lengths),) = asked
    assert [each is its for each, its in zip(given, (q, k, v), strict=True)] == [True] * 3
    assert (causal, scale, lengths.dtype, lengths.tolist()) == (True, 0.5, torch.int32, [3, 9])
    kernels[rungs.FEW] = caches
    assert attnlab.attend(q, k, v, kv_lens=torch.tensor([3, 9])).shape == q.shape
    kernels.clear()  # none is asked for gradients
    assert attnlab.attend(q.requires_grad_(), k, v, kv_lens=torch.tensor([3, 9])).requires_grad


def test_lengths_of_sequences_have_gradients():
    shape = Shape(2, 2, 4, 32, dtype="float32", kv_len=12)
    q, k, v = (tensor.requires_grad_() for tensor in inputs.draw(shape, 0, CPU))
    attnlab.attend(q, k, v, kv_lens=torch.tensor([5, 12])).sum().backward()
    assert v.grad[0, :, :5].abs().sum() > 0
    assert not v.grad[0, :, 5:].any()


NO_LENGTHS = [3, [1], [[1, 2]], [1.0, 2.0], [True, False], [1j, 2j], torch.tensor([1, 2]).to_sparse()]


@pytest.mark.parametrize("lengths", NO_LENGTHS)
def test_lengths_that_do_not_fit_are_refused(lengths):
    q, k, v = inputs.draw(Shape(2, 2, 4, 32, dtype="float32"), 0, CPU)
    said = r"^kv_lens has to hold a whole number for each sequence of q \(2, 2, 4, 32\)$"
    with pytest.raises(ValueError, match=said):
        attnlab.attend(q, k, v, kv_lens=torch.as_tensor(lengths))
    with pytest.raises(TypeError, match=r"^attend takes tensors, and kv_lens is of type list$"):
        attnlab.attend(q, k, v, kv_lens=[1, 2])


# The table


def test_without_a_gpu_there_is_nothing_to_go_by(monkeypatch, data):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    written = dispatch.write(table(choice(PLAIN, "sdpa.flash")))
    for source in (None, written, str(written)):
        assert told(partial(attend.use, source)) == "a dispatch table serves an NVIDIA GPU, and torch sees none here"


def test_the_table_of_this_device_is_found_and_another_may_be_named(h200, tmp_path):
    assert attend.use() is None  # `make dispatch` has not written one
    made = table(choice(PLAIN, "sdpa.flash"))
    dispatch.write(made)
    assert attend.use() == made
    assert calls.table == made
    assert "there is no dispatch table" in told(lambda: attend.use(tmp_path / "gone.json"))
    other = tmp_path / "mine.json"
    other.write_text(table(choice(PLAIN, "sdpa.cudnn")).model_dump_json())
    assert attend.use(str(other)).choose(PLAIN) == "sdpa.cudnn"


UNKNOWN = ": unknown implementation {!r}; known are sdpa.auto, "


@pytest.mark.parametrize(
    ("implementation", "of", "said"),
    [
        ("sdpa.flash", {"device": "NVIDIA L4"}, " was made on NVIDIA L4, and this is NVIDIA H200"),
        ("sdpa.flsh", {}, UNKNOWN.format("sdpa.flsh") + ".*; did you mean 'sdpa.flash'[?]"),
        ("peer.flex", {}, UNKNOWN.format("peer.flex")),
        ("kernel.gone", {}, ": the ladder has no rung for 'kernel.gone'"),
    ],
)
def test_a_table_that_is_refused_is_told_in_a_line_and_leaves_the_one_before(h200, tmp_path, implementation, of, said):
    written = dispatch.write(table(choice(PLAIN, "sdpa.flash")))
    before = attend.use()
    named = tmp_path / "named.json"
    named.write_text(table(choice(PLAIN, implementation), **of).model_dump_json())
    assert re.match(re.escape(paths.shown(named)) + said, told(partial(attend.use, named)))
    assert calls.table is before
    named.replace(written)
    with pytest.warns(UserWarning, match=re.escape(f"attend calls SDPA: {paths.shown(written)}") + said):
        assert attend.use() is None


def test_under_another_pytorch_a_kernel_is_chosen_by_a_margin_and_it_is_said_once(h200, monkeypatch):
    gains = {"kernel.best": 1.2, "kernel.mma": 1.1, "sdpa.cudnn": 1.5}
    ahead, level, far = PLAIN, PLAIN.resized(batch=1), PLAIN.resized(head_dim=128)
    near = {"kernel.best": dispatch.MARGIN, "sdpa.cudnn": 1.5}
    made = [choice(ahead, "sdpa.cudnn", speedups=gains), choice(level, "kernel.best", speedups=near)]
    monkeypatch.setattr(dispatch.Dispatch, "_holds", lambda self, choice: True)
    sources = {"kernel.mma": dispatch.ladder.hashes()["kernel.mma"]}
    written = dispatch.write(table(*made, torch="1.0", sources=sources))
    with pytest.warns(UserWarning, match="lead by more than 5 %, else SDPA") as warned:
        tables = [attend.use(source) for source in (None, None, written)]
    (one,) = warned
    assert tables == 3 * [calls.table]
    assert str(one.message).startswith(f"{paths.shown(written)} is of PyTorch 1.0, not {calls.VERSION}: attend ")
    assert "\n" not in str(one.message)
    names = [calls.choose(*inputs.draw(shape, 0, CPU), False, None) for shape in (ahead, level, far)]
    assert names == ["kernel.best", "sdpa.auto", "sdpa.auto"]
    # Between them the expected speedup of kernel.best is 1.16. A layout tuned under this version needs no margin.
    between = inputs.draw(PLAIN.resized(batch=2, heads=3), 0, CPU)
    assert calls.choose(*between, False, None) == "kernel.best"
    calls.settle(calls.layout_words(*between, False, None), "sdpa.cudnn")
    assert calls.choose(*between, False, None) == "sdpa.cudnn"
    assert [calls.table.choose(shape) for shape in (ahead, level)] == ["sdpa.cudnn", "kernel.best"]


# The called implementation. Tensors that report a GPU stand in for GPU tensors.


class OnGpu(torch.Tensor):
    @property
    def is_cuda(self):
        return True


def tensor(*sizes: int, dtype=torch.float16) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype).as_subclass(OnGpu)


@pytest.fixture
def called(monkeypatch):
    """The names of called implementations; the table has `sdpa.flash` at (2, 4, 33, 32), float16, no mask."""
    names, answer = [], {"raises": None}

    def flash(q, k, v, causal, scale=None):
        names.append("flash")
        if answer["raises"]:
            raise answer["raises"]
        return q

    def sdpa(q, k, v, **options):
        names.append("sdpa")
        return q

    monkeypatch.setattr(calls, "KIND", OnGpu)
    monkeypatch.setattr(calls, "table", table(choice(PLAIN.resized(dtype="float16"), "sdpa.flash")))
    monkeypatch.setattr(calls, "layouts", {})
    monkeypatch.setattr(calls, "_DIRECT", {"sdpa.flash": flash})
    for module in (calls, calls.sdpa):
        monkeypatch.setattr(module, "scaled_dot_product_attention", sdpa)
    return SimpleNamespace(names=names, answer=answer)


Q = (2, 4, 33, 32)


@pytest.mark.parametrize("length", [33, 34])  # in the table, and not in it
@pytest.mark.parametrize(("first", "row"), [(1, 32), (4, 32), (0, 33), (0, 36)])
def test_torch_computes_from_copies_of_what_is_not_aligned(called, length, first, row):
    memory = tensor(2 * 4 * length * row + first)
    odd = memory[first:].view(2, 4, length, row)[..., :32]
    even = tensor(2, 4, length, 32)
    output = attend.attend(odd, even, even)
    assert output.is_contiguous()
    assert output.data_ptr() % 16 == 0
    assert output.data_ptr() != odd.data_ptr()
    assert attend.attend(even, even, even).data_ptr() == even.data_ptr()
    assert called.names == 2 * (["flash"] if length == 33 else ["sdpa"])


def test_the_chosen_one_is_called_at_its_shape(called):
    for given in (3 * [tensor(*Q)], [tensor(2, 33, 4, 32).transpose(1, 2)] * 3):
        attend.attend(*given)
        attend.attend(*given, causal=False, scale=0.5)
    assert called.names == ["flash"] * 4
    assert len(calls.prepared) == 4


def one_of_three(made, changed):
    return lambda: [made(tensor(*Q)) if number == changed else tensor(*Q) for number in range(3)]


CHANGED = [
    *(lambda one: one.to(torch.bfloat16), lambda one: one.as_subclass(torch.Tensor), torch._neg_view),
    lambda one: torch._efficientzerotensor(one.shape, dtype=one.dtype).as_subclass(OnGpu),
]


@pytest.mark.parametrize(
    "given",
    [
        lambda: (*(tensor(*Q) for _ in range(3)), True),
        lambda: (tensor(*Q), tensor(2, 4, 65, 32), tensor(2, 4, 65, 32)),
        lambda: (tensor(*Q), tensor(*Q), tensor(2, 4, 33, 16)),
        lambda: (tensor(2, 4, 0, 32), tensor(*Q), tensor(*Q)),
        lambda: [tensor(2, 4, 33, 64)] * 3,
        lambda: (tensor(*Q), *[tensor(2, 1, 33, 32).expand(Q)] * 2),  # strides that SDPA checks
        lambda: (tensor(*Q), *[tensor(2, 4, 32, 33).transpose(2, 3)] * 2),
        *(one_of_three(made, changed) for made in CHANGED for changed in range(3)),
    ],
)
def test_tensors_that_the_choice_is_not_for_are_for_sdpa_whatever_was_called_last(called, given):
    attend.attend(tensor(*Q), tensor(*Q), tensor(*Q))
    attend.attend(*given())
    assert called.names == ["flash", "sdpa"]


class Replacing(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **kwargs or {})


ALL = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@pytest.mark.parametrize(
    ("context", "reached"),
    [
        (partial(sdpa_kernel, SDPBackend.FLASH_ATTENTION), "sdpa"),
        (partial(sdpa_kernel, SDPBackend.MATH), "sdpa"),
        (partial(sdpa_kernel, ALL, set_priority=True), "sdpa"),
        (partial(sdpa_kernel, ALL[1:]), "sdpa"),
        (forward_ad.dual_level, "sdpa"),
        (Replacing, "sdpa"),
        (partial(torch.device, "cpu"), "flash"),
    ],
    ids=["flash", "math", "an order", "no cuDNN", "forward gradients", "functions replaced", "a default device"],
)
def test_sdpa_is_called_where_a_user_asks_for_it_whatever_was_called_last(called, context, reached):
    given = [tensor(*Q) for _ in range(3)]
    attend.attend(*given)
    with context():
        attend.attend(*given)
        attend.attend(*given)
    attend.attend(*given)
    assert called.names == ["flash", reached, reached, "flash"]


@pytest.mark.parametrize(
    ("scale", "reached"),
    [
        *((scale, "flash") for scale in (1e-30, 0.02, 1, 1e3)),
        *((scale, "sdpa") for scale in (0.0, -0.0, -0.5, 1e-31, 1e30)),
    ],
)
def test_a_scale_that_kernels_do_not_serve_exactly_is_for_sdpa(called, scale, reached):
    attend.attend(tensor(*Q), tensor(*Q), tensor(*Q), scale=scale)
    assert called.names == [reached]


@pytest.mark.parametrize("changed", range(3))
def test_gradients_are_for_sdpa_where_they_are_asked_for(called, changed):
    given = [tensor(*Q).requires_grad_(number == changed) for number in range(3)]
    attend.attend(*given)
    with torch.no_grad():
        attend.attend(*given)
    assert called.names == ["sdpa", "flash"]


@pytest.mark.parametrize(
    ("error", "contiguous", "served"),
    [
        (Unsupported("takes contiguous Q, K and V"), True, True),
        (RuntimeError("Query must have contiguous last dimension"), False, True),
        (torch.OutOfMemoryError("CUDA out of memory"), False, False),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True, False),
        (ValueError("a bug"), False, False),
    ],
)
def test_what_the_chosen_one_does_not_serve_is_for_sdpa_and_whatever_else_fails_reaches_the_caller(
    called, error, contiguous, served
):
    called.answer["raises"] = error
    k = tensor(*Q) if contiguous else tensor(2, 33, 4, 32).transpose(1, 2)
    with nullcontext() if served else pytest.raises(type(error), match=str(error)):
        attend.attend(tensor(*Q), k, tensor(*Q))
    assert called.names == ["flash", "sdpa"][: 1 + served]


def test_the_table_is_read_at_the_first_call_and_a_bad_one_is_warned_of(h200, called, monkeypatch):
    monkeypatch.setattr(calls, "layouts", None)
    attend.attend(tensor(*Q), tensor(*Q), tensor(*Q))
    assert called.names == ["sdpa"]
    assert (calls.table, calls.layouts) == (None, {})
    monkeypatch.setattr(calls, "layouts", None)
    monkeypatch.setattr(calls, "last", calls.NOTHING)
    calls.prepared.clear()
    dispatch.path("NVIDIA H200").parent.mkdir(parents=True)
    dispatch.path("NVIDIA H200").write_text("{")
    with pytest.warns(UserWarning, match="attend calls SDPA: .* is no dispatch table"):
        attend.attend(tensor(*Q), tensor(*Q), tensor(*Q))
    assert called.names == ["sdpa", "sdpa"]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("make", [tensor, torch.zeros], ids=["on a GPU", "on a CPU"])
def test_what_is_no_tensor_and_other_lengths_are_refused_in_a_line(called, monkeypatch, make, grad):
    given = make(*Q)
    monkeypatch.setattr(calls, "KIND", type(given))
    with torch.set_grad_enabled(grad):
        for name, wrong in (("q", None), ("k", np.zeros(Q)), ("v", [1.0])):
            said = f"^attend takes tensors, and {name} is of type {type(wrong).__name__}$"
            with pytest.raises(TypeError, match=said):
                attend.attend(**{"q": given, "k": given, "v": given} | {name: wrong})
        with pytest.raises(ValueError, match=r"^k and v differ in length: \(2, 4, 33, 32\) and \(2, 4, 32, 32\)$"):
            attend.attend(given, given, given[:, :, 1:])
    assert called.names == []


TAKES = r"takes q \(batch, heads, seq_len, head_dim\) and k and v \(batch, .+ divides heads, not q \("
DTYPES = "takes tensors in float16, bfloat16, float32 or float64, and q is torch."


@pytest.mark.parametrize("on", ["a GPU", "a CPU"])
@pytest.mark.parametrize(
    ("sizes", "options", "said"),
    [
        ((Q[1:], Q), {}, TAKES + r"4, 33, 32\), k \(2, 4, 33, 32\), v \(2, 4, 33, 32\)$"),
        ((Q, (2, 4, 33, 16)), {}, TAKES),
        ((Q, (2, 3, 33, 32)), {}, TAKES),
        ((Q, Q), {"dtype": torch.float8_e5m2}, DTYPES + "float8_e5m2$"),
        ((Q, Q), {"scale": math.nan}, "takes a finite scale, not nan$"),
    ],
)
def test_what_there_is_no_attention_of_is_refused_in_a_line(called, monkeypatch, on, sizes, options, said):
    made = [tensor(*size, dtype=options.get("dtype", torch.float16)) for size in sizes]
    if on == "a CPU":
        monkeypatch.setattr(calls, "KIND", torch.Tensor)
        made = [one.as_subclass(torch.Tensor) for one in made]
    q, k = made
    with pytest.raises(ValueError, match=f"^attend {said}"):
        attend.attend(q, k, k, scale=options.get("scale"))
    if len(sizes[0]) == len(sizes[1]) == 4:
        with pytest.raises(ValueError, match=f"^attend {said}"):
            attend.attend(q, k, k, scale=options.get("scale"), kv_lens=torch.tensor([1, 2]))
    assert called.names == []


def test_without_transformers_register_says_what_is_missing(monkeypatch):
    monkeypatch.delitem(vars(attnlab), "register", raising=False)
    monkeypatch.delitem(sys.modules, f"attnlab.{attnlab._HOME['register']}", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = r"^attnlab\.register needs transformers, which is not installed: install attnlab with its extra \[model\]$"
    with pytest.raises(ModuleNotFoundError, match=said):
        attnlab.register()


def test_layouts_are_not_remembered_without_end(called, monkeypatch):
    monkeypatch.setattr(rungs, "KEPT", 8)
    for length in range(1, 40):
        attend.attend(tensor(2, 4, 1, 32), *[tensor(2, 4, length, 32)] * 2)
    assert len(calls.prepared) <= 8
    assert called.names == ["sdpa"] * 39


# Bad input: SDPA's result, or its error


BAD = {
    "dtypes that differ": lambda q: (q, q.half(), q),
    "devices that differ": lambda q: (q, q.to("meta"), q),
    "a width of V": lambda q: (q, q, q[..., :16]),
    "no queries": lambda q: (q[:, :, :0], q, q),
    "no tensors": lambda q: (q, None, q),
    "three dimensions": lambda q: (q[0], q[0], q[0]),
    "sparse": lambda q: (q.to_sparse(), q, q),
}


ASKED = {
    "a scale of False": lambda call, q, k: call(q, k, k, scale=False),
    "vmap": lambda call, q, k: torch.vmap(call)(q[None], k[None], k[None]),
    "a gradient of functorch": lambda call, q, k: torch.func.grad(lambda q: call(q, k, k).sum())(q),
    "nested": lambda call, q, k: call(*3 * [torch.nested.nested_tensor([*q], requires_grad=True)]).to_padded_tensor(0),
    "traced by a mode": lambda call, q, k: make_fx(call)(q, k, k)(q, k, k),
    "compiled, another width": lambda call, q, k: torch.compile(call, backend="eager", fullgraph=True)(
        q, k, k[..., :8]
    ),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("name", ASKED)
def test_what_sdpa_serves_is_served_whatever_was_called_last(monkeypatch, name, gpu, causal):
    if gpu:
        monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
        monkeypatch.setattr(calls, "layouts", {})
    causal = causal and name != "nested"  # SDPA has no causal nested tensors
    k, v, before = (inputs.draw(PLAIN, seed, CPU)[0] for seed in range(3))
    q = k[:, :, -5:]
    attnlab.attend(q, k, v)
    assert calls.last.is_alike(q, k, v) is gpu
    seen = torch.ones(5, 33, dtype=torch.bool).tril(28) if causal else None
    theirs = ASKED[name](partial(scaled_dot_product_attention, attn_mask=seen), q, before)
    torch.testing.assert_close(ASKED[name](partial(attnlab.attend, causal=causal), q, before), theirs)


@pytest.mark.parametrize("given", BAD.values(), ids=BAD.keys())
def test_bad_input_is_answered_as_sdpa_does(given):
    q, k, v = given(inputs.draw(PLAIN, 0, CPU)[0])

    def outcome(call):
        try:
            return call()
        except Exception as error:
            return type(error)

    grouped = getattr(k, "shape", None) is not None and q.ndim == 4 and q.shape[1] != k.shape[1]
    theirs = outcome(lambda: scaled_dot_product_attention(q, k, v, enable_gqa=grouped))
    ours = outcome(lambda: attnlab.attend(q, k, v))
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs)
    else:
        assert ours is theirs
