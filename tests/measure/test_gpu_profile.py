"""Counters of an NVIDIA GPU, by the installed Nsight Compute: `make test OF=gpu`."""

import os
import shutil
from functools import cache

import pandas as pd
import pytest
import torch

from attnlab import profile
from attnlab.measuring.instruments import counters
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
def every() -> pd.DataFrame:
    capability = torch.cuda.get_device_capability()
    there = [name for name in COUNTED if name[:4] == "sdpa" or ladder.rung(name).architecture(capability)]
    return counters.counters(str(NCU), [(name, SHAPE) for name in there])


def counted(name: str) -> pd.DataFrame:
    return every()[every()["implementation"] == name].reset_index(drop=True)


def shares(name: str) -> pd.Series:
    """The row that `profile.counters` makes of one implementation's counters."""
    (row,) = profile._counters(counted(name)).to_dict("records")
    return pd.Series(row)


def test_every_counter_is_there():
    rows = counted("sdpa.flash")
    assert list(rows.columns) == TABLES["profile"].names
    lacking = set(metrics.COUNTERS) - set(rows["metric"])
    assert {name for name in lacking if "gmma" not in name} == set()
    assert rows["launch"].nunique() == 1
    assert (rows["value"] >= 0).all()


@pytest.mark.parametrize("name", ["sdpa.flash", "kernel.mma"])
def test_the_counters_agree_with_the_arithmetic(name):
    found = shares(name)
    device = torch.cuda.get_device_properties(0)
    of_schedulers = [share for share in found.index if share.startswith("wait_")] + ["issued_pct", "idle_pct"]
    assert found[of_schedulers].sum() == pytest.approx(100, abs=1)
    exponentials = found["exponentials_pct"] / 100 * found["cycles"]
    assert exponentials * 16 * device.multi_processor_count > 0.95 * SHAPE.exponentials
    assert found[list(profile.UNITS)].between(0, 101).all()


def test_only_what_uses_tensor_cores_has_them_busy():
    assert shares("sdpa.flash")["tensor_cores_pct"] > 10
    # The compiler loads constants with an instruction of the tensor cores' pipe, which doesn't count as their work.
    assert shares("kernel.tiled")["tensor_cores_pct"] == 0


@pytest.mark.parametrize("rung", ["tiled", "mma", "bounded"])
def test_a_rung_is_profiled_as_what_it_is(rung):
    stated = next(one for one in ladder.load() if one.name == rung)
    if stated.architecture(torch.cuda.get_device_capability()) is None:
        pytest.skip("not for this architecture")
    rows = counted(stated.implementation)
    (function,) = rows["function"].unique()
    assert stated.function in function
    served = stated.tiles_for(SHAPE.head_dim, SHAPE.seq_len, SHAPE.causal)
    assert rows.set_index("metric")["value"]["launch__block_size"] == served[0].threads


def test_a_case_that_can_not_run_is_refused_in_one_line():
    with pytest.raises(counters.Refused, match=r"^[^\n]+$"):
        counters.counters(str(NCU), [("sdpa.flash", Shape(1, 1, 64, 64, dtype="float32"))])
