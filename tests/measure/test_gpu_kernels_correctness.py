"""Every rung of the ladder through the gate, on the lengths and inputs that break kernels (`make test-gpu`)."""

from functools import partial
from itertools import product

import pytest
import torch

from attnlab.measure.gate.gate import Gate
from attnlab.measure.instruments import devices
from attnlab.measure.subjects import inputs, rungs
from attnlab.measure.subjects.implementation import Unsupported
from attnlab.runs import schema
from attnlab.study import ladder
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]

GPU = torch.device("cuda")
LENGTHS = (1, 7, 63, 64, 65, 127, 128, 129, 300, 512, 576, 777, 1000)
INSTANCES = [
    pytest.param(rung, tile, dtype, causal, id=f"{rung.name}-{tile.name}{tile.head_dim}-{dtype}-{causal}")
    for rung in ladder.load()
    for tile, dtype, causal in product(rung.tiles, rung.dtypes, (False, True))
    if ladder.MASKS[causal] in tile.masks
]


@pytest.mark.parametrize(("rung", "tile", "dtype", "causal"), INSTANCES)
def test_an_instance_passes_the_gate_at_every_length_on_every_kind_of_inputs(rung, tile, dtype, causal):
    """One test for each instance, so that each is compiled once."""
    implementation = rungs.pinned(rung, tile)
    axes = {"head_dim": tile.head_dim, "causal": causal, "dtype": dtype}
    shapes = [Shape(2, 3, seq_len, **axes) for seq_len in LENGTHS]
    shapes += [Shape(1, 2, 4096, **axes), Shape(64, 32, 64, **axes), Shape(16, 20, 520, **axes)]
    refused = []
    for number, shape in enumerate(shape for shape in shapes if tile.serves_length(shape.seq_len)):
        for kind in (NORMAL, *schema.EXTREMES):
            refused += _refused(implementation, shape, kind, number)
        devices.release(GPU)
    assert not refused, "\n".join(refused)


def _refused(implementation, shape, kind, seed):
    drawn = inputs.draw(shape, seed, GPU, kind)
    gate = Gate(drawn, shape.causal, kind)
    call = partial(implementation.call, *drawn, shape.causal)
    try:
        check = gate.examine(call)
    except Unsupported as error:
        pytest.skip(str(error))
    checks = [check]
    if check.passed and kind == NORMAL:
        checks.append(gate.examine_captured(call))
    return [f"{implementation.name} at {shape}, {kind}: {check.reason}" for check in checks if not check.passed]
