"""`attnlab.attention`: the calls that reach `attend` in the block, those left to PyTorch, and the restored state."""

import pickle
from contextlib import nullcontext
from functools import partial
from threading import Event, Thread

import pytest
import torch
import torch.nn.functional as F
from conftest import keeping
from torch.nn.attention import varlen
from torch.nn.attention.bias import causal_lower_right

import attnlab
from attnlab.serving import attention, ragged

PYTORCH = F.scaled_dot_product_attention
Q = torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(0))
KEYS = torch.randn(2, 4, 12, 16, generator=torch.Generator().manual_seed(1))
MASK = torch.ones(8, 8, dtype=torch.bool).tril()


@pytest.fixture
def calls(monkeypatch):
    """The arguments of the calls of `attend`."""
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
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize(
    ("given", "options", "reaches"),
    [
        ((Q, Q, Q), {}, True),
        ((Q, Q, Q, None, 0.0, True), {"scale": 0.5}, True),
        ((Q, KEYS, KEYS), {}, True),
        ((Q, KEYS[:, :2], KEYS[:, :2]), {"enable_gqa": True}, True),
        ((Q, Q, Q, MASK), {}, False),
        ((Q, KEYS, KEYS, causal_lower_right(Q.shape[2], KEYS.shape[2])), {"scale": 0.5}, False),
        ((Q, KEYS, KEYS), {"attn_mask": causal_lower_right(Q.shape[2], KEYS.shape[2])}, False),
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
        ((Q, Q), {}, False),  # PyTorch's own errors
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
    assert asked == 2 * [{"attn_mask": MASK}]  # in the form of the call
    assert len(calls) == 2


@pytest.mark.parametrize(("module", "name"), [(F, "scaled_dot_product_attention"), (varlen, "varlen_attn")])
def test_a_function_pickled_within_the_block_or_saved_from_it_is_pytorchs_afterwards(module, name):
    with attnlab.attention():
        saved = getattr(module, name)
        pickled = pickle.dumps(saved)
    assert pickle.loads(pickled) is pickle.loads(pickle.dumps(saved)) is getattr(module, name)


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

    compiled = torch.compile(model, fullgraph=True, backend=keeping(graphs))
    expected = compiled(Q, Q)
    with attnlab.attention():
        torch.testing.assert_close(compiled(Q, Q), expected)
        torch.testing.assert_close(compiled(Q, KEYS), model(Q, KEYS))
    compiled(Q, Q)
    with attnlab.attention():
        compiled(Q, Q)  # compiled before the block
    assert ["ops.attnlab.attention" in code for code in graphs] == [False, True, True]


# Unequal sequence lengths


def jagged(*lengths, heads=4, seed=0, values=None, ends=None):
    """A nested tensor ``(sequences, heads, lengths, 16)``."""
    if values is None:
        values = torch.randn(sum(lengths), heads, 16, generator=torch.Generator().manual_seed(seed))
    ends = torch.tensor([0, *lengths]).cumsum(0) if ends is None else ends
    return torch.nested.nested_tensor_from_jagged(values, ends).transpose(1, 2)


ROWS = torch.randn(12, 4, 16, generator=torch.Generator().manual_seed(2))
ENDS, OTHERS = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 5, 5, 12], [0, 3, 4, 12]))
PACKED = (ROWS, ROWS, ROWS, ENDS, ENDS, 7, 7)
NESTED = jagged(5, 0, 7)
KEYS_OF_OTHERS = jagged(3, 1, 8, seed=1)
ALIKE = jagged(5, 0, 7, heads=2, seed=1, ends=NESTED.offsets())
HOLES = torch.nested.nested_tensor_from_jagged(ROWS, ENDS.long(), torch.tensor([4, 0, 7])).transpose(1, 2)


@pytest.fixture
def kernel(monkeypatch):
    """The arguments of the calls of the varlen kernel; here SDPA of each sequence replaces it."""
    calls = []
    monkeypatch.setattr(ragged, "by_kernel", lambda *given: calls.append(given) or ragged._each(*given))
    return calls


@pytest.mark.parametrize(
    ("given", "options", "reaches"),
    [
        (PACKED, {}, True),
        (PACKED, {"window_size": (-1, 0), "scale": 0.5, "num_splits": 1, "seqused_k": None}, True),
        ((ROWS, ROWS, ROWS, ENDS, OTHERS, 7, 8), {"window_size": [-1, 0]}, True),
        ((ROWS, ROWS[:, :2], ROWS[:, :2], ENDS, ENDS, 7, 7), {"enable_gqa": True}, True),
        ((ROWS, ROWS[:, :2], ROWS[:, :2], ENDS, ENDS, 7, 7), {}, False),
        (PACKED, {"window_size": (3, 0)}, False),
        (PACKED, {"return_aux": varlen.AuxRequest(lse=True)}, False),
        (PACKED, {"seqused_k": ENDS[1:]}, False),
        (PACKED, {"num_splits": 4}, False),
        ((ROWS, ROWS, ROWS, ENDS, None, 7, 7), {"block_table": ENDS}, False),
        ((ROWS.clone().requires_grad_(), *PACKED[1:]), {}, False),
        ((ROWS, ROWS.double(), ROWS.double(), ENDS, ENDS, 7, 7), {}, False),
        ((ROWS, ROWS, ROWS[..., :8], ENDS, ENDS, 7, 7), {}, False),
        ((ROWS, ROWS, ROWS, ENDS.float(), ENDS.float(), 7, 7), {}, False),
        ((*PACKED, True), {}, False),
        (PACKED[:5], {}, False),
    ],
)
def test_packed_sequences_reach_the_kernel_where_nothing_else_is_asked_for(
    kernel, monkeypatch, given, options, reaches
):
    monkeypatch.setattr(varlen, "varlen_attn", lambda *given, **options: "theirs")
    with attnlab.attention():
        found = varlen.varlen_attn(*given, **options)
        with torch.autocast("cpu", torch.float16):  # varlen_attn doesn't support autocast
            assert varlen.varlen_attn(*given, **options) == "theirs"
    assert varlen.varlen_attn(*given, **options) == "theirs"
    assert len(kernel) == reaches
    if not reaches:
        assert found == "theirs"
        return
    causal = tuple(options.get("window_size", ())) == (-1, 0)
    torch.testing.assert_close(found, attnlab.attend_ragged(*given[:5], causal, options.get("scale")))


@pytest.mark.parametrize(
    ("given", "options", "reaches"),
    [
        ((NESTED, NESTED, NESTED), {}, True),
        ((NESTED, KEYS_OF_OTHERS, KEYS_OF_OTHERS), {"scale": 0.5}, True),
        ((NESTED, NESTED, NESTED), {"is_causal": True}, "PyTorch has no backend for it on a CPU"),
        ((NESTED, ALIKE, ALIKE), {"enable_gqa": True}, "PyTorch has no grouped heads of nested tensors"),
        ((NESTED, KEYS_OF_OTHERS, KEYS_OF_OTHERS), {"is_causal": True}, False),
        ((NESTED, jagged(5, 7), jagged(5, 7)), {}, False),
        ((NESTED, ALIKE, ALIKE), {}, False),
        ((HOLES, HOLES, HOLES), {}, False),
        ((NESTED, NESTED, NESTED), {"dropout_p": 1.0}, False),
        ((NESTED, NESTED, NESTED), {"attn_mask": MASK}, False),
        ((NESTED, Q, Q), {}, False),
        ((Q, NESTED, NESTED), {}, False),
        ((jagged(5, 0, 7, values=ROWS.clone().requires_grad_()), NESTED, NESTED), {}, False),
    ],
)
def test_nested_tensors_reach_the_kernel_where_nothing_else_is_asked_for(kernel, calls, given, options, reaches):
    found = outcome(given, options, attnlab.attention())
    assert len(kernel) == bool(reaches)
    assert not calls
    if isinstance(reaches, str):
        q, k, v = given
        heads = [each.transpose(1, 2).values().repeat_interleave(4 // each.shape[1], 1) for each in (q, k, v)]
        right = attnlab.attend_ragged(*heads, q.offsets(), k.offsets(), options.get("is_causal", False))
        torch.testing.assert_close(found.transpose(1, 2).values(), right)
        return
    expected = outcome(given, options, nullcontext())
    if isinstance(expected, str):
        assert found == expected
    else:
        assert found.shape == expected.shape  # includes PyTorch's symbol for the ragged dimension
        torch.testing.assert_close(*(each.transpose(1, 2).contiguous().values() for each in (found, expected)))


def test_compiled_calls_of_unlike_lengths_break_no_graph_and_are_compiled_once(monkeypatch):
    """Other lengths, with the same and another number of sequences, and another number of tokens."""
    monkeypatch.setattr(ragged, "head_dims", lambda *_: (16,))
    torch._dynamo.reset()
    graphs, compiled = [], {}

    def packed(q, ends):
        return varlen.varlen_attn(q, q, q, ends, ends, 512, 512, window_size=(-1, 0))

    def nested(q, ends):
        q = torch.nested.nested_tensor_from_jagged(q, ends).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).values()

    def own(q, ends):
        return attnlab.attend_ragged(q, q, q, ends, ends, True)

    def padded(q, ends):
        return attnlab.attend(q[None], q[None], q[None], True, kv_lens=ends[-1:], q_lens=ends[-1:])[0]

    for call in (packed, nested, own, padded):
        compiled[call] = torch.compile(call, fullgraph=True, dynamic=True, backend=keeping(graphs))
    for lengths in ([5, 7], [3, 4, 9], [1, 0, 2, 30]):
        rows = torch.randn(sum(lengths), 4, 16)
        ends = torch.tensor([0, *lengths]).cumsum(0)
        right = own(rows, ends)
        with attnlab.attention():
            for call in (packed, nested, own):
                torch.testing.assert_close(compiled[call](rows, ends), right)
            given = torch.randn(4, sum(lengths), 16)
            torch.testing.assert_close(compiled[padded](given, ends), padded(given, ends))
    assert [code.count("ops.attnlab.attention_packed") for code in graphs] == [1, 1, 1, 0]
    assert "ops.attnlab.attention_of_lengths" in graphs[3]
