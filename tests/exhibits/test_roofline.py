"""What 03_roofline shows of the synthetic runs, worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import synthetic
from synthetic import TARGET, inferred, lonely

from attnlab.exhibits.quantities import Marked
from attnlab.exhibits.roofline import floor
from attnlab.exhibits.words import say
from attnlab.infer.compare.published import Nearest
from attnlab.infer.results import Results
from attnlab.literature.throughputs import published


def test_the_floors_along_a_sweep():
    frame = floor.floors(inferred(), "seq_len", "sdpa.auto").frame
    assert list(frame["intensity"]) == [16, 32, 64, 128]
    assert list(frame["matrix (µs)"]) == pytest.approx([1.048576, 4.194304, 16.777216, 67.108864])
    # 4·2·4·S·64·2 bytes over 400 GB/s, or, of the longer two, what 200 kB can't hold over 100 GB/s
    assert list(frame["bytes (µs)"]) == pytest.approx([0.32768, 0.65536, (262144 * 2 - 2e5) / 1e5, 8.48576])
    assert list(frame["exp (µs)"]) == pytest.approx([0.08192, 0.32768, 1.31072, 5.24288])
    assert list(frame["limit"]) == ["matrix product"] * 4
    assert list(frame["speed_of_light_pct"]) == pytest.approx([41.94304] * 4)
    without = floor.floors(lonely(), "seq_len", "sdpa.auto").frame
    assert without["exp (µs)"].isna().all()
    assert np.isnan(without["bytes (µs)"][0])


def test_a_rate_above_a_ceiling_marks_the_speed_of_light():
    first, *others = floor.floors(inferred(), "seq_len", "sdpa.flash").frame["speed_of_light_pct"]
    assert isinstance(first, Marked)
    assert first.mark.startswith("† above the copy ceiling")
    assert not [cell for cell in others if isinstance(cell, Marked)]


def test_the_lengths_at_which_the_card_throttled_are_named():
    held = inferred().table.assign(throttled_pct=np.where(inferred().table["seq_len"] == 256, 51.0, 0.0))
    note = floor.floors(Results(inferred().run, held), "seq_len", "sdpa.auto").note
    assert "At B=2 H=4 S=256 D=64 float16 the card throttled during more than half of the samples" in note
    assert "clock" not in floor.floors(lonely(), "seq_len", "sdpa.auto").note


def test_the_roofline_says_what_limits_which_timing():
    slow = synthetic.CEILINGS | {"l2": (50.0, "GB/s"), "wgmma.float16": (4.0, "TFLOP/s")}
    timings = [{"clock": "device", "cache": cache} for cache in ("warm", "cold")]
    short = synthetic.AXES | {"seq_len": 32}
    at = {"target": short, "sweeps": {"seq_len": [short]}}
    for first, limit, bytes_us in ((0, "L2", 2.62144), (1, "memory", 1.31072)):
        study = at | {"timings": [timings[first], timings[1 - first]]}
        of = synthetic.infer(synthetic.Recipe(study=study, ceilings=slow, fates={}))
        table = floor.floors(of, "seq_len", "sdpa.auto")
        assert table.frame[["limit", "bytes (µs)", "matrix (µs)"]].iloc[0].tolist() == [
            limit, pytest.approx(bytes_us), pytest.approx(0.524288)
        ]  # fmt: skip
        assert "over the 4.00 TFLOP/s of wgmma alone; the library's product reached 2.00." in table.note
        assert f"S = 32 by {limit}" in floor.regimes(of).markdown


def test_without_ceilings_there_is_neither_ridge_nor_share():
    none = {name: (None, unit) for name, (_, unit) in synthetic.CEILINGS.items()}
    some = none | {"copy": (100.0, "GB/s")}
    runs = [synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, ceilings=rates)) for rates in (none, some)]
    assert "No ceiling was measured" in floor.regimes(runs[0]).markdown
    assert "No ceiling was measured" in floor.speed_of_light(runs[0]).markdown
    assert "ridge" not in floor.regimes(runs[1]).markdown


FOUND = {"numbers": published(), "read": {"table": 1, "text": 2, "label on figure": 3, "plot": 0}} | {
    "best": published()[:2], "above": [], "here": None
}  # fmt: skip
SHARES = ("datasheet_pct", "measured_pct")
HERE = Nearest("sdpa.flash", "here", TARGET, 700.0, 75.0, 98.0)
LIMITS = {"numbers": 258, "whole": 200, "grouped": 9, "untyped": 3, "at_once": 256}


BRANCHES = {
    "literature": (
        FOUND,
        *(FOUND | {"here": here} for here in (HERE, *(replace(HERE, **{name: math.nan}) for name in SHARES))),
        FOUND | {"above": published()[:1]},
    ),
    "higher": ({"higher": 1, "of": 2},),
    "limits": (LIMITS,),
}
"""By sentence: facts of which it says different things."""


@pytest.mark.parametrize("id", BRANCHES)
def test_every_branch_is_said_in_words_of_its_own(id):
    told = [say(f"roofline.{id}", **facts) for facts in BRANCHES[id]]
    assert len(set(told)) == len(told)
    assert not any("nan" in text or "  " in text for text in told)
