"""Unequal sequence lengths on an NVIDIA GPU: `make test OF=gpu`. Other GPU tests have equal lengths."""

import random
from itertools import accumulate, pairwise

import pytest
import torch
from on_gpu import GPU, drawn, in_pages, llama, served
from torch.nn.attention import varlen

import attnlab
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.kernels import rungs
from attnlab.serving import ragged
from attnlab.study.shapes import Shape
from attnlab.study.values import STANDARD

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]

DTYPES = [(64, torch.float16), (128, torch.float16), (128, torch.bfloat16)]
SOME = [0, 1, 64, 65, 700, 3, 0, 190, 2000, 128]
LENGTHS = {
    "alike": (SOME, SOME),
    "after a cache": ([5, 1, 64, 200, 0, 17], [900, 1, 64, 1333, 70, 0]),
    "more queries than keys": ([500, 130, 64], [70, 129, 1]),
    "one longer than all others": ([4000, *range(30)], [4000, *range(30)]),
    "4,096 sequences": ([i % 3 for i in range(4096)], [i % 90 for i in range(4096)]),
}


@pytest.fixture(autouse=True)
def kernel():
    return served(ragged.kernel(), Shape(1, 2, 64, 64))


def ends_of(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=GPU)


def packed(lengths, heads, head_dim, dtype, seed=0):
    """Q, K and V of packed sequences; every fifth sequence, and the memory after the last, is NaN."""
    generator = torch.Generator(GPU).manual_seed(seed)
    tensors = []
    for own, count in zip((lengths[0], lengths[1], lengths[1]), heads, strict=True):
        tensor = torch.randn(sum(own) + 70, count, head_dim, generator=generator, device=GPU).to(dtype)
        for number, part in enumerate(tensor[: sum(own)].split(own)):
            if number % 5 == 4:
                part.fill_(torch.nan)
        tensor[sum(own) :] = torch.nan
        tensors.append(tensor)
    return tensors


def require_right(output, parts, causal, words):
    """Compare O of a sequence ``(tokens, heads, head_dim)`` with the gate's limits; queries that see no key give 0."""
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in parts)
    blind = max(0, len(output) - k.shape[2]) if causal or not k.shape[2] else 0
    assert not output[:blind].any(), words
    if len(output) > blind:
        check = Gate((q[:, :, blind:], k, v), causal).check(output[blind:].transpose(0, 1).unsqueeze(0).clone())
        assert check.passed, f"{words}: {check.reason}"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("head_dim", "dtype"), DTYPES, ids=str)
@pytest.mark.parametrize("name", LENGTHS)
def test_each_sequence_passes_the_gate_packed_and_padded(name, head_dim, dtype, causal):
    lengths = LENGTHS[name]
    tensors = packed(lengths, (6, 2, 2), head_dim, dtype)
    output = attnlab.attend_ragged(*tensors, *map(ends_of, lengths), causal)
    parts = [x[: sum(own)].split(own) for x, own in zip(tensors, (lengths[0], *lengths[1:] * 2), strict=True)]
    outputs = output[: sum(lengths[0])].split(lengths[0])
    padded = [torch.nn.utils.rnn.pad_sequence(each, True, torch.nan).transpose(1, 2) for each in parts]
    lens = dict(zip(("q_lens", "kv_lens"), (torch.tensor(own, device=GPU) for own in lengths), strict=True))
    others = attnlab.attend(*padded, causal=causal, **lens)
    caches = causal and head_dim == 128 and padded[1].shape[2] > padded[0].shape[2]  # these have a tile of their own
    for number, (own, each) in enumerate(zip(outputs, zip(*parts, strict=True), strict=True)):
        if number % 5 < 4 and len(own) and (len(lengths[0]) < 100 or number < 40):
            words = f"sequence {number}, {len(own)} queries, {len(each[1])} keys"
            require_right(own, each, causal, words)
            other = others[number, :, : len(own)].transpose(0, 1)
            require_right(other, each, causal, f"{words}, padded")
            assert caches or torch.equal(other, own), words


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("head_dim", "dtype"), DTYPES, ids=str)
@pytest.mark.parametrize("page", [16, 48, 64, 128, 256])
def test_prompts_over_pages_have_the_bits_of_the_same_tile_over_the_keys_in_them(page, head_dim, dtype, causal):
    queries, keys = [300, 1, 64, 200, 0, 17, 129, 300], [900, 1, 64, 1333, 70, 0, 9999, 16 * page]
    generator = torch.Generator(GPU).manual_seed(page)
    q, k, v = (
        torch.randn(8, heads, rows, head_dim, generator=generator, device=GPU).to(dtype)
        for heads, rows in ((6, 300), *2 * [(2, 4608 // page * page)])
    )
    q_lens, lens = (torch.tensor(own, dtype=torch.int32, device=GPU) for own in (queries, keys))
    (k, v), pages, table = in_pages(lens, page, k, v)
    by_head = [cache.contiguous() for cache in pages]
    both = torch.stack([cache.transpose(1, 2) for cache in pages], 1)  # K and V of a page next to each other
    joined = [both[:, i].transpose(1, 2) for i in range(2)]
    rung = ragged.kernel().rung
    tiles = rung.tiles_for(head_dim, page, causal)
    tile = next((tile for tile in tiles if tile.for_caches), tiles[0])
    launch = rungs.kernel(rung, tile).prepared(q, k, v, causal, None).launch
    for counts in (q_lens, None):
        right = launch.of_lengths(q, k, v, lens, counts)
        for k_pages, v_pages in (pages, by_head, joined):
            output = ragged.padded(q, k_pages, v_pages, causal, None, counts, lens, table)
            attended = attnlab.attend(q, k_pages, v_pages, causal, kv_lens=lens, q_lens=counts, block_table=table)
            for number, own in enumerate(queries if counts is not None else [300] * 8):
                assert torch.equal(output[number, :, :own], right[number, :, :own]), number
                assert torch.equal(attended[number, :, :own], right[number, :, :own]), number


@pytest.mark.parametrize("causal", [False, True])
def test_a_graph_is_replayed_with_other_lengths_and_bits_do_not_depend_on_the_others(causal):
    some = random.Random(5)
    q, k, v = (torch.randn(6000, heads, 128, dtype=torch.bfloat16, device=GPU) for heads in (8, 2, 2))
    ends = [torch.zeros(13, dtype=torch.int32, device=GPU) for _ in range(2)]
    attnlab.attend_ragged(q, k, v, *ends, causal)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = attnlab.attend_ragged(q, k, v, *ends, causal)
    for _ in range(10):
        for own in ends:
            own.copy_(ends_of([some.choice((0, 1, some.randint(1, 450))) for _ in range(12)]))
        graph.replay()
        for (first, end), (first_key, end_key) in zip(*(pairwise(own.tolist()) for own in ends), strict=True):
            if first < end and first_key < end_key:
                mine = (q[first:end], k[first_key:end_key], v[first_key:end_key])
                alone = attnlab.attend_ragged(*mine, *(ends_of([len(part)]) for part in mine[:2]), causal)
                assert torch.equal(alone, output[first:end])


def test_lengths_that_are_no_lengths_read_and_write_nothing_outside():
    q = torch.randn(300, 2, 64, dtype=torch.float16, device=GPU)
    for _ in range(20):
        ends = torch.randint(-(2**31), 2**31 - 1, (9,), device=GPU).to(torch.int32)
        ends[::2] = torch.randint(-50, 350, (5,), device=GPU)
        attnlab.attend_ragged(q, q, q, ends, ends.flip(0), True)
    whole = ends_of([300])
    torch.cuda.synchronize()
    require_right(attnlab.attend_ragged(q, q, q, whole, whole, True), (q, q, q), True, "after them")


@pytest.mark.parametrize("kind", [kind for kind in STANDARD if not kind.startswith("captured")])
def test_each_sequence_passes_the_gate_on_all_distributions(kind):
    lengths = {"q_lens": [700, 1, 130, 64], "kv_lens": [700, 400, 130, 65]}
    given = drawn(Shape(4, 4, 700, 128, True, "bfloat16", kv_heads=2, values=kind))
    output = attnlab.attend(*given, causal=True, **{name: torch.tensor(n, device=GPU) for name, n in lengths.items()})
    for i, (queries, keys) in enumerate(zip(*lengths.values(), strict=True)):
        ends = (queries, keys, keys)
        parts = [part[i, :, :end].transpose(0, 1) for part, end in zip(given, ends, strict=True)]
        require_right(output[i, :, :queries].transpose(0, 1), parts, True, f"{kind}, sequence {i}")


@pytest.fixture
def reached(monkeypatch):
    """For each call of the varlen kernel, whether it served the call."""
    calls, inner = [], ragged.by_kernel

    def by_kernel(*given):
        output = inner(*given)
        calls.append(output is not None)
        return output

    monkeypatch.setattr(ragged, "by_kernel", by_kernel)
    return calls


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["alike", "after a cache", "more queries than keys"])
def test_pytorchs_own_functions_compute_the_same_within_the_block(reached, name, causal):
    lengths = LENGTHS[name]
    given = [tensor.nan_to_num(1) for tensor in packed(lengths, (4, 4, 4), 128, torch.bfloat16)]
    ends, window = [ends_of(own) for own in lengths], (-1, 0) if causal else (-1, -1)
    used, keys_used = map(sum, lengths)

    def in_a_row(q, k, v):
        return varlen.varlen_attn(q, k, v, *ends, 2000, 2000, window_size=window)[:used]

    def nested(q, k, v):
        queries = torch.nested.nested_tensor_from_jagged(q[:used], ends[0].long()).transpose(1, 2)
        keys = torch.nested.nested_tensor_from_jagged(k[:keys_used], ends[1].long()).transpose(1, 2)
        keys = queries if causal else keys
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, keys, is_causal=causal)

    # PyTorch has no kernel for nested tensors with empty sequences.
    calls = [in_a_row, nested] if name == "more queries than keys" else [in_a_row]
    for call in calls:
        theirs = call(*given)
        with attnlab.attention():
            found = [call(*given), torch.compile(call, fullgraph=True, backend="aot_eager")(*given)]
        for ours in found:
            rows = [each.transpose(1, 2).values() if each.is_nested else each for each in (ours, theirs)]
            torch.testing.assert_close(*rows, atol=1e-2, rtol=2e-2)
    assert len(reached) >= 2 * len(calls)
    assert all(reached)
    wide = [torch.randn(used, 4, 96, dtype=torch.bfloat16, device=GPU) for _ in range(3)]
    with attnlab.attention():
        found = varlen.varlen_attn(*wide, ends[0], ends[0], 2000, 2000, window_size=window)
    assert torch.equal(found, varlen.varlen_attn(*wide, ends[0], ends[0], 2000, 2000, window_size=window))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_and_packed_prompts_of_a_model_are_those_of_its_own_sdpa(reached, side):
    network = llama()
    tokens = torch.randint(512, (5, 700), generator=torch.Generator().manual_seed(1)).to(GPU)
    real = torch.arange(700, device=GPU) < torch.tensor([700, 1, 300, 64, 513], device=GPU)[:, None]
    real = real.flip(1) if side == "left" else real
    places = torch.cat([torch.arange(n, device=GPU) for n in (600, 1, 99)])[None]
    found = {}
    for attention in ("sdpa", "attnlab"):
        network.set_attn_implementation(attention)
        logits = [network(tokens, attention_mask=real, use_cache=cache).logits[real] for cache in (False, True)]
        packed = network(tokens[:1], position_ids=places, use_cache=False).logits[0]
        found[attention] = torch.cat([*logits, packed])
    torch.testing.assert_close(found["attnlab"], found["sdpa"], atol=5e-3, rtol=5e-3)
    assert len(reached) >= 4  # some versions of transformers mask packed prompts themselves
    assert all(reached)
