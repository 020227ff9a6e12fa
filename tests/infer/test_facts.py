"""Facts that pages say: how near errors came to what the gate allows, and what odd lengths cost."""

import numpy as np
import pandas as pd
import pytest
import synthetic
from synthetic import SHORT, TARGET, inferred, lonely

from attnlab.infer.cases import passed_samples
from attnlab.infer.facts import gate, lengths
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.runs.schema import is_of
from attnlab.study.shapes import Shape


def with_samples(**columns) -> Results:
    return synthetic.changed(inferred(), samples=inferred().run.samples.assign(**columns))


def test_timed_outputs_are_counted_and_the_worst_are_named():
    samples = inferred().run.samples
    worst = (samples["implementation"] == "sdpa.math") & is_of(samples, SHORT) & (samples["replicate"] == 1)
    found = gate.timed_outputs(with_samples(strain=np.where(worst, 0.875, 0.5)))
    passed = passed_samples(inferred().run)
    assert found == (len(passed), passed["launches"].sum(), 87.5, [(["sdpa.math"], SHORT)])
    alike = is_of(samples, SHORT) & samples["implementation"].isin(["sdpa.flash", "sdpa.math"])
    found = gate.timed_outputs(with_samples(strain=np.where(alike, 0.875, 0.5)))
    assert found.worst == [(["sdpa.flash", "sdpa.math"], SHORT)]
    assert gate.timed_outputs(with_samples(strain=None)) is None


def test_what_differs_between_two_runs_on_the_same_inputs_is_found():
    checks = inferred().run.checks
    flash = (checks["implementation"] == "sdpa.flash") & is_of(checks, TARGET)
    found = gate.differing(checks.assign(differing=np.where(flash, 3, 0)))
    assert found == [("sdpa.flash", 3, 2 * 4 * 128 * 64, 1)]
    assert gate.differing(checks.assign(differing=None)) == []
    trained = Shape(2, 4, 128, 64, causal=True, direction="training", kv_heads=2)
    assert gate.outputs_of(trained) == 2 * 65536 + 2 * 32768  # O and dQ, dK and dV


def test_errors_of_zero_and_errors_without_end():
    checks = pd.DataFrame({"max_error": [0.0, np.inf, 1.0], "framework_max_error": [0.0, 1.0, 0.0]})
    checks = checks.assign(
        mean_error=0.0, framework_mean_error=0.0, allowed_max_error=np.nan, allowed_mean_error=np.nan
    )
    assert [gate.share_pct(checks.iloc[rows]) for rows in ([0], [0, 1], [2])] == [0, np.inf, np.inf]


def odd() -> Results:
    """A run of a length that no tile divides, where a score of the baseline takes a quarter longer."""
    study = {
        "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.math"],
        "timings": synthetic.STUDY["timings"][:1],
        "sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [100, 128, 300]}]},
    }
    short = Shape(2, 4, 100, 64)
    more = {"sdpa.auto": 1.25, "sdpa.math": 1.1}
    longer = {(name, short): factor * synthetic.latency_us(name, short) for name, factor in more.items()}
    return synthetic.infer(synthetic.Recipe(study=study, fates={}, latencies_us=longer))


def test_a_score_is_compared_between_a_length_and_the_next_multiple_of_a_tile():
    ((pair, more),) = lengths.odd_lengths(odd()).items()  # the run has no S=320
    assert (pair.odd.seq_len, pair.even.seq_len) == (100, 128)
    assert {name: change.estimate for name, change in more.items()} == {
        "sdpa.auto": pytest.approx(25, abs=0.1),
        "sdpa.flash": pytest.approx(0, abs=0.1),
        "sdpa.math": pytest.approx(10, abs=0.1),
    }
    assert lengths.costliest(odd()) == ("sdpa.auto", pair, more["sdpa.auto"])
    for find in (lengths.odd_lengths, lengths.costliest):
        with pytest.raises(NotMeasured, match="no length above 64 that is no multiple of it"):
            find(inferred())


def test_who_is_most_often_fastest():
    assert inferred().most_often_fastest(["seq_len", "causal seq_len"]) == ("sdpa.flash", 6, 6)
    with pytest.raises(NotMeasured, match=r"^Nothing has a latency in the sweeps “batch” and “heads”$"):
        lonely().most_often_fastest(["batch", "heads"])
