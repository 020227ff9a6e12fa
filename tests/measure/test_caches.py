"""`kernel.caches` without a GPU: on an emulated multiprocessor, and its calls by `attend`."""

import ctypes
import re
import shutil
from functools import partial
from itertools import product
from unittest.mock import Mock

import pytest
import torch
from conftest import told
from emulation import MEMORY, OF_CTA, printed, program

import attnlab
from attnlab.base import paths
from attnlab.measuring.kernels import problem, rungs
from attnlab.measuring.subjects import sdpa
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.serving import attend, ragged
from attnlab.study import ladder

BARRIERS = "__shared__ unsigned long long barriers[2][R::PIECES];"
TILES = "memory + 2 * D * (ROWS + 2 * STAGES * KEYS)"
BEHIND = f"auto* const barriers = reinterpret_cast<unsigned long long (*)[R::PIECES]>({TILES});"
# PTX in 12_few.cu that emulated.h and caches.cpp replace: from one comment to the next.
CUTS = (
    ("// Brings a map before", "// Where a chunk of eight"),
    ("// Sixteen bytes; where", "// Four columns of a row"),
)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulated")
    source = (paths.kernels() / "12_few.cu").read_text().replace('#include "jobs.cuh"', "")
    for begin, end in CUTS:
        source = source[: source.index(begin)] + source[source.index(end) :]
    for inlined, emulated in ((MEMORY, OF_CTA), (BARRIERS, BEHIND)):
        assert inlined in source
        source = source.replace(inlined, emulated)
    (folder / "12_few.cu").write_text(re.sub(r"asm volatile\([^;]*\);", "", source))
    shutil.copy(paths.kernels() / "17_caches.cu", folder)
    return program(folder, "caches")


@pytest.mark.parametrize(
    ("head_dim", "causal", "rows", "kv_heads", "group", "queries", "keys", "page", "wanted", "lengths"),
    [
        (128, 1, 64, 1, 4, 16, 1024, 64, 6, [1024, 33]),
        (128, 0, 16, 1, 1, 1, 1300, 0, 12, [1300]),  # 11 parts, merged in groups
        (128, 0, 16, 2, 4, 1, 700, 0, 6, [700, 0, 1, 64]),
        (128, 1, 16, 2, 2, 3, 512, 16, 4, [512, 70, 0, 1, 513, -3]),  # beyond the table's row; fewer than queries
        (128, 1, 64, 1, 4, 16, 384, 64, 4, [384, 33, 0, 5]),
        (128, 0, 128, 1, 8, 20, 512, 128, 3, [512, 300]),  # 2 tiles of rows
        (256, 1, 16, 1, 4, 3, 320, 32, 6, [33, 320, 100, 7]),
        (64, 1, 16, 1, 5, 3, 1024, 256, 5, [1024, 3, 20, 1, 0]),  # one is longer than all others together
        (64, 0, 16, 1, 1, 1, 128, 48, 1, [90, 0] * 20),  # a warp reads the lengths in 2 passes
        (64, 1, 64, 1, 8, 5, 960, 48, 5, [960, 300, 4]),
        (256, 1, 128, 1, 8, 9, 960, 48, 4, [960, 77]),
        (128, 1, 64, 1, 2, 8, 1024, 16, 1, [1000]),  # a part of more than 32 pages
    ],
)
def test_the_kernel_on_an_emulated_multiprocessor(
    emulator, head_dim, causal, rows, kv_heads, group, queries, keys, page, wanted, lengths
):
    sizes = (head_dim, causal, rows, kv_heads, group, queries, keys, page, wanted)
    found = [dict(printed(emulator, *sizes, seed, *lengths)) for seed in range(3)]
    assert all(each == found[0] for each in found)  # the same bits for any timing of threads and copies
    assert float(found[0]["error"]) < 0.004
    assert found[0]["blind"] == "0"  # queries that see no key
    assert int(found[0]["problem_bytes"]) == ctypes.sizeof(problem.Caches)


def random_pages(lengths, page, heads, head_dim, dtype=torch.float64):
    """K and V in vLLM's layout, the table, and K and V of each sequence; NaN and random pages beyond the lengths."""
    most = -(-max(lengths) // page) + 1
    cache = torch.full((2, len(lengths) * most, page, heads, head_dim), torch.nan, dtype=dtype)
    table = torch.randint(-(2**31), 2**31, (len(lengths), most), dtype=torch.int32)
    order, each = torch.randperm(cache.shape[1], dtype=torch.int32), []
    for row, length in enumerate(lengths):
        used = -(-length // page)
        table[row, :used] = order[row * most : row * most + used]
        own = torch.randn(2, length, heads, head_dim, dtype=dtype)
        for number in range(used):
            part = own[:, number * page : (number + 1) * page]
            cache[:, table[row, number], : part.shape[1]] = part
        each.append(own.transpose(1, 2))
    k, v = cache.transpose(2, 3)
    return k, v, table, each


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("queries", "q_lens"), [(1, None), (3, None), (3, [2, 3, 1])])
def test_pages_are_the_caches_that_they_hold(queries, q_lens, compiled):
    torch.manual_seed(1)
    lengths = [40, 17, 0]
    k, v, table, each = random_pages(lengths, 8, 2, 32)
    q = torch.randn(3, 4, queries, 32, dtype=torch.float64)
    counts = None if q_lens is None else torch.tensor(q_lens)
    call = torch.compile(attnlab.attend, backend="eager", fullgraph=True) if compiled else attnlab.attend
    output = call(q, k, v, True, kv_lens=torch.tensor(lengths), q_lens=counts, block_table=table)
    for row, (keys, values) in enumerate(each):
        own = queries if q_lens is None else q_lens[row]
        if not lengths[row]:
            assert not output[row].any()
            continue
        right = attnlab.attend(q[row : row + 1, :, :own], keys[None], values[None], True)
        torch.testing.assert_close(output[row : row + 1, :, :own], right)


def test_pages_that_do_not_fit_are_refused_in_a_line():
    q, k, lengths = torch.zeros(2, 4, 1, 32), torch.zeros(6, 2, 16, 32), torch.tensor([3, 4])
    table = torch.zeros(2, 3, dtype=torch.int32)
    call = partial(attnlab.attend, q, k, k)
    assert told(lambda: call(block_table=table), ValueError) == "attend takes block_table with kv_lens"
    for wrong in (table.long(), table[0], table[:1]):
        said = told(partial(call, kv_lens=lengths, block_table=wrong), ValueError)
        assert said.startswith("block_table has to be int32, with a row of pages for each sequence of q")
    said = told(lambda: attnlab.attend(q, k, k[:5], kv_lens=lengths, block_table=table), ValueError)
    assert said == "k and v have to be pages of one shape, not (6, 2, 16, 32) and (5, 2, 16, 32)"
    with pytest.raises(TypeError, match=r"^attend takes tensors, and block_table is of type list$"):
        call(kv_lens=lengths, block_table=[[0], [1]])


def test_pages_go_to_kernels_in_place_and_as_copies_if_these_refuse_them(monkeypatch):
    lengths = [20, 9]
    k, v, table, each = random_pages(lengths, 16, 2, 32)
    asked = []
    monkeypatch.setattr(attend, "is_plain", lambda *_: True)
    monkeypatch.setattr(ragged, "split", lambda *given: asked.append(given) or "few")
    monkeypatch.setattr(ragged, "padded", lambda *given: asked.append(given) or "many")
    call = partial(attnlab.attend, k=k, v=v, kv_lens=torch.tensor(lengths), block_table=table)
    assert call(torch.zeros(2, 4, 1, 32)) == "few"
    assert asked[0][1] is k
    assert asked[0][5].tolist() == lengths
    assert asked[0][6] is table
    assert call(torch.zeros(2, 4, 129, 32)) == "many"
    assert asked[1][1] is k
    assert asked[1][7] is table

    def dense_only(*given):
        if len(given) > 7:
            raise Unsupported("pages")
        return asked.append(given) or "copies"

    monkeypatch.setattr(ragged, "padded", dense_only)
    assert call(torch.zeros(2, 4, 129, 32)) == "copies"
    assert torch.equal(asked[2][1][0, :, :20], each[0][0])

    q = torch.randn(2, 4, 16, 32, dtype=torch.float64)
    monkeypatch.setattr(ragged, "split", Mock(side_effect=Unsupported("sequences that aren't whole rows apart")))
    right = sdpa.sdpa(q[:1], *(tensor[None] for tensor in each[0]), True)
    torch.testing.assert_close(call(q, causal=True)[:1], right)


@pytest.mark.parametrize(("batch", "keys", "pages", "wanted"), [(32, 16384, 0, 99), (1, 100, 0, 1), (2, 64, 40, 40)])
def test_parts_fill_the_device_and_fit_the_keys(batch, keys, pages, wanted):
    tile = next(tile for tile in ladder.rung(rungs.CACHES).tiles if tile.head_dim == 128)
    q, k = torch.zeros(batch, 32, 1, 128), torch.zeros(1, 8, 1, 128).expand(batch, 8, keys, 128)
    its = problem.Caches.of_lengths(q, k, k, pages, True, 0.1, tile, 264)
    assert its.wanted == wanted
    assert its.parts(batch) == wanted + batch
    assert its.partial_results(batch) == (min(wanted + batch, 2 * wanted) if keys * (pages or 1) > 128 else 0)
    assert (its.keys, its.page.by, its.last_page) == (keys * (pages or 1), keys, max(pages - 1, 0))


def test_pages_of_other_sizes_are_not_read_in_place():
    q = torch.zeros(2, 4, 1, 128)
    for (pages, size), name in product(((3, 24), (0, 16)), (rungs.CACHES, rungs.RAGGED)):
        k, kernel = torch.zeros(6, 2, size, 128), rungs.Kernel(ladder.rung(name))
        with pytest.raises(Unsupported, match=r"^\w+ takes pages of 16 keys or a multiple, in rows of 16 bytes$"):
            kernel.paged(q, k, k, pages, False, None)
