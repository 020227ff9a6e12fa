"""Sentences say what the tables hold."""

import re
from dataclasses import replace

import pytest
import synthetic
from reading import plain
from synthetic import AT_TARGET, CPU, ONE_BATCH, TARGET, Recipe, inferred, lonely

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.environment import clocks
from attnlab.exhibits.verdicts import abstract, target
from attnlab.infer.lookup import median_of

TOLD = [
    "verdicts.abstract",
    "verdicts.publishable",
]


@pytest.mark.parametrize("run", [inferred, lonely])
@pytest.mark.parametrize("id", TOLD)
def test_no_sentence_holds_what_is_not_a_number_or_is_misspelt_by_counting(run, id):
    told = plain(Show(run())(id).content)
    assert not re.search(r"\b(nan|NaN|None|inf|<NA>)\b|—", told)
    assert not re.search(r"\b1 (?:\w+s|fresh processes)\b|processs\b", told)


@pytest.mark.parametrize("run", [inferred, lonely])
def test_a_line_says_which_run_is_shown(run):
    bundle, _ = Show(run())._repr_mimebundle_()
    day = run().run.manifest["created"][:10]
    device = run().run.manifest["device"]["name"]
    assert bundle["text/plain"] == f"run synthetic · {device} · {day} · attnlab 0.1.0"
    assert bundle["text/html"] == f'<p class="meta">{bundle["text/plain"]}</p>'


def test_the_abstract_holds_the_numbers_of_the_tables():
    told = plain(abstract.abstract(inferred()))
    row = inferred().at(TARGET).loc["sdpa.auto"]
    assert f"`sdpa.auto` takes {formats.interval(median_of(row))} µs (device clock, warm cache)" in told
    assert f"{formats.number(row['throughput_tflops'])} TFLOP/s" in told
    assert f"{formats.percent(row['speed_of_light_pct'])} of what the ceilings measured in the same run allow" in told
    cells = target.timings(inferred(), TARGET).frame.set_index("implementation").loc["sdpa.flash"]
    by_device, by_eager = (cell.split("\nfaster")[0].replace("\n", " ") for cell in cells)
    assert (
        "`sdpa.flash` has the smallest median there. Compared with `sdpa.auto`, it is faster by "
        f"`device` warm ({by_device}, claimable) and `eager` warm ({by_eager}, claimable)."
    ) in told
    assert "5 implementations" in told
    assert "at 8 shapes, with 40 samples" in told
    assert "in 2 replicates, each a fresh process" in told
    assert "one NVIDIA H200" in told


def test_the_abstract_of_a_cpu():
    told = plain(abstract.abstract(lonely()))
    assert "the CPU (Imaginary X1, 2 threads)" in told
    assert "(eager clock, warm cache)" in told
    assert "faster" not in told


@pytest.mark.parametrize(
    ("stated", "fates", "why"),
    [
        ({"timings": CPU["timings"][:1]}, {}, "it lacks the clocks of the study (device warm)."),
        ({}, {("sdpa.auto", TARGET): ("skipped", "no backend.")}, "`sdpa.auto` skipped, no backend."),
    ],
)
def test_a_run_without_samples_says_why_and_its_links_lead_somewhere(stated, fates, why):
    alone = {"implementations": ["sdpa.auto"], "sweeps": AT_TARGET["sweeps"]}
    run = synthetic.infer(Recipe("Imaginary X1", CPU | alone | stated, fates=fates))
    assert len(run.run.samples) == 0
    assert f"Nothing was timed on the CPU (Imaginary X1, 2 threads): {why}" == plain(abstract.abstract(run))
    assert len(clocks.clocks(run).frame) == len(run.study.timings)


@pytest.mark.parametrize(
    ("shape", "name", "verdict"),
    [
        (TARGET, "sdpa.flash", "**Faster**, and claimable."),
        (TARGET, "sdpa.cudnn", "**Equivalent**."),
        (TARGET, "sdpa.efficient", "**Slower**."),
        (ONE_BATCH, "sdpa.efficient", "**Inconclusive**."),
    ],
)
def test_a_statement_ends_with_its_verdict(shape, name, verdict):
    (line,) = (line for line in plain(target.publishable(by_device(), shape)).splitlines() if f"`{name}`" in line)
    row = target.verdicts(inferred(), shape).frame.set_index("implementation").loc[name]
    assert line.endswith(verdict)
    delta, speedup = row["Cliff's delta"], row["speedup [95 %]"].replace("\n", " ")
    assert f"a speedup of {speedup}, Cliff's delta {delta}," in line
    p = row["p (Holm)"] if row["p (Holm)"].startswith("<") else f"= {row['p (Holm)']}"
    assert f", p adjusted by Holm {p}, device clock, warm cache, in bursts." in line
    for implementation in ("sdpa.auto", name):
        median = inferred().at(shape).loc[implementation]
        assert f"`{implementation}`" in line
        assert f"{formats.number(median['median_us'], 3).rstrip('0').rstrip('.')}" in line


def by_device() -> synthetic.results.Results:
    return synthetic.infer(synthetic.Recipe(study={"timings": synthetic.STUDY["timings"][:1]}))


def against_the_launch(pace: float = 0.8, launched_us: float = 60.0) -> synthetic.results.Results:
    """A run where flash is faster by the device clock and slower with the launch."""
    results = synthetic.infer(
        synthetic.Recipe(study=synthetic.AT_TARGET | {"timings": synthetic.STUDY["timings"]}, fates={})
    )
    samples = results.run.samples
    flash = (samples["implementation"] == "sdpa.flash") & (samples["clock"] == "eager")
    run = replace(results.run, samples=samples.assign(latency_us=samples["latency_us"] + 20.0 * flash))
    return synthetic.results.Results(run, synthetic.cases.infer(run))


def test_a_verdict_is_given_under_each_timing():
    of = against_the_launch()
    told = plain(abstract.abstract(of))
    assert re.search(
        r"Compared with `sdpa.auto`, the verdict depends on the timing: faster by `device` warm \(1\.25\d* \[[^)]*, "
        r"claimable\), and slower by `eager` warm \(0\.78\d* \[[^)]*\]\)\.",
        told,
    )
    cells = target.timings(of, TARGET).frame.set_index("implementation").loc["sdpa.flash"]
    assert [cell.split("\n")[-1] for cell in cells] == ["faster, claimable", "slower"]
    stated = plain(target.statement(of, TARGET)).split("\n\n")
    assert re.search(r"on this NVIDIA H200, device clock, warm cache; slower by `eager` warm \(0\.78", stated[0])
    assert "and claimable. Under other timings: slower by `eager` warm (0.78" in stated[1]
    (line,) = (line for line in plain(target.publishable(of, TARGET)).splitlines() if "`sdpa.flash`" in line)
    assert "**Faster**, and claimable. Under other timings: slower by `eager` warm (0.78" in line


def test_a_timing_that_a_candidate_lacks_has_no_verdict_and_detectable_effects_stand_below():
    of = synthetic.infer(synthetic.Recipe(control_pace=1.0))
    frame = target.timings(of, TARGET).frame.set_index("implementation")
    assert list(frame.index) == [*of.study.implementations[1:], "minimum detectable effect"]
    assert list(frame.columns) == ["device warm", "eager warm"]
    assert all(cell.endswith(" %") for cell in frame.loc["minimum detectable effect"])


def test_there_is_a_statement_for_every_candidate():
    told = plain(target.publishable(inferred(), TARGET)).splitlines()
    assert [re.search(r"µs, `(.+?)`", line)[1] for line in told] == [
        "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math"
    ]  # fmt: skip
