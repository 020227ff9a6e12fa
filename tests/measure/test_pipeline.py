"""The pipeline of jobs.cuh, by a model of it: consumers read the right tiles, and there is no deadlock."""

import random
from dataclasses import replace
from itertools import count
from math import ceil

import pytest
from pipeline import Cta, Plan, RaggedCta, Wrong, listed, loads, run

from attnlab.study import ladder

RUNGS = ("kernel.jobs", "kernel.bounded", "kernel.lazy")
PLANS = sorted(
    {
        (*tile.template.values(), 2 if tile.head_dim < 256 else 1, name == "kernel.lazy", *tile.masks)
        for name in RUNGS
        for tile in ladder.rung(name).tiles
    }
)


def drawn(plan: tuple, seed: int) -> Cta:
    """A CTA for a problem of a few heads, with random delays of its tiles."""
    some = random.Random(seed)
    keys, stages, consumers, ping_pong, jobs_per_pass, buffers, whole_first, *masks = plan
    causal = some.choice(masks) == ladder.MASKS[True]
    # If a consumer has several jobs of a pass, all tiles of a head must fit in the ring.
    blocks = some.randint(1, jobs_per_pass if jobs_per_pass > consumers else 14)
    earlier = some.choice((0, 0, 64, 130)) if causal and jobs_per_pass == consumers else 0
    grid = some.choice((1, 2, 3, 5, 12))
    heads = some.randint(1, 5)
    section = some.randint(1, heads)
    axes = (buffers, causal, blocks, heads, earlier, section, grid)
    problem = Plan(keys, stages, consumers, bool(ping_pong), jobs_per_pass, *axes)
    return Cta(replace(problem, cta=some.randrange(grid), whole_first=whole_first), some, some.choice((3, 40, 150)))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: " ".join(map(str, plan)))
def test_every_job_is_done_once_and_reads_its_own_tiles(plan):
    for seed in range(100):
        cta = drawn(plan, seed)
        cta.run()
        assert sorted(cta.computed) == sorted(cta.plan.jobs())


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: " ".join(map(str, plan)))
def test_the_ctas_of_a_grid_share_out_all_blocks_of_all_heads(plan):
    for seed in range(50):
        problem = drawn(plan, seed).plan
        dealt = [job for cta in range(problem.grid) for job in replace(problem, cta=cta).jobs()]
        assert sorted(dealt) == [(head, block) for head in range(problem.heads) for block in range(problem.blocks)]


@pytest.mark.parametrize("seed", [66, 104, 291])  # 13 of 1,500 seeds fail
def test_a_pass_that_begins_before_all_earlier_tiles_have_come_is_caught(seed):
    # The bug until 2026-11-22: a consumer that skipped a tile could take the next tile as the one in its stage.
    cta = drawn((64, 4, 3, 0, 3, 2, False, "causal"), seed)
    cta.begin_pass = False
    with pytest.raises(Wrong, match=" was taken to be there, and "):
        cta.run()


# Unequal sequence lengths

RAGGED = [
    Plan(*(tile.template[name] for name in ("keys", "stages", "consumers", "ping_pong", "jobs_per_pass")), 2, causal)
    for tile in ladder.rung("kernel.ragged").tiles
    for causal in (False, True)
    if ladder.MASKS[causal] in tile.masks
]
by_plan = pytest.mark.parametrize("plan", RAGGED, ids=lambda plan: f"{plan.keys} {plan.consumers} {plan.causal}")


def lengths_of(some: random.Random, count: int, longest: int) -> list[tuple[int, int]]:
    """Queries and keys of sequences; some have none, 1, or only keys in a cache."""
    queries = [some.choice((0, 1, 64, some.randint(1, longest), some.randint(1, longest))) for _ in range(count)]
    return [(n, some.choice((n, n, 0, 1, n + some.randint(0, longest), some.randint(0, longest)))) for n in queries]


def jobs_of(lengths: list[tuple[int, int]], heads: int) -> list[tuple[int, int, int]]:
    """The sequence, head and first row of each block of 64 queries."""
    each = enumerate(queries for queries, _ in lengths)
    return [(sequence, head, row) for sequence, n in each for head in range(heads) for row in range(0, n, 64)]


@by_plan
def test_ragged_sequences_are_all_done_once_and_read_their_own_tiles(plan):
    for seed in range(60):
        some = random.Random(seed)
        lengths = lengths_of(some, some.randint(1, 7), some.choice((60, 200, 700)))
        kv_heads, sharing, grid = some.randint(1, 2), some.choice((1, 1, 2, 5)), some.choice((1, 1, 2, 4))
        passes, taken = listed(lengths, plan, sharing), count(grid)
        problem, delay = replace(plan, grid=grid), some.choice((3, 40, 150))
        made = [
            RaggedCta(replace(problem, cta=cta), some, delay, True, [], passes, kv_heads, sharing, taken)
            for cta in range(grid)
        ]
        run(made)
        done = [block for cta in made for _, block in cta.computed]
        assert sorted(done) == jobs_of(lengths, kv_heads * sharing)


def test_passes_that_are_taken_one_by_one_leave_consumers_waiting_for_good():
    """A consumer without a job in the present passes holds a stage, or its turn, until it gets one."""
    plan = Plan(64, 3, 3, True, 3, 2)
    passes = listed([(64, 640)] * 12, plan, 1)
    cta = RaggedCta(plan, random.Random(1), 3, True, [], passes, 1, 1, count(1), slots=1)
    with pytest.raises(Wrong, match="all wait for good"):
        cta.run()


@by_plan
def test_a_block_has_the_tiles_that_its_queries_see(plan):
    some = random.Random(3)
    for queries, keys in lengths_of(some, 60, 500):
        for one in listed([(queries, keys)], plan, 1):
            seen = {}
            for block in range(one.begin, one.last + 1):
                rows = range(64 * block, min(64 * block + 64, queries))
                last = max(keys - queries + row if plan.causal else keys - 1 for row in rows)
                seen[block] = max(ceil((min(last, keys - 1) + 1) / plan.keys), 1)
                # For the last block, the mask also counts rows beyond the end.
                assert seen[block] <= one.tiles(block, plan) <= max(ceil(keys / plan.keys), 1)
            whole = (keys - queries + 64 * one.begin + 1 if plan.causal else keys) // plan.keys
            for place, tile in enumerate(one.order(plan)):
                assert tile == place or max(tile, place) < whole  # a consumer, which knows the place, masks neither
                blocks = [block for block in seen if one.tiles(block, plan) > tile]
                assert blocks == list(range(one.last + 1 - one.users(tile, plan), one.last + 1))


@by_plan
@pytest.mark.parametrize(("sequences", "longest"), [(1, 9000), (33, 1900), (33, 60), (4096, 90)])
def test_the_ctas_of_a_grid_have_loads_that_differ_by_at_most_one_pass(plan, sequences, longest):
    some = random.Random(longest)
    lengths = [(n, n) for n in (some.randint(0, longest) for _ in range(sequences))]
    lengths[0] = (20 * longest, 20 * longest) if longest == 60 else lengths[0]  # longer than all others together
    passes = listed(lengths, plan, 2)
    blocks = [one.job(block, 0, 2) for one in passes for block in range(one.begin, one.last + 1)]
    assert sorted(blocks) == jobs_of(lengths, 2)
    each = loads(passes, replace(plan, grid=132), 4)
    longest_pass = max(one.tiles(one.last, plan) for one in passes)
    assert max(each) - min(each) <= longest_pass + 3
