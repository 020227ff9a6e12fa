"""The panel on a GPU: CUPTI agrees with our clock, cold and warm caches are cold and warm, and a load is a load."""

import numpy as np
import pytest
import torch

from attnlab.measuring.clocks import external_tools, in_process
from attnlab.measuring.clocks.canary import Canary
from attnlab.measuring.session import panel
from attnlab.runs import methods
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.usefixtures("locked")]

GPU = torch.device("cuda")
SHAPE = Shape(8, 8, 256, 64)


def median_us(rows, method):
    return float(np.median([row["latency_us"] for row in rows if row["method"] == method]))


def test_one_kernel_takes_as_long_by_our_clock_as_by_cupti():
    timed, _ = panel._case_rows("sdpa.flash", SHAPE, GPU, "no canary")
    assert {row["why"] for row in timed if row["method"] in ("device", "cupti", "cupti.graph")} == {""}
    ours = median_us(timed, "device")
    for method in ("cupti", "cupti.graph"):
        assert abs(median_us(timed, method) - ours) < max(0.5, 0.02 * ours)
    assert median_us(timed, "cupti.graph") <= median_us(timed, "cupti.span")
    assert median_us(timed, "eager") > ours


@pytest.mark.parametrize("clock", ["eager", "device"])
def test_cold_is_cold_and_warm_is_warm(clock):
    pytest.importorskip("cupy")
    case = in_process.graphed("sdpa.flash", SHAPE, GPU)
    canary = Canary(GPU)
    for cache, least, most in (("warm", 85, 100), ("cold", 0, 5)):
        for seen in canary.look(case, Timing(clock=clock, cache=cache), list(case.windows[0])):
            assert least <= seen.hits_pct <= most


def test_a_load_goes_on_without_pause_until_it_has_settled(monkeypatch):
    monkeypatch.setattr(panel, "LOAD_S", 0.3)
    monkeypatch.setattr(panel, "REST_S", 0.0)
    rows = panel._load_rows("sdpa.flash", SHAPE, GPU)
    assert rows[-1]["started_s"] >= 0.3
    assert len(rows) > 10
    assert all(row["latency_us"] > 0 and row["why"] == "" for row in rows)


@pytest.mark.parametrize("tool", methods.TOOLS)
def test_a_tool_of_its_own_process_times_a_case_or_says_why_not(tool):
    timed, _ = external_tools.rows(tool, [("sdpa.flash", SHAPE)])
    assert {row["method"] for row in timed} == set(methods.TOOLS[tool].values())
    for row in timed:
        assert row["why"] or row["latency_us"] > 1
