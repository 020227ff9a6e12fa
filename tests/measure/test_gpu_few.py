"""Features that only the kernels for few queries have, on an NVIDIA GPU: `make test OF=gpu`."""

import random

import pytest
import torch
from on_gpu import GPU, drawn, in_pages, require_passed, served, while_copying
from torch.nn.functional import pad

import attnlab
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.kernels import problem, rungs
from attnlab.study import ladder
from attnlab.study.shapes import Shape

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]

# Batch, heads, kv_heads and keys: of models; with 1 split, 1 or many clusters, 1 head of K and V; odd numbers.
SIZES = [(1, 32, 8, 1024), (1, 32, 8, 8192), (8, 32, 8, 1023), (4, 12, 12, 4096), (8, 32, 1, 8192), (3, 21, 3, 777)]
MODEL = Shape(4, 32, 4, 128, True, "bfloat16", kv_heads=8, kv_len=3000)


@pytest.fixture
def few():
    return served(rungs.of(ladder.rung("kernel.few")), MODEL)


@pytest.fixture
def pairs(few):
    return rungs.of(ladder.rung("kernel.pairs"))


@pytest.fixture
def caches(few):
    return rungs.of(ladder.rung(rungs.CACHES))


AXES = [(64, False, "float16"), (128, True, "bfloat16"), (256, False, "bfloat16"), (256, True, "float16")]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("queries", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_passes_the_gate_at_shapes_of_decoding(few, sizes, queries, axes):
    batch, heads, kv_heads, kv_len = sizes
    shape = Shape(batch, heads, queries, *axes, kv_heads=kv_heads, kv_len=kv_len)
    require_passed(few, drawn(shape, queries), shape.causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [
        *((1, 4, 4, 96, 8192, 128), (1, 1, 1, 2657, 5000, 64), (1, 2, 2, 4096, 4096, 128), (2, 6, 2, 333, 1500, 128)),
        *((2, 1, 1, 8, 31064, 256), (3, 12, 1, 5, 4001, 256), (2, 6, 2, 333, 1500, 256)),
    ],
    ids=str,
)
def test_chunks_that_do_not_fill_the_device_pass_the_gate_on_values_that_rise(few, sizes, causal):
    """On rising values, scores grow so far beyond those of the first tile that O must be rescaled repeatedly."""
    batch, heads, kv_heads, queries, kv_len, head_dim = sizes
    shape = Shape(batch, heads, queries, head_dim, causal, "float16", kv_heads=kv_heads, kv_len=kv_len)
    for values in ("normal", "sd 6", "rising 24"):
        require_passed(few, drawn(shape.resized(values=values)), causal, at=values)


@pytest.mark.parametrize("split", [(1, 2), (1, 4), (1, 8), (1, 16), (3, 4)], ids=str)
@pytest.mark.parametrize("queries", [1, 8, 16, 32, 64, 200])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_clusters_of_each_size_merge_their_results(few, monkeypatch, head_dim, queries, split):
    monkeypatch.setattr(problem, "splits", lambda *sizes: split)
    kernel, given = rungs.Kernel(few.rung), drawn(MODEL.resized(seq_len=queries, head_dim=head_dim))
    if split[1] not in dict(kernel.prepared(*given, True).compiled.held):
        pytest.skip("such a cluster finds no place on this device")
    lengths = [1700, 3000, 5, 0]
    output = kernel(*given, True, None, torch.tensor(lengths, dtype=torch.int32, device=GPU))
    require_right(output, given, lengths, True, f"{queries} queries, {split}")


@pytest.mark.parametrize("split", [(1, 1), (3, 1), (12, 1)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axes", [(64, "float16"), (128, "bfloat16")], ids=str)
@pytest.mark.parametrize("queries", [64, 128, 300])
def test_what_pairs_load_together_gives_the_bits_of_what_each_loads_alone(
    few, pairs, monkeypatch, queries, axes, causal, split
):
    """With 2 to 10 tiles of rows, 0 to 24 tiles of keys for a CTA, and NaN beyond each sequence's length."""
    head_dim, dtype = axes
    shape = Shape(6, 32, queries, head_dim, causal, dtype, kv_heads=8, kv_len=3000)
    given, lengths = drawn(shape), [1700, 3000, 5, 0, 257, 2944]
    _, k, v = given
    for sequence, length in enumerate(lengths):
        k[sequence, :, length:] = v[sequence, :, length:] = torch.nan
    stated = torch.tensor(lengths, dtype=torch.int32, device=GPU)
    monkeypatch.setattr(problem, "splits", lambda *sizes: split)
    rows_128 = [tile for tile in few.rung.tiles if tile.rows == 128]
    together, alone = rungs.Kernel(pairs.rung), rungs.Kernel(few.rung.model_copy(update={"tiles": rows_128}))
    output = together(*given, causal, None, stated)
    assert torch.equal(output, alone(*given, causal, None, stated))
    require_right(output, given, lengths, causal, f"{shape}, {split}")


def test_pairs_serve_two_tiles_of_which_one_is_nearly_empty(pairs):
    require_passed(pairs, drawn(MODEL.resized(seq_len=33)), True)  # 132 rows


@pytest.mark.parametrize("name", ["few", "caches"])
def test_random_shapes_and_lengths_of_sequences(request, name):
    kernel = request.getfixturevalue(name)
    chance = random.Random(0)
    for number in range(200):
        causal, batch, kv_heads = chance.random() < 0.5, chance.randint(1, 5), chance.choice((1, 2, 8))
        kv_len, queries = chance.choice((70, 500, 2000, 5000)), chance.choice((1, 2, 4, 8, 16, 33, 64, 70, 300))
        axes = {"kv_heads": kv_heads, "kv_len": kv_len}
        dtype = chance.choice(("float16", "bfloat16"))
        queries = min(queries, kv_len)
        heads = kv_heads * chance.choice((1, 2, 3, 4, 8))
        shape = Shape(batch, heads, queries, chance.choice((64, 128, 256)), causal, dtype, **axes)
        given = drawn(shape, number)
        lengths = [chance.choice((0, 1, kv_len, kv_len + 9, chance.randint(0, kv_len))) for _ in range(batch)]
        output = kernel(*given, causal, None, torch.tensor(lengths, dtype=torch.int32, device=GPU))
        require_right(output, given, lengths, causal, f"{shape}, {lengths}")


@pytest.mark.parametrize("queries", [1, 16, 64])
@pytest.mark.parametrize("axes", [(64, "float16"), (128, "bfloat16"), (256, "bfloat16")], ids=str)
@pytest.mark.parametrize("page", [16, 48, 256])
def test_pages_give_the_bits_of_what_they_hold_whatever_lies_behind(caches, page, axes, queries):
    """Lengths of many kinds, one longer than all others together; more sequences than a warp reads in one pass."""
    head_dim, dtype = axes
    each, lengths = 4608 // page, [0, 1, 4608, 9999, *(7 * n % 200 for n in range(31))]
    shape = Shape(len(lengths), 8, queries, head_dim, True, dtype, kv_heads=2, kv_len=each * page)
    q, k, v = drawn(shape)
    lens = torch.tensor(lengths, dtype=torch.int32, device=GPU)
    (k, v), pages, table = in_pages(lens, page, k, v)
    launch = caches.paged(q, *pages, each, True, None).launch
    output = launch.of_lengths(q, *pages, lens, table)
    assert torch.equal(output, caches(q, k, v, True, None, lens))
    require_right(output, (q, k, v), lengths, True, str(shape))
    assert torch.equal(output, attnlab.attend(q, *pages, True, kv_lens=lens, block_table=table))
    table[3] = table[2]  # 2 sequences share their pages
    output = launch.of_lengths(q, *pages, lens, table)
    others = [torch.cat((tensor[:3], tensor[2:3], tensor[4:])) for tensor in (k, v)]
    assert torch.equal(output, caches(q, *others, True, None, lens))


def test_many_queries_over_pages_and_pages_of_any_size_are_right(caches):
    for queries, page, padding in ((300, 16, 0), (2, 24, 0), (16, 16, 8)):  # pages that aren't whole rows apart
        q, k, v = drawn(Shape(2, 8, queries, 128, True, "bfloat16", kv_heads=2, kv_len=40 * page))
        pages = [tensor.unflatten(2, (40, page)).transpose(1, 2).flatten(0, 1).flatten(1) for tensor in (k, v)]
        pages = [pad(its, (0, padding))[:, : its.shape[1]].unflatten(1, (2, page, 128)) for its in pages]
        table = torch.arange(80, dtype=torch.int32, device=GPU).view(2, 40)
        lengths = [40 * page, 333]
        lens = torch.tensor(lengths, device=GPU)
        output = attnlab.attend(q, *pages, True, kv_lens=lens, block_table=table)
        require_right(output, (q, k, v), lengths, True, f"{queries} {page} {padding}")


def require_right(outputs, given, lengths, causal, words):
    """Compare each sequence with the oracle on its keys. Queries that see no key must give 0."""
    for sequence, (output, stated) in enumerate(zip(outputs, lengths, strict=True)):
        q, k, v = (tensor[sequence : sequence + 1] for tensor in given)
        length = min(stated, k.shape[2])
        seeing = (min(q.shape[2], length) if causal else q.shape[2]) if length else 0
        blind = q.shape[2] - seeing
        assert not output[:, :blind].any(), words
        if seeing:
            alone = (q[:, :, blind:], k[:, :, :length], v[:, :, :length])
            check = Gate(alone, causal).check(output[None, :, blind:].clone())
            assert check.passed, f"{words}, sequence {sequence}: {check.reason}"


@pytest.mark.parametrize("seq_len", [4, 100, 2500])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_attend_takes_lengths_whatever_lies_behind_them_and_whether_the_kernel_serves(few, head_dim, seq_len):
    shape, lengths = MODEL.resized(seq_len=seq_len, head_dim=head_dim), [1700, 3000, 120, 0]
    q, k, v = drawn(shape)
    for sequence, length in enumerate(lengths):
        k[sequence, :, length:] = v[sequence, :, length:] = torch.nan
    for dtype in (torch.int32, torch.int64):
        output = attnlab.attend(q, k, v, causal=True, kv_lens=torch.tensor(lengths, dtype=dtype, device=GPU))
        require_right(output, (q, k, v), lengths, True, str(shape))


def test_a_sequence_has_the_same_bits_whatever_the_others_hold(few):
    given = drawn(MODEL)
    lengths = torch.tensor([1700, 3000, 5, 64], dtype=torch.int32, device=GPU)
    alone = few(*given, True, None, lengths)
    for number in range(20):
        others = drawn(MODEL, number + 1)
        for tensor, other in zip(given, others, strict=True):
            other[0].copy_(tensor[0])
        changed = torch.randint(0, 3001, (4,), dtype=torch.int32, device=GPU)
        changed[0] = lengths[0]
        assert torch.equal(few(*others, True, None, changed)[0], alone[0])


@pytest.mark.parametrize("kv_len", [1024, 8192])
@pytest.mark.parametrize(
    ("name", "queries", "head_dim"),
    [
        *(("few", 1, 128), ("few", 16, 128), ("pairs", 64, 128), ("few", 1, 256), ("few", 16, 256), ("few", 64, 256)),
        *(("caches", 1, 128), ("caches", 16, 128), ("caches", 64, 128)),
    ],
)
def test_it_repeats_itself_while_copies_keep_the_memory_busy_and_its_inputs_change(
    request, name, queries, head_dim, kv_len
):
    """A kernel that is launched early must not read unwritten inputs. The next call must not write data in use."""
    given = drawn(MODEL.resized(batch=1, seq_len=queries, kv_len=kv_len, head_dim=head_dim))
    wrong = torch.zeros((), dtype=torch.int64, device=GPU)
    other = [tensor.flip(0, 1) for tensor in given]
    kernel = request.getfixturevalue(name)
    right, of_other = kernel(*given, True), kernel(*other, True)
    for _ in while_copying():
        wrong += (kernel(*other, True) != of_other).any() + (kernel(*given, True) != right).any()
    assert wrong.item() == 0


@pytest.mark.parametrize(("name", "queries"), [("few", 4), ("caches", 4), ("caches", 16)])
def test_streams_and_graphs_have_workspaces_of_their_own(request, name, queries):
    kernel = request.getfixturevalue(name)
    many = [drawn(MODEL.resized(batch=1, seq_len=queries), seed) for seed in range(4)]
    right = [kernel(*given, True) for given in many]
    streams = [torch.cuda.Stream() for _ in many]
    torch.cuda.synchronize()
    for _ in range(200):
        found = []
        for given, stream in zip(many, streams, strict=True):
            with torch.cuda.stream(stream):
                found.append(kernel(*given, True))
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, right))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [kernel(*given, True) for given in many]
    for _ in range(20):
        for output in outputs:
            output.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, outputs, right))


@pytest.mark.parametrize("name", ["few", "caches"])
def test_a_graph_reads_the_lengths_that_the_tensor_holds_then(request, name):
    kernel = request.getfixturevalue(name)
    given, lengths = drawn(MODEL), torch.full((4,), 3000, dtype=torch.int32, device=GPU)
    graph = torch.cuda.CUDAGraph()
    kernel(*given, True, None, lengths)
    with torch.cuda.graph(graph):
        output = kernel(*given, True, None, lengths)
    for stated in ([3000, 100, 1, 0], [7, 2048, 2049, 3000]):
        lengths.copy_(torch.tensor(stated))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(output, kernel(*given, True, None, lengths))
        require_right(output, given, stated, True, str(stated))
