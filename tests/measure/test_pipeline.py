"""The pipeline of jobs.cuh, by a model of it: nothing is taken for what it is not, and nobody waits for good."""

import random
from dataclasses import replace

import pytest
from pipeline import Cta, Plan, Wrong

from attnlab.study import ladder

RUNGS = ("kernel.jobs", "kernel.bounded", "kernel.lazy")
PLANS = sorted(
    {
        (*tile.template.values(), 2 if tile.head_dim < 256 else 1, *tile.masks)
        for name in RUNGS
        for tile in ladder.rung(name).tiles
    }
)


def drawn(plan: tuple, seed: int) -> Cta:
    """A CTA at a problem of a few heads, and how late its tiles may come."""
    some = random.Random(seed)
    keys, stages, consumers, ping_pong, jobs_per_pass, buffers, *masks = plan
    causal = some.choice(masks) == ladder.MASKS[True]
    # All tiles of a head have to be in the ring where a consumer has several jobs of a pass.
    blocks = some.randint(1, jobs_per_pass if jobs_per_pass > consumers else 14)
    earlier = some.choice((0, 0, 64, 130)) if causal and jobs_per_pass == consumers else 0
    grid = some.choice((1, 2, 3, 5, 12))
    heads = some.randint(1, 5)
    section = some.randint(1, heads)
    axes = (buffers, causal, blocks, heads, earlier, section, grid)
    problem = Plan(keys, stages, consumers, bool(ping_pong), jobs_per_pass, *axes)
    return Cta(replace(problem, cta=some.randrange(grid)), some, some.choice((3, 40, 150)))


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


@pytest.mark.parametrize("seed", [66, 104, 291])  # of 1,500, thirteen
def test_a_pass_that_begins_before_all_earlier_tiles_have_come_is_caught(seed):
    # As it was until 2026-11-22: who had skipped a tile could take the one after it to be in its stage.
    cta = drawn((64, 4, 3, 0, 3, 2, "causal"), seed)
    cta.begin_pass = False
    with pytest.raises(Wrong, match=" was taken to be there, and "):
        cta.run()
