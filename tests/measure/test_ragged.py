"""`kernel.ragged` without a GPU: on an emulated multiprocessor."""

import ctypes
import math

import pytest
from emulation import jobs_program, printed

from attnlab.base.errors import UserError
from attnlab.compile import nvrtc
from attnlab.measuring.kernels import ragged
from attnlab.study import ladder


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return jobs_program(tmp_path_factory.mktemp("emulated"), "ragged", "15_ragged.cu")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("head_dim", "page"), [(64, 16), (64, 128), (128, 16), (128, 64)])
def test_instances_for_pages_compile(head_dim, page, causal):
    rung = ladder.rung("kernel.ragged")
    tiles = rung.tiles_for(head_dim, page, causal)
    names = [rung.expression("bfloat16", tile, causal, math.gcd(page, tile.keys)) for tile in tiles]
    try:
        build = nvrtc.build(rung, rung.architectures[0], names)
    except UserError as error:
        pytest.skip(str(error))
    assert not build.error
    assert not build.warnings
    for instance in map(build.instances.__getitem__, names):
        assert instance.spill_bytes <= 200  # of the warp that loads K and V
        assert instance.parameters[-1] == ctypes.sizeof(ragged.PagedProblem)


EXTREMES = [130, 250, 64, 300, 1, 0, 5, 17, 0, 90, 200, 200]


@pytest.mark.parametrize(
    ("head_dim", "causal", "tile_keys", "rise", "boxes", "kv_heads", "group", "keys", "grid", "lengths"),
    [
        (128, 0, 128, 0, {0: 0, 16: 16, 128: 256}, 1, 2, 512, 3, EXTREMES),
        (128, 1, 64, 60, {0: 0}, 2, 1, 384, 2, EXTREMES),
        (128, 1, 128, -60, {0: 0, 16: 48, 128: 128}, 2, 1, 384, 2, EXTREMES),
        (128, 1, 128, 40, {0: 0, 16: 16}, 1, 1, 512, 2, [64, 291, 200, 500]),  # a tile of P is rescaled in bf16
        (64, 0, 128, 0, {0: 0}, 2, 2, 320, 2, EXTREMES),  # incomplete passes are listed apart
        (64, 1, 128, 12, {0: 0, 16: 16, 64: 64}, 1, 1, 320, 2, EXTREMES),
        (64, 1, 128, 0, {0: 0, 64: 64}, 1, 5, 320, 1, [40, 320, 64, 1, 9, -3]),  # heads are blocks of one pass
    ],
)
def test_the_kernel_on_an_emulated_multiprocessor_in_place_of_pages_too(
    emulator, head_dim, causal, tile_keys, rise, boxes, kv_heads, group, keys, grid, lengths
):
    found = []
    for seed, (box, page) in enumerate([*boxes.items()] * 2):
        sizes = (head_dim, causal, box, page, kv_heads, group, max(lengths[::2]), keys, grid, seed, tile_keys, rise)
        found.append(dict(printed(emulator, *sizes, *lengths)))
        problem = ragged.PagedProblem if page else ragged.RaggedProblem
        assert int(found[-1]["problem_bytes"]) == ctypes.sizeof(problem)
    assert {each["hash"] for each in found} == {found[0]["hash"]}  # for any pages, and any timing of threads and copies
    assert float(found[0]["error"]) < 0.004
    assert {each["padding"] for each in found} == {"0"}  # rows of it that were written
    assert {each["longest_first"] for each in found} == {"1"}  # so CTAs' loads differ by about one pass at most
    tiles = ladder.rung("kernel.ragged").tiles
    assert int(found[0]["shared_bytes"]) in {tile.shared_bytes for tile in tiles if tile.head_dim == head_dim}
