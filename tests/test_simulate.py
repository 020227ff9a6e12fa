"""The published calibration: its generators, a part of it simulated again, and its targets."""

import numpy as np
import pandas as pd
import pytest

from attnlab import __main__, simulate
from attnlab.simulate import CELLS, CLAIMED, COLUMNS, COVERED, EFFECTS, EQUIVALENT, KINDS, RATIO_COVERED, WRONG

PUBLISHED = pd.read_csv(simulate.PATH)
SHARES = PUBLISHED.set_index(["kind", "replicates", "processes", "measure"])
KNOWABLE = [cell for cell in CELLS if cell[1:] != (1, "differ")]
"""The targets exclude 1 process with differing processes: it has no information on the others. The table shows it."""


def share(cell: simulate.Cell, measure: str) -> pd.Series:
    return SHARES.loc[(cell.kind.name, cell.replicates, cell.processes, measure)]


def named(cell: simulate.Cell) -> str:
    return f"{cell.kind.name}-{cell.replicates}-{cell.processes}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_samples_follow_the_distribution_that_is_stated(kind):
    rng = np.random.default_rng(0)
    samples = kind.draw(rng, (2, 2000, 100))
    assert samples.shape == (2, 2000, 100)
    points = np.quantile(samples, [0.05, 0.3, 0.5, 0.7, 0.95])
    np.testing.assert_allclose(kind.cdf(points), [0.05, 0.3, 0.5, 0.7, 0.95], atol=0.006)


@pytest.mark.parametrize("cell", CELLS[1 :: len(CELLS) // len(KINDS)], ids=named)  # every kind, differing processes
def test_the_true_median_is_the_median_of_many_samples(cell):
    rng = np.random.default_rng(1)
    processes = np.exp(np.hypot(*cell.spread) * rng.standard_normal((2, 10_000, 1)))
    many = cell.kind.draw(rng, (2, 10_000, 100)) * processes
    assert simulate.true_median(cell) == pytest.approx(np.median(many), rel=1e-3)


def test_neighbours_of_the_autocorrelated_kind_resemble_each_other():
    samples = np.log(simulate.KINDS[1].draw(np.random.default_rng(2), (2, 2000, 100)))
    assert np.corrcoef(samples[..., 1:].ravel(), samples[..., :-1].ravel())[0, 1] == pytest.approx(0.6, abs=0.01)
    assert samples[..., 0].std() == pytest.approx(samples[..., -1].std(), rel=0.05)
    assert abs(np.corrcoef(samples[0].ravel(), samples[1].ravel())[0, 1]) < 0.02  # the 2 sides are independent


def test_a_clock_with_a_tick_shows_multiples_of_it_and_is_right_on_average():
    cell = next(cell for cell in CELLS if cell.kind.tick_us and cell.replicates == 5)
    simulated = simulate.draw(cell, 0, (0.0, 0.05))
    for readings in (simulated.baseline, *simulated.candidates):
        assert readings.shape == (5, simulate.ROUNDS[5])
        np.testing.assert_allclose(readings % simulate.TICK_US, 0, atol=1e-9)
    latencies = np.full(100_000, 50.2)
    readings = simulate._read(latencies, np.random.default_rng(3).random(latencies.size), 0.5)
    assert set(np.unique(readings)) == {50.0, 50.5}
    assert readings.mean() == pytest.approx(50.2, abs=0.005)


def test_effects_share_their_noise():
    simulated = simulate.draw(CELLS[0], 3, (0.0, 0.05))
    np.testing.assert_allclose(simulated.candidates[0] / simulated.candidates[1], 1.05)
    again = simulate.draw(CELLS[0], 3, (0.0,))
    np.testing.assert_array_equal(again.baseline, simulated.baseline)
    assert not np.allclose(simulate.draw(CELLS[0], 4, ()).baseline, simulated.baseline)
    assert not np.allclose(simulate.draw(CELLS[1], 3, ()).baseline, simulated.baseline)


def test_the_table_is_whole():
    assert list(PUBLISHED.columns) == COLUMNS
    assert len(CELLS) == 6 * 3 * 2
    measures = [COVERED, RATIO_COVERED, WRONG, CLAIMED, EQUIVALENT, *map(simulate.power, EFFECTS)]
    expected = [(cell.kind.name, cell.replicates, cell.processes, measure) for cell in CELLS for measure in measures]
    assert list(SHARES.index) == expected
    counts = PUBLISHED.groupby("measure")["simulations"].unique().map(list).to_dict()
    assert counts == {measure: [simulate.SIMULATIONS] for measure in measures[:5]} | {
        measure: [simulate.POWER_SIMULATIONS] for measure in measures[5:]
    }


@pytest.mark.parametrize("cell", CELLS, ids=named)
def test_a_part_of_the_table_run_again_agrees_with_it(cell):
    """The first 40 simulations of each cell, within 4 standard errors and 1/2 of 1/40."""
    ours = simulate.tidy(cell, simulate._part(CELLS.index(cell), 0, 40, ())).set_index("measure")
    for measure in ours.index:
        there = share(cell, measure)
        spread = np.sqrt(there["value"] * (1 - there["value"]) / 40)
        assert abs(ours.loc[measure, "value"] - there["value"]) <= 4 * spread + 1 / 80, measure


@pytest.mark.parametrize("cell", KNOWABLE, ids=named)
def test_intervals_cover_as_often_as_they_say_and_verdicts_err_in_one_of_twenty_at_most(cell):
    """94 to 97 % on independent samples, at least 92 % on all others, each within 2 Monte-Carlo standard errors."""
    least, most = (0.94, 0.97) if cell.kind.name == "independent" else (0.92, 1)
    for there in (share(cell, measure) for measure in (COVERED, RATIO_COVERED)):
        slack = 2 * there["standard_error"]
        assert least - slack <= there["value"] <= most + slack
    assert share(cell, WRONG)["value"] <= 0.05
    assert share(cell, CLAIMED)["value"] <= 0.001
    # 3 replicates, or GPUs, have 2 degrees of freedom: their power is lower for dependent samples.
    assert share(cell, simulate.power(0.10))["value"] > (0.9 if cell.replicates == 1 else 2 / 3)


def test_what_one_process_cannot_know_is_shown_and_larger_effects_are_found_more_often():
    alone = PUBLISHED[(PUBLISHED["replicates"] == 1) & (PUBLISHED["processes"] == "differ")]
    assert (alone.loc[alone["measure"] == COVERED, "value"] < 0.92).all()
    for cell in CELLS:
        found = [share(cell, simulate.power(effect))["value"] for effect in EFFECTS]
        assert found == sorted(found)


def test_the_command_writes_the_table(monkeypatch, tmp_path, capsys):
    small = simulate.tidy(CELLS[0], pd.DataFrame({COVERED: [True, False, True, True], WRONG: [False] * 4}))
    monkeypatch.setattr(simulate, "run", lambda: small)
    monkeypatch.setattr(simulate, "PATH", tmp_path / "calibration.csv")
    assert __main__.main(["calibrate"]) == 0
    assert "calibration.csv" in capsys.readouterr().out
    assert (tmp_path / "calibration.csv").read_text() == (
        "kind,replicates,processes,measure,value,standard_error,simulations\n"
        "independent,1,alike,median covered,0.7500,0.2165,4\n"
        "independent,1,alike,faster or slower,0.0000,0.0000,4\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.csv"]


def test_simulations_do_not_depend_on_how_they_are_dealt_out(monkeypatch):
    monkeypatch.setattr(simulate, "CELLS", CELLS[:2])
    in_parts = simulate.run(5, 3, step=2)
    assert list(in_parts["simulations"].unique()) == [5, 4]
    whole = [simulate.tidy(cell, simulate._part(index, 0, 5, ())) for index, cell in enumerate(CELLS[:2])]
    expected = pd.concat(whole, ignore_index=True)
    shared = in_parts[in_parts["measure"].isin(expected["measure"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(shared, expected)
