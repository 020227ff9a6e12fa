"""What a kernel that takes views is told: its divisions, and how its work items are dealt among CTAs; and what one that
splits keys is told."""

import ctypes
import re

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnlab.base import paths
from attnlab.measure.subjects.problem import (
    CLUSTERS,
    ITEM_TILES,
    Divisor,
    Packing,
    Problem,
    cost,
    section,
    shares,
    splits,
    step,
)
from attnlab.study.ladder import Tile

properties = settings(deadline=None)


@pytest.mark.parametrize(("structure", "size"), [(Divisor, 12), (Problem, 124)])
def test_a_problem_is_what_the_header_declares(structure, size):
    source = (paths.kernels() / "hopper.cuh").read_text()
    declared = source.split(f"struct {structure.__name__} {{")[1].split("};")[0]
    fields = re.findall(r"^    (?:int|unsigned|float|Divisor) ([\w, ]+);", declared, re.MULTILINE)
    assert ", ".join(fields).split(", ") == [name for name, _ in structure._fields_]
    assert ctypes.sizeof(structure) == size


@properties
@given(number=st.integers(0, 2**31 - 1), by=st.integers(1, 2**31 - 1))
@example(number=2**31 - 1, by=1)
@example(number=2**31 - 1, by=2**31 - 1)
@example(number=2**31 - 2, by=2**31 - 1)
@example(number=2**31 - 1, by=2**30 + 1)
def test_a_quotient_is_a_product(number, by):
    divisor = Divisor.of(by)
    for small in (number, number % 2**16, number // by * by):
        assert (2 * small * divisor.factor >> 32) >> divisor.shift == small // by
    assert 2 * number < 2**32 > divisor.factor


def test_a_problem_counts_heads_keys_and_work_items():
    tile = Tile(head_dim=64, rows=128, keys=64, threads=384, shared_bytes=0, box_rows=64)
    q, k = torch.empty(2, 12, 300, 64, device="meta"), torch.empty(2, 3, 500, 64, device="meta")
    problem = Problem.of(q, k, True, 0.5, tile, 64, 50 << 20)
    assert (problem.batch, problem.heads.by, problem.sharing.by, problem.items.by) == (2, 12, 4, 3)
    assert (problem.queries, problem.keys, problem.earlier, problem.scale) == (300, 500, 200, 0.5)
    together = problem.section.by
    assert (problem.section_items.by, problem.rest.by) == (3 * together, 24 % together or together)
    # 72 items: 64 CTAs have one each, and sixteen of them one of the two blocks of another.
    assert (problem.whole, problem.shares.by) == (64, 2)


@properties
@given(items=st.integers(0, 5000), ctas=st.integers(1, 200), most=st.integers(1, 9))
def test_the_shares_of_the_last_round_are_one_round(items, ctas, most):
    of_each, left = shares(items, ctas, most), items % ctas
    assert 1 <= of_each <= most
    assert left * of_each <= ctas
    assert of_each == most or not left or left * (of_each + 1) > ctas


@pytest.mark.parametrize(("items", "ctas"), [(11, 132), (22, 132), (3, 132), (16, 132), (43, 132), (6, 108), (1, 132)])
def test_every_cta_has_about_as_many_of_each_item_of_a_sequence(items, ctas):
    rounds, on = 60, step(items, ctas)
    dealt = np.array([turn * ctas + (np.arange(ctas) + turn * on) % ctas for turn in range(rounds)])
    assert (np.sort(dealt.ravel()) == np.arange(rounds * ctas)).all()
    for item in range(items):
        had = (dealt % items == item).sum(axis=0)
        assert had.max() - had.min() <= 2


@pytest.mark.parametrize(
    ("heads", "queries", "rows", "tile", "cached", "best"),
    [
        (35, 2048, 192, 128, 0.01, 35),  # three rounds: all heads at once
        (256, 512, 192, 64, 0.005, 4),  # all sections come out alike: the smallest stays in the cache
        (256, 2048, 192, 128, 0.01, 44),
        (256, 2048, 192, 128, 0.2, 4),  # where one head takes a fifth of the L2
        (3, 2048, 192, 128, 0.01, 3),  # fewer heads than the smallest section
    ],
)
def test_a_section_balances_the_ctas_and_stays_in_the_cache(heads, queries, rows, tile, cached, best):
    assert section(heads, queries, queries, rows, tile, 132, cached) == best


def test_with_no_other_section_do_the_ctas_end_sooner_if_the_cache_is_large():
    for heads, queries in ((35, 2048), (64, 1111), (256, 4096)):
        chosen = section(heads, queries, queries, 192, 128, 132, 1e-9)
        tiles = np.ceil((queries - 192 * np.arange(-(-queries // 192))) / 128) + ITEM_TILES
        sizes = [size for size in (4, 6, 11, 12, 22, 33, 44, 66, 132, heads) if size <= heads]
        longest = {size: _by_hand(tiles, heads, size, 132) for size in sizes}
        assert longest[chosen] == pytest.approx(min(longest.values()))


def _by_hand(tiles, heads, together, ctas):
    """The tiles of the CTA that has most, item by item."""
    sections = [min(together, heads - begin) for begin in range(0, heads, together)]
    items = [tile for size in sections for tile in tiles for _ in range(size)]
    loads = [0.0] * ctas
    for at, item in enumerate(items):
        turn, cta = divmod(at, ctas)
        loads[ctas - 1 - cta if turn % 2 else cta] += item
    return max(loads)


# A kernel that splits keys

ROWS = Tile(head_dim=64, rows=16, keys=64, threads=128, shared_bytes=0)
# CTAs that an H200 holds, two on a multiprocessor, in clusters of each size.
HELD = ((1, 264), (2, 264), (4, 248), (8, 240), (16, 224))


def test_a_packing_is_what_the_kernel_declares():
    declared = (paths.kernels() / "12_few.cu").read_text().split("struct Packing {")[1].split("};")[0]
    fields = re.findall(r"^    (?:int|float|Strides) ([\w, ]+);", declared, re.MULTILINE)
    assert ", ".join(fields).split(", ") == [name for name, _ in Packing._fields_]


def test_a_packing_holds_the_strides_of_views_and_splits_all_keys():
    q = torch.empty(2, 3, 12, 64, device="meta").transpose(1, 2)
    cache = torch.empty(2, 3, 1000, 64, device="meta")
    packing = Packing.of(q, cache[:, :, :777], cache[:, :, 5:782], True, 0.5, ROWS, HELD, 2)
    assert (packing.queries, packing.keys, packing.group, packing.kv_heads, packing.scale) == (3, 777, 4, 3, 0.5)
    assert packing.masked == 1
    assert [packing.q.batch, packing.q.head, packing.q.row] == [3 * 12 * 64, 64, 12 * 64]
    assert [packing.k.batch, packing.k.head, packing.k.row] == [3 * 64000, 64000, 64]
    assert [packing.o.batch, packing.o.head, packing.o.row] == list(torch.empty_like(q).stride()[:3])
    assert packing.split_keys % ROWS.keys == 0
    of_cluster = packing.cluster * packing.split_keys
    assert (packing.clusters - 1) * of_cluster < 777 <= packing.clusters * of_cluster


def test_clusters_whose_keys_the_mask_hides_from_all_rows_take_no_turn():
    """64 items in 132 CTAs: of 3 clusters of each, self-attention leaves 2 that have something to do."""
    least = cost(2, 1, 64, 33, 128, 132, 1)
    assert cost(3, 1, 64, 33, 128, 132, 1) > 1.2 * least
    assert cost(3, 1, 64, 33, 128, 132, 1, hidden=1.0) < least


@properties
@given(items=st.integers(1, 3000), tiles=st.integers(1, 600), rows=st.integers(1, 64), held=st.integers(16, 300))
def test_no_split_is_empty_and_few_heads_fill_the_device(items, tiles, rows, held):
    in_clusters = tuple((cluster, held // cluster * cluster) for cluster in CLUSTERS)
    clusters, cluster = splits(items, tiles, rows, in_clusters, 2)
    parts = clusters * cluster
    assert 1 <= parts <= tiles
    assert cluster in CLUSTERS
    assert parts == 1 or items * parts <= 8 * held
    if items >= held and items % held == 0:
        assert parts == 1  # they fill it by themselves


def test_a_device_without_clusters_splits_keys_by_workspaces_alone():
    assert splits(8, 16, 4, ((1, 264),), 2) == (16, 1)


@pytest.mark.parametrize(
    ("items", "tiles", "rows", "split"),
    [(8, 128, 4, (8, 2)), (8, 16, 16, (1, 8)), (64, 128, 4, (1, 2)), (256, 128, 64, (1, 1)), (1, 1, 1, (1, 1))],
)
def test_splits_at_shapes_of_models(items, tiles, rows, split):
    """Of 8 heads of K and V: 1 sequence of 8192 and of 1024 keys, 8 and 32 sequences of 8192."""
    assert splits(items, tiles, rows, HELD, 2) == split
