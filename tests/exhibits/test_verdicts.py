"""What is shown of a run's verdicts, beside counts and errors worked by hand."""

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import synthetic
from matplotlib.text import Text
from reading import NOT_A_NUMBER, exhibit, html, plain
from statsmodels.stats.multitest import multipletests
from synthetic import ONE_BATCH, ROUNDS, TARGET, climbed, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Figure, Group, Missing, Prose, Table
from attnlab.exhibits.verdicts import accuracy, every, target
from attnlab.infer import stats
from attnlab.infer.results import Results

COUNTED = {"counted": Prose, "by_timing": Table, "by_candidate": Table, "every": Table, "chart": Figure, "maps": Group}
"""What shows comparisons."""
SHOWN = COUNTED | {"statement": Prose, "accuracy": Figure}
SYMBOLS = {"faster": "▲", "slower": "▼", "equivalent": "=", "inconclusive": "?"}


@cache
def controlled() -> Results:
    return synthetic.infer(synthetic.Recipe(control_pace=1.0))


@cache
def biased() -> Results:
    """The baseline takes 3 % longer the second time: that much, this machine makes of nothing."""
    return synthetic.infer(synthetic.Recipe(control_pace=1.03))


def compared(of: Results) -> dict[tuple, stats.Verdict]:
    """Every verdict, each asked for alone."""
    there = {}
    for timing in of.timings:
        for shape in of.study.shapes:
            names = [name for name in of.at(shape, timing).index if name != "sdpa.auto"]
            there |= {(shape, timing, name): of.compare(name, shape, timing) for name in names}
    return there


@pytest.mark.parametrize("run", [inferred, climbed, lonely, controlled])
@pytest.mark.parametrize("name", SHOWN)
def test_nothing_shown_is_not_a_number(run, name):
    shown = exhibit(run, f"verdicts.{name}")
    lacking = {lonely: set(SHOWN) - {"accuracy"}, climbed: {"maps"}}  # one has no candidates, one no second timing
    assert isinstance(shown, Prose if name in lacking.get(run, ()) else SHOWN[name])
    told = html(shown).get_text()
    assert not NOT_A_NUMBER.search(told)
    assert not re.search(r"\b1 (comparisons|samples)\b", told)


@pytest.mark.parametrize("name", COUNTED)
def test_a_run_with_nothing_but_a_baseline_says_so(name):
    told = "*Nothing was timed beside `sdpa.auto`, so there is no comparison.*"
    assert Show(lonely())(f"verdicts.{name}").content == Missing(told)


# ------------------------------------------------------------------------------------------------------------- counts


def test_counts_are_of_every_comparison():
    all_of_them = compared(controlled())
    decisions = Counter(verdict.decision for verdict in all_of_them.values())
    total = exhibit(controlled, "verdicts.by_timing").frame.set_index("timing").loc["all"]
    assert total["comparisons"] == len(all_of_them) == len(exhibit(controlled, "verdicts.every").frame)
    for decision in SYMBOLS:
        assert total[decision] == decisions[decision]
    assert total["claimable"] == sum(verdict.claimable for verdict in all_of_them.values())
    by_candidate = exhibit(controlled, "verdicts.by_candidate").frame.set_index("candidate")
    assert by_candidate["comparisons"].sum() == len(all_of_them)
    # 8 shapes under 2 timings; one shape too short for cuDNN
    assert by_candidate["comparisons"].to_dict() == {
        "sdpa.flash": 16, "sdpa.cudnn": 14, "sdpa.efficient": 16, "sdpa.math": 10
    }  # fmt: skip
    assert list(by_candidate.loc["sdpa.math", ["faster", "slower"]]) == [0, 10]
    assert f"{len(all_of_them)} comparisons with `sdpa.auto`" in plain(every.counted(controlled()))


def test_holm_over_all_at_once_is_statsmodels():
    of = controlled()
    alone, differing = [], []
    for (shape, timing, name), verdict in compared(of).items():
        sides = of.samples("sdpa.auto", shape, timing), of.samples(name, shape, timing)
        alone.append(stats.difference_pvalue(*sides, paired=True))
        differing.append(verdict.decision in ("faster", "slower"))
    kept = (multipletests(alone, method="holm")[1] < 0.05) & np.array(differing)
    told = plain(every.counted(of))
    assert f"{kept.sum()} of the {sum(differing)} that are faster or slower keep p < 0.05" in told
    assert "The candidates at one shape under one timing are a family, 16 in all" in told


def test_every_comparison_has_a_row():
    frame = exhibit(controlled, "verdicts.every").frame
    row = frame[(frame["B, H, S, D"] == "2, 4, 128, 64") & (frame["candidate"] == "sdpa.flash")].iloc[0]
    assert row[["mask", "timing", "verdict", "regime"]].tolist() == [
        "full",
        "device warm",
        "faster, claimable",
        "burst",
    ]
    assert float(row["speedup [95 %]"].split()[0]) == pytest.approx(1.25, abs=1e-3)
    assert set(frame["mask"]) == {"full", "causal"}


# ---------------------------------------------------------------------------------------------------------- statement


def test_a_claim_is_stated():
    told = plain(target.statement(controlled(), TARGET)).split("\n\n")
    where = "at (2, 4, 128, 64) float16 on this NVIDIA H200, device clock, warm cache"
    assert told[0] == f"**`sdpa.flash` is 1.25 times as fast as `sdpa.auto` {where}**"
    assert told[1].startswith("> `sdpa.auto` achieved 40.000 [")
    effort = f"{2 * ROUNDS} samples each in 2 replicates, each a fresh process, in interleaved rounds"
    assert f"{effort}; device clock, warm" in told[1]
    assert "a speedup of 1.2500 [" in told[1]
    assert "The effect is large (Cliff's delta +1.00" in told[1]
    assert "the difference is significant (p <0.0001) after Holm's adjustment over 4 comparisons" in told[1]
    assert re.search(
        r"\*\*`sdpa.flash` is faster than `sdpa.auto`, and claimable\. Under other timings: faster by", told[1]
    )
    assert "- regime: burst\n- verdict: faster, claimable" in told[2]
    assert "this one is 25 %" in told[3]


NOTHING_SHOWN = "Neither a difference nor equivalence was shown."


def only(*names: str, **recipe) -> Results:
    """Few candidates at `TARGET` and `ONE_BATCH`, under one timing."""
    study = {
        "implementations": ["sdpa.auto", *names],
        "timings": synthetic.STUDY["timings"][:1],
        "sweeps": {"batch": synthetic.STUDY["sweeps"]["batch"]},
    }
    return synthetic.infer(synthetic.Recipe(study=study, fates={}, **recipe))


@pytest.mark.parametrize(
    ("name", "shape", "pace", "relation", "conclusion"),
    [
        (
            "sdpa.cudnn",
            TARGET,
            None,
            "equivalent within ±2 % to",
            "`sdpa.cudnn` is equivalent within ±2 % to `sdpa.auto`.",
        ),
        ("sdpa.efficient", ONE_BATCH, None, "not distinguished from", NOTHING_SHOWN),
        ("sdpa.efficient", TARGET, None, "slower than", "`sdpa.efficient` is slower than `sdpa.auto`."),
        ("sdpa.cudnn", TARGET, 1.03, "not distinguished from", NOTHING_SHOWN),
    ],
)
def test_a_negative_result_is_stated_as_plainly(name, shape, pace, relation, conclusion):
    told = plain(target.statement(only(name, control_pace=pace), shape))
    assert told.startswith("**No candidate was found to be faster than `sdpa.auto` at ")
    assert f"the nearest, `{name}`, is {relation} it**" in told
    assert f"**{conclusion}**" in told
    assert "optimal" not in told
    if pace is None:
        assert "did not measure its baseline against itself" in told
    else:
        detected = r"an effect of 3\.[0-9] % or more would have been detected with a power of 80 %"
        assert re.search(f"{detected}; a smaller one can't be excluded", told)


def test_faster_by_too_little_says_what_a_claim_lacks(monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "sdpa.flash", 0.95)
    told = plain(target.statement(only("sdpa.flash"), TARGET))
    assert "is 1.05 times as fast as `sdpa.auto`" in told
    assert "on this NVIDIA H200, but not claimable, device clock, warm cache**" in told
    assert "faster than `sdpa.auto`, but not claimable: the speedup is below 1.10." in told


def test_the_best_is_not_the_one_with_the_largest_noise(monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "sdpa.flash", 0.8)
    of = only("sdpa.flash", "sdpa.efficient")
    assert of.compare("sdpa.efficient", ONE_BATCH).decision == "inconclusive"
    assert target._best(of, ONE_BATCH) == "sdpa.flash"


# ---------------------------------------------------------------------------------------------------------------- map


def cells(figure: Figure) -> dict[str, list[str]]:
    """The texts in the cells of each row, by its label and place."""
    (axes,) = figure.figure.axes
    labels = dict(zip(axes.get_yticks(), [label.get_text() for label in axes.get_yticklabels()], strict=True))
    texts = [text for text in axes.texts if text.get_position()[0] >= 0]
    return {
        f"{row} {label}": [
            t.get_text() for t in sorted(texts, key=lambda t: t.get_position()[0]) if t.get_position()[1] == row
        ]
        for row, label in labels.items()
    }


def test_the_map_has_a_cell_for_each_candidate_and_shape():
    figure = exhibit(controlled, "verdicts.chart")
    drawn = cells(figure)
    assert [label.split(" ", 1)[1] for label in drawn] == [
        "S=32", "S=64", "S=128", "S=256", "B=1", "H=8", "S=64", "S=128"
    ]  # fmt: skip
    assert drawn["3 S=128"] == ["★ 1.250", "= 0.995", "▼ 0.667", "▼ 0.250"]
    assert drawn["4 S=256"][3] == "×"  # out of memory
    assert drawn["6 B=1"][2] == "? 0.971"
    (axes,) = figure.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == controlled().study.implementations[1:]
    assert [text.get_text() for text in axes.texts if text.get_position()[0] < 0] == [
        "seq_len", "batch", "heads", "causal seq_len"
    ]  # fmt: skip
    (frame,) = (patch for patch in axes.patches if not patch.get_fill())
    assert frame.get_y() == 2.5


def test_symbols_follow_verdicts_and_the_legend_names_them():
    figure = exhibit(controlled, "verdicts.chart")
    drawn = [text.split()[0] for row in cells(figure).values() for text in row]
    headline = [v for (_, timing, _), v in compared(controlled()).items() if timing == controlled().headline]
    expected = Counter("★" if v.claimable else SYMBOLS[v.decision] for v in headline)
    assert Counter(symbol for symbol in drawn if symbol != "×") == expected
    (legend,) = figure.figure.legends
    assert {text.get_text().split()[0] for text in legend.get_texts()} == set(drawn)
    assert figure.svg == every.chart(controlled()).svg


def test_there_is_a_map_for_every_timing():
    assert "at every shape, device clock, warm cache." in exhibit(controlled, "verdicts.chart").caption
    maps = exhibit(controlled, "verdicts.maps")
    assert isinstance(maps, Group)
    assert list(maps.parts) == ["eager_warm"]
    assert "at every shape, eager clock, warm cache." in maps.parts["eager_warm"].caption


def test_shapes_that_are_no_burst_say_so():
    run = controlled().run
    held = run.samples["throttled"] | (run.samples["seq_len"] == 256)
    of = Results(replace(run, samples=run.samples.assign(throttled=held)), controlled().table)
    assert [label for label in cells(every.chart(of)) if "sustained" in label] == ["4 S=256, sustained"]


# -------------------------------------------------------------------------------------------------------------- plane


def test_the_plane_is_latency_against_mean_error():
    figure = exhibit(inferred, "verdicts.accuracy")
    (axes,) = figure.figure.axes
    drawn = {line.get_marker(): line for line in axes.get_lines() if line.get_marker() not in ("None", None, "")}
    assert len(drawn) == 5
    latencies = sorted(float(line.get_xdata()[0]) for line in drawn.values())
    assert latencies == pytest.approx([32, 40, 40.2, 60, 160])
    assert {float(line.get_ydata()[0]) for line in drawn.values()} == {1e-4}
    (limit,) = (line for line in axes.get_lines() if line.get_linestyle() == "--")
    assert list(limit.get_ydata()) == [2e-4, 2e-4]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("run", [inferred, climbed])
def test_no_name_in_the_plane_covers_another_or_leaves_it(run):
    figure = exhibit(run, "verdicts.accuracy")
    (axes,) = figure.figure.axes
    figure.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axes.texts]  # without the lines that lead to points
    names = {text.get_text() for text in axes.texts[1:]}
    assert names == set(run().at(TARGET).index)
    inside = axes.get_window_extent().padded(0.01)
    for number, box in enumerate(boxes):
        assert box.count_overlaps(boxes[:number]) == 0
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert inside.y0 <= box.y0 < box.y1 <= inside.y1


def test_the_plane_is_drawn_the_same_each_time():
    assert accuracy.plane(climbed(), TARGET).svg == exhibit(climbed, "verdicts.accuracy").svg


def test_who_is_not_in_the_plane_has_a_reason():
    assert (
        "`kernel.pipelined` has no latency here: failed, before timing" in exhibit(climbed, "verdicts.accuracy").caption
    )
    gone = replace(inferred().run, checks=inferred().run.checks.head(0))
    shown = accuracy.plane(Results(gone, inferred().table), TARGET)
    assert "Nothing has both a latency and an error above zero" in plain(shown)
