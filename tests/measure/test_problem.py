"""The arguments of kernels that take views, or split keys: divisors, and the distribution of work items among CTAs."""

import ctypes
import re

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnlab.base import paths
from attnlab.measuring.kernels.problem import CLUSTERS, Divisor, Packing, Problem, splits
from attnlab.study.ladder import Tile

properties = settings(deadline=None)


@pytest.mark.parametrize(
    ("structure", "file", "size"),
    [(Divisor, "hopper.cuh", 12), (Problem, "hopper.cuh", 140), (Packing, "12_few.cu", 136)],
)
def test_a_structure_is_what_the_source_declares(structure, file, size):
    source = (paths.kernels() / file).read_text()
    declared = source.split(f"struct {structure.__name__} {{")[1].split("};")[0]
    fields = re.findall(r"^    (?:int|unsigned|float|Divisor|Strides) ([\w, ]+);", declared, re.MULTILINE)
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
    assert (problem.queries, problem.keys, problem.scale) == (300, 500, 0.5)
    assert (problem.earlier, problem.last_key) == (200, 200)
    together = problem.section.by
    assert (problem.section_items.by, problem.rest.by) == (3 * together, 24 % together or together)
    # 72 items: 64 CTAs have 1 each, and 16 of them also 1 of the 2 blocks of another item.
    assert (problem.whole, problem.shares.by) == (64, 2)


def test_heads_of_one_block_that_share_keys_count_as_one():
    tile = Tile(head_dim=64, rows=128, keys=64, threads=384, shared_bytes=0, box_rows=64)
    q, k = torch.empty(2, 12, 50, 64, device="meta"), torch.empty(2, 3, 500, 64, device="meta")
    problem = Problem.of(q, k, True, 0.5, tile, 64, 50 << 20)
    assert (problem.heads.by, problem.sharing.by, problem.items.by, problem.section.by) == (3, 1, 2, 6)
    # 4 blocks of queries, which see all keys: heads 3h to 3h + 3, at their first rows.
    assert (problem.queries, problem.earlier, problem.last_key) == (4 * 64, 500, 450)
    assert (problem.joined, problem.head_step, problem.row_step) == (3, 1, 0)


# A kernel that splits keys

ROWS = Tile(head_dim=64, rows=16, keys=64, threads=128, shared_bytes=0)
# CTAs that an H200 holds, 2 on a multiprocessor, in clusters of each size.
HELD = ((1, 264), (2, 264), (4, 248), (8, 240), (16, 224))


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
        assert parts == 1  # the heads alone fill the device
