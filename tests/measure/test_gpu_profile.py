"""Counters of an NVIDIA GPU, by the Nsight Compute that is there: `make test-gpu`."""

import os
import shutil
from functools import cache

import pandas as pd
import pytest
import torch

from attnlab.infer import counters as infer_counters
from attnlab.measure.instruments import counters as instruments_counters
from attnlab.runs import metrics
from attnlab.runs.tables import TABLES
from attnlab.study import ladder
from attnlab.study.shapes import Shape

NCU = os.environ.get("ATTNLAB_NCU") or shutil.which("ncu")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(NCU is None, reason="Nsight Compute is not here"),
]

SHAPE = Shape(8, 8, 512, 64)


COUNTED = ("sdpa.flash", "kernel.mma", "kernel.tiled", "kernel.bounded")


@cache
def counted(name: str) -> pd.DataFrame:
    rows = every()
    return rows[rows["implementation"] == name].reset_index(drop=True)


@cache
def every() -> pd.DataFrame:
    capability = torch.cuda.get_device_capability()
    there = [name for name in COUNTED if name[:4] == "sdpa" or ladder.rung(name).architecture(capability)]
    return instruments_counters.counters(str(NCU), {name: [SHAPE] for name in there})


def counters(name: str) -> infer_counters.Profile:
    rows = counted(name)
    wide = rows.pivot(index="launch", columns="metric", values="value")
    return infer_counters.Profile(name, wide.assign(function=rows.groupby("launch")["function"].first()))


def test_every_counter_is_there():
    rows = counted("sdpa.flash")
    assert list(rows.columns) == TABLES["profile"].names
    lacking = set(metrics.COUNTERS) - set(rows["metric"])
    assert {name for name in lacking if "gmma" not in name} == set()
    assert rows["launch"].nunique() == 1
    assert (rows["value"] >= 0).all()


@pytest.mark.parametrize("name", ["sdpa.flash", "kernel.mma"])
def test_the_counters_agree_with_the_arithmetic(name):
    found = counters(name)
    device = torch.cuda.get_device_properties(0)
    assert sum(found.cycles_pct.values()) == pytest.approx(100, abs=1)
    exponentials = found.units_pct["exponentials (XU)"] / 100 * found.total(metrics.CYCLES)
    assert exponentials * 16 * device.multi_processor_count > 0.95 * SHAPE.exponentials
    assert all(0 <= share <= 101 for share in found.units_pct.values())
    assert len(found.bottlenecks) == infer_counters.TOP


def test_only_what_uses_tensor_cores_has_them_busy():
    assert counters("sdpa.flash").units_pct["tensor cores"] > 10
    # The compiler loads constants by an instruction of the tensor cores' pipe: that is no work of theirs.
    assert counters("kernel.tiled").units_pct["tensor cores"] == 0


@pytest.mark.parametrize("rung", ["tiled", "mma", "bounded"])
def test_a_rung_is_profiled_as_what_it_is(rung):
    stated = next(one for one in ladder.load() if one.name == rung)
    if stated.architecture(torch.cuda.get_device_capability()) is None:
        pytest.skip("not for this architecture")
    found = counters(stated.implementation)
    (launch,) = found.launches.to_dict("records")
    assert stated.function in launch["function"]
    served = stated.tiles_for(SHAPE.head_dim, SHAPE.seq_len, SHAPE.causal)
    assert launch["launch__block_size"] == served[0].threads


def test_a_case_that_can_not_run_is_refused_in_one_line():
    with pytest.raises(instruments_counters.Refused, match=r"^[^\n]+$"):
        instruments_counters.counters(str(NCU), {"sdpa.flash": [Shape(1, 1, 64, 64, dtype="float32")]})
