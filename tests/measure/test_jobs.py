"""The pipeline and the tile scheduler of rungs 8 and 11, without a GPU: on an emulated multiprocessor.

Threads get on in random order, and tiles come late and out of order.
"""

import ctypes
import random
import subprocess

import pytest
import torch
from emulation import jobs_program, printed

from attnlab.measuring.kernels import problem
from attnlab.study import ladder

TILES = [
    (name, tile, causal)
    for name in ("kernel.jobs", "kernel.lazy")
    for tile in ladder.rung(name).tiles
    for causal in (False, True)
    if tile.head_dim < 256 and ladder.MASKS[causal] in tile.masks
]
PROBLEMS, L2_BYTES = 6, 60 * 2**20


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return jobs_program(tmp_path_factory.mktemp("emulated"), "lazy", "8_jobs.cu", "11_lazy.cu")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return jobs_program(tmp_path_factory.mktemp("narrow"), "lazy", "8_jobs.cu", "11_lazy.cu", narrow=True)


def drawn(tile, causal, seed):
    """A problem of a few heads: batch, heads, kv_heads, queries, keys, CTAs, and by how many nats scores rise."""
    some = random.Random(seed)
    queries = some.choice((1, 64, 65, 130, 200, some.randint(1, 300)))
    keys = queries + some.choice((0, 0, 64, 130)) if causal else some.randint(1, 400)
    if tile.template["jobs_per_pass"] > tile.template["consumers"]:  # all tiles of a head have to fit into the ring
        keys = queries
    kv_heads, group = some.choice((1, 1, 2)), some.choice((1, 1, 2, 5))
    sizes = (some.choice((1, 1, 2)), kv_heads * group, kv_heads, queries, keys, some.choice((1, 2, 3, 5)))
    return *sizes, some.choice((0, 0, 12, -30, 60))


def ran(emulator, name, tile, causal, sizes, seed, low=0, **environment):
    """What the emulator prints; with the problem that the host computes."""
    batch, heads, kv_heads, queries, keys, ctas, rise = sizes
    q = torch.empty(batch, heads, queries, tile.head_dim, device="meta", dtype=torch.bfloat16)
    k = torch.empty(batch, kv_heads, keys, tile.head_dim, device="meta", dtype=torch.bfloat16)
    given = problem.Problem.of(q, k, causal, tile.head_dim**-0.5, tile, ctas, L2_BYTES)
    instance = (tile.head_dim, causal, tile.keys, tile.template["consumers"], tile.template["jobs_per_pass"])
    numbers = (name == "kernel.lazy", *instance, batch, heads, kv_heads, queries, keys, ctas, seed, rise, low)
    found = dict(printed(emulator, bytes(given).hex(), *map(int, numbers), **environment))
    assert int(found["problem_bytes"]) == ctypes.sizeof(problem.Problem)
    assert int(found["shared_bytes"]) == tile.shared_bytes
    return found


@pytest.mark.parametrize(
    ("name", "tile", "causal"), TILES, ids=lambda x: f"{x.name}{x.head_dim}" if hasattr(x, "name") else str(x)
)
def test_the_kernel_on_an_emulated_multiprocessor(emulator, name, tile, causal):
    for number in range(PROBLEMS):
        sizes = drawn(tile, causal, number)
        found = [ran(emulator, name, tile, causal, sizes, seed) for seed in (number, number + 100)]
        assert found[0]["hash"] == found[1]["hash"], sizes  # the same bits for any timing of threads and copies
        assert float(found[0]["error"]) < 0.004, sizes
        assert float(found[0]["log_sum"]) < 0.005, sizes


@pytest.mark.parametrize("low", [0, 300])
@pytest.mark.parametrize("rise", [0, 12, 60, -60])
def test_scores_in_the_window_of_fp16(narrow, rise, low):
    # At D = 64 exact tiles search the largest score by its bits, unless a job's scores are far below 0.
    for name, tile, causal in TILES:
        if (name, tile.head_dim) == ("kernel.lazy", 64):
            found = ran(narrow, name, tile, causal, (1, 2, 2, 330, 330, 1, rise), 0, low)
            assert float(found["error"]) < 0.004
            assert float(found["log_sum"]) < 0.005


def test_a_pass_that_begins_before_all_earlier_tiles_have_come_is_caught(emulator):
    # The bug until 2026-11-22: a consumer that skipped a tile could take the next tile as the one in its stage.
    sizes = (1, 4, 4, 200, 200, 1, 0)
    tile = next(tile for tile in ladder.rung("kernel.lazy").tiles if (tile.head_dim, tile.name) == (128, "three"))

    def caught(seed):
        try:
            return not float(ran(emulator, "kernel.lazy", tile, True, sizes, seed, BEGINS_EARLY="1")["error"]) < 0.004
        except subprocess.CalledProcessError:  # a barrier had more arrivals than it expects, or all wait
            return True

    assert any(map(caught, range(80)))  # about one in 15
