"""Kernels on the views that models pass, on an NVIDIA GPU: `make test OF=gpu`."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from on_gpu import GPU, llama, require_passed, served

import attnlab
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.instruments import devices
from attnlab.measuring.kernels import rungs
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study import ladder
from attnlab.study.shapes import Shape

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]

VIEWS = [rung for rung in ladder.load() if rung.strided and not rung.scaled]
INSTANCES = [
    pytest.param((rung, tile), id=f"{rung.name}-{tile.name}-{tile.head_dim}") for rung in VIEWS for tile in rung.tiles
]


@pytest.fixture(params=INSTANCES)
def instance(request):
    """A kernel with one tile, which this device serves."""
    rung, tile = request.param
    kernel = rungs.kernel(rung, tile)
    if rung.architecture(torch.cuda.get_device_capability()) is None:
        pytest.skip(f"{rung.name} isn't written for this device")
    return kernel, tile


def shapes_for(rung: ladder.Rung, tile: ladder.Tile) -> list[Shape]:
    """Shapes that a tile serves, with other heads, keys, layouts and scales than plain self-attention."""
    length = max(tile.shortest, min(tile.longest or 300, 300, rung.most_queries or 300))
    plain = Shape(2, 6, length, tile.head_dim)
    found = [
        plain.resized(kv_heads=2),
        plain.resized(kv_heads=1, layout="tokens first"),
        plain.resized(batch=3, seq_len=length // 3 or 1, kv_len=length),
        plain.resized(batch=3, seq_len=1, kv_len=length, kv_heads=3),
        plain.resized(batch=1, seq_len=min(rung.most_queries or length + 100, length + 100), kv_len=length),
        plain.resized(batch=2, seq_len=length // 2 or 1, kv_len=tile.longest or 1111),
        plain.resized(scale=0.02, layout="tokens first"),
    ]
    found += [shape.resized(causal=True) for shape in found if shape.seq_len <= shape.kv_len]
    return [shape for shape in found if ladder.MASKS[shape.causal] in tile.masks and rung.serves_rows(tile, shape.rows)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_instance_passes_the_gate_on_views(instance, dtype):
    kernel, tile = instance
    for shape in shapes_for(kernel.rung, tile):
        shape = shape.resized(dtype=dtype)
        require_passed(kernel, inputs.draw(shape, 1, GPU), shape.causal, shape.scale or None, str(shape))


def test_strides_and_shapes_drawn_at_random(instance):
    kernel, tile = instance
    chance = random.Random(f"{kernel.rung.name} {tile.name}")
    for _ in range(12):
        causal = ladder.MASKS[True] in tile.masks and (chance.random() < 0.5 or ladder.MASKS[False] not in tile.masks)
        kv_len = chance.randint(tile.shortest, tile.longest or tile.shortest + 900)
        most = min(kernel.rung.most_queries or 900, 900)
        seq_len = chance.randint(1, min(kv_len, most) if causal else most)
        kv_heads, shared, batch = chance.randint(1, 3), chance.randint(1, 4), chance.randint(1, 3)
        if not kernel.rung.serves_rows(tile, shared * seq_len):
            continue
        scale = chance.choice([None, 0.01, 0.3])
        q = drawn_view(chance, batch, kv_heads * shared, seq_len, tile.head_dim)
        k, v = (drawn_view(chance, batch, kv_heads, kv_len, tile.head_dim) for _ in range(2))
        try:
            output = kernel(q, k, v, causal, scale)
        except Unsupported as refused:
            by_tma = kernel.rung.ragged or (kernel.rung.by_lengths and tile.rows >= rungs.WARPGROUP_ROWS)
            if not by_tma or "whole rows apart" not in str(refused):
                raise
            continue
        check = Gate((q, k, v), causal, scale=scale).check(output)
        assert check.passed, f"{tuple(q.shape)}, {tuple(k.shape)}, {q.stride()}, {k.stride()}, {causal}, {check.reason}"


def drawn_view(chance: random.Random, batch: int, heads: int, length: int, head_dim: int) -> torch.Tensor:
    """A view of larger memory, with gaps and a random order of dimensions."""
    order = chance.sample(range(3), 3)
    sizes = [(batch, heads, length)[place] for place in order]
    room = [size + chance.randint(0, 2) for size in sizes]
    memory = torch.randn(*room, head_dim + 8 * chance.randint(0, 2), device=GPU, dtype=torch.float16)
    inside = memory[: sizes[0], : sizes[1], : sizes[2], :head_dim]
    return inside.permute(*(order.index(place) for place in range(3)), 3)


PLAIN = Shape(2, 4, 300, 64)


@pytest.fixture
def kernel():
    return served(rungs.of(ladder.rung("kernel.bounded")), PLAIN)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("kv_len", [2, 8])
def test_attend_gives_an_empty_batch_an_empty_tensor(kv_len, kv_heads, causal):
    q = torch.zeros(0, 4, 2, 64, dtype=torch.float16, device=GPU, requires_grad=True)
    k = torch.zeros(0, kv_heads, kv_len, 64, dtype=torch.float16, device=GPU)
    for queries in (q, q.detach()):
        output = attnlab.attend(queries, k, k, causal=causal)
        assert (output.shape, output.dtype, output.device) == (q.shape, q.dtype, q.device)


@pytest.mark.parametrize("name", ["naive", "wgmma"])
def test_kernels_that_pack_no_heads_serve_any_batch(name):
    drawn = inputs.draw(Shape(2**15 + 1, 1, 8, 64), 1, GPU)
    try:
        output = rungs.implementation(f"kernel.{name}").call(*drawn, False)
    except Unsupported:
        pytest.skip(f"{name} isn't written for this device")
    torch.testing.assert_close(output, F.scaled_dot_product_attention(*drawn), atol=5e-3, rtol=0)


def test_a_graph_of_calls_on_several_tensors_reads_each(kernel):
    given = [inputs.draw(PLAIN, seed, GPU) for seed in range(3)]
    kernel(*given[0], False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [kernel(*tensors, False) for tensors in given]
    other = [kernel(*inputs.draw(PLAIN, 9, GPU), False) for _ in range(4)]  # between capture and replay
    graph.replay()
    torch.cuda.synchronize()
    for tensors, output in zip(given, outputs, strict=True):
        assert Gate(tensors, False).check(output).passed
    assert len(other) == 4


def test_threads_with_streams_of_their_own_compute_what_one_does(kernel):
    given = [inputs.draw(PLAIN, seed, GPU) for seed in range(8)]
    right = [kernel(*tensors, False) for tensors in given]
    torch.cuda.synchronize()
    begin = threading.Barrier(8)

    def repeat(number):
        stream, differing = torch.cuda.Stream(), 0
        begin.wait()
        with torch.cuda.stream(stream):
            for _ in range(200):
                differing += int(not torch.equal(kernel(*given[number], False), right[number]))
        return differing

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(repeat, range(8))) == [0] * 8


def test_a_new_thread_can_launch_before_anything_else(kernel):
    given, found = inputs.draw(PLAIN, 0, GPU), []
    thread = threading.Thread(target=lambda: found.append(kernel(*given, False)))
    thread.start()
    thread.join()
    assert Gate(given, False).check(found[0]).passed


def test_each_device_computes_on_its_own(kernel):
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    for number in (1, 0, 1):
        device = torch.device("cuda", number)
        given = inputs.draw(PLAIN, number, device)
        output = kernel(*given, False)
        assert output.device == device
        assert Gate(given, False).check(output).passed
    assert torch.cuda.current_device() == 0


def test_the_operator_is_compiled_without_a_break_and_has_gradients(kernel, by_table):
    by_table((PLAIN, "kernel.bounded"))
    given = inputs.draw(PLAIN, 0, GPU)
    compiled = torch.compile(attnlab.attend, fullgraph=True)
    assert torch.equal(compiled(*given), kernel(*given, False))
    assert Gate(given, False).examine(lambda: compiled(*given)).passed
    torch.library.opcheck(torch.ops.attnlab.attention.default, (*given, False, None))
    training = inputs.draw(PLAIN.resized(direction="training"), 0, GPU)
    q, k, v = (tensor.requires_grad_() for tensor in training[:3])
    output = torch.ops.attnlab.attention(q, k, v)
    gradients = torch.autograd.grad(output, (q, k, v), training[3])
    assert Gate(tuple(t.detach() for t in training), False).check((output.detach(), *gradients)).passed


SIZE = 2 * 4 * 300 * 64


@pytest.mark.parametrize("named", ["kernel.bounded", "sdpa.cudnn", "sdpa.flash", None])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_attend_is_right_where_sdpa_itself_is_wrong(kernel, by_table, named, requires_grad):
    """At odd addresses and strides, cuDNN computes wrong numbers, and the other backends crash the process."""
    by_table(*([(PLAIN, named)] if named else []))
    memory = torch.randn(SIZE + 8, device=GPU, dtype=torch.float16)
    odd, even = (memory[begin:][:SIZE].view(2, 4, 300, 64) for begin in (1, 0))
    wide, less_wide = (torch.randn(2, 4, 300, row, device=GPU, dtype=torch.float16)[..., :64] for row in (65, 68))
    for given in ((odd, odd, odd), (odd, even, even), (even, odd, odd), (wide, less_wide, wide), (even, wide, even)):
        output = attnlab.attend(*(tensor.detach().requires_grad_(requires_grad) for tensor in given))
        assert Gate(given, False).check(output.detach()).passed


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("values", ["normal", "sd 60", "stairs 12"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_v_of_any_size_is_averaged_as_well(head_dim, values, causal):
    # In bf16, probabilities range from 2^-60 to 2^60: their products with V must not overflow a float.
    q, k, v = inputs.draw(Shape(2, 6, 1000, head_dim, causal, "bfloat16", values=values), 1, GPU)
    kernel = rungs.of(ladder.rung("kernel.lazy"))
    expected = kernel(q, k, v, causal)
    for size in (2.0**-40, 2.0**40):  # 1 rounding of tolerance: terms far below a row's maximum may be lost
        torch.testing.assert_close(kernel(q, k, v * size, causal) / size, expected, atol=1e-3, rtol=2**-7)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 17, 63, 64])
def test_heads_of_one_block_that_share_keys_have_the_bits_of_heads_apart(queries, causal):
    kernel = rungs.of(ladder.rung("kernel.lazy"))
    for head_dim, (batch, heads, kv_heads, keys) in product(
        (64, 128), [(1, 4, 1, 777), (3, 12, 4, 130), (2, 10, 2, 3000)]
    ):
        axes = {"kv_heads": kv_heads, "kv_len": keys, "layout": "tokens first"}
        q, k, v = inputs.draw(Shape(batch, heads, queries, head_dim, causal, "float16", **axes), 1, GPU)
        alone = [
            kernel(q[:, i : i + 1], *(x[:, i * kv_heads // heads, None] for x in (k, v)), causal) for i in range(heads)
        ]
        assert torch.equal(kernel(q, k, v, causal), torch.cat(alone, dim=1))


def test_steps_of_a_model_after_a_static_cache_are_those_of_its_own_sdpa(monkeypatch):
    network, lengths, found = llama(), [], {}
    from transformers import StaticCache

    from attnlab.serving import huggingface

    def attend(*args, kv_lens):
        lengths.append(kv_lens)
        return attnlab.attend(*args, kv_lens=kv_lens)

    monkeypatch.setattr(huggingface, "attend", attend)
    prompts = torch.randint(512, (2, 300), generator=torch.Generator().manual_seed(1)).to(GPU)
    for attention in ("sdpa", "attnlab"):
        network.set_attn_implementation(attention)
        cache = StaticCache(config=network.config, max_cache_len=308)
        network(prompts, past_key_values=cache, logits_to_keep=1)

        def step(tokens, cache=cache):
            for layer in cache.layers:
                layer.cumulative_length.fill_(300)
            return network(prompts[:, :tokens], past_key_values=cache).logits

        found[attention] = step(8)
        for tokens in (1, 8):
            step(tokens), step(tokens)  # first calls do work that can't be captured
            graph = torch.cuda.CUDAGraph()
            with devices.no_garbage_collected(), torch.cuda.graph(graph):
                logits = step(tokens)
            graph.replay()
            torch.testing.assert_close(logits, found[attention][:, :tokens], atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(found["attnlab"], found["sdpa"], atol=5e-3, rtol=5e-3)
    assert sum(given is not None for given in lengths) > 10
