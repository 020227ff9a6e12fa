"""Sentences say what the tables hold."""

import re
from dataclasses import replace

import pytest
import synthetic
from reading import plain
from synthetic import AT_TARGET, CPU, ONE_BATCH, TARGET, Recipe, inferred, lonely

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.environment import clocks, machine, provenance
from attnlab.exhibits.verdicts import abstract, target
from attnlab.infer.lookup import median_of
from attnlab.study import studies

TOLD = [
    "verdicts.abstract",
    "verdicts.publishable",
    "environment.run",
    "environment.launch_gap",
    "environment.throttling",
    "environment.lacking",
    "environment.effort",
    "environment.commands",
    "environment.bibtex",
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


def test_the_launch_gap_is_the_difference_of_the_clocks():
    told = plain(clocks.launch_gap(inferred()))
    found = re.findall(
        r"(\S+) \[(\S+), (\S+)\] µs at (\(.*?\) float16), which is (\S+ %) of the (\S+) µs that `device` reads", told
    )
    assert [(us, where, share) for *_, where, share, us in found] == [
        ("2.50", "(2, 4, 32, 64) float16", "200 %"),
        ("40.0", "(2, 4, 128, 64) float16", "12 %"),
    ]
    for gap, low, high, *_ in found:  # the replicates of the synthetic run are alike
        assert float(gap) == pytest.approx(5.0)
        assert float(low) <= 5.0 <= float(high)
    assert "that `device` reads: the mean over replicates, with Student's t." in told
    assert "At the first shape, a comparison by events around each call mostly compares the host." in told
    assert "is not known; the run has eager clock, warm cache" in plain(clocks.launch_gap(lonely()))


def test_throttling_is_told_or_why_it_is_not_known():
    told = plain(machine.throttling(inferred()))
    assert "2.5 % of 5,920 samples" in told
    assert "between 1,941 and 1,980 MHz" in told
    assert plain(machine.throttling(lonely())) == (
        "Clock, power and throttling were not recorded: the device is no NVIDIA GPU."
    )


def test_what_a_run_lacks_is_named():
    assert plain(machine.lacking(inferred())).splitlines()[2:] == [
        "- 2 cases failed",
        "- 1 case out of memory",
        "- 1 case skipped",
    ]
    told = plain(machine.lacking(lonely()))
    assert "the clock “device warm” does not exist on this device" in told
    assert "no telemetry: the device is no NVIDIA GPU" in told


def test_a_run_that_lacks_much_says_so():
    ceilings = synthetic.CEILINGS | {"l2": (None, "GB/s")}
    told = plain(machine.lacking(synthetic.infer(synthetic.Recipe(shapes=3, ceilings=ceilings))))
    assert "L2 reads: not measured: why" in told
    assert "the run is not complete: `make measure RUN=synthetic` continues it" in told


def test_replicates_and_processes_are_both_counted():
    run = inferred().run
    late = (run.samples["replicate"] == 1) & (run.samples["seq_len"] == 256)
    again = replace(run, samples=run.samples.assign(process=run.samples["process"].mask(late, "p2")))
    of = synthetic.results.Results(again, inferred().table)
    words = "2 replicates, in 3 fresh processes, since one replicate was divided"
    assert words in plain(abstract.abstract(of))
    assert words in plain(machine.effort(of))
    assert f"samples each in {words}, in interleaved rounds" in plain(target.statement(of, TARGET))
    closed = replace(again, manifest=run.manifest | {"closed_early": {"replicates": 1, "shapes": 9, "planned": 18}})
    some = replace(closed, samples=again.samples[again.samples["replicate"] == 1])
    assert machine.replicate_words(synthetic.results.Results(some, inferred().table)) == (
        "1 replicate of the 2 asked for, in 2 fresh processes, since it was divided"
    )


def test_a_clock_that_takes_fewer_samples_is_named():
    assert machine.sample_words(inferred().study) == "40 samples"
    traced = {"timings": [*synthetic.STUDY["timings"], {"clock": "cupti", "cache": "warm"}]}
    study = studies.parse(synthetic.STUDY | traced, "traced")
    assert machine.sample_words(study) == "40 samples (10 by `cupti`)"


def test_a_cold_sample_of_the_device_clock_is_not_told_from_a_warm_one_by_the_cache_alone():
    cold = {"timings": [*synthetic.STUDY["timings"], {"clock": "device", "cache": "cold"}]}
    note = "A cold `device` sample is one call between its events, which read 1.50 µs around nothing"
    assert note in clocks.cold_note(synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET | cold, fates={})))
    assert clocks.cold_note(inferred()) == ""


def test_shapes_held_back_are_named_together():
    run = inferred().run
    samples = run.samples.assign(throttled=(run.samples["seq_len"] == 64).astype("boolean"))
    told = plain(machine.throttling(synthetic.results.Results(replace(run, samples=samples), inferred().table)))
    assert "under sustained load: B=2 H=4 S=64, with and without the causal mask" in told


def test_effort_and_commands_and_citation():
    assert "Measuring took 0.780 s from the start of each process to its last sample" in plain(
        machine.effort(inferred())
    )
    commands = plain(provenance.commands(inferred())).splitlines()
    assert [line.split("#")[0].strip() for line in commands] == [
        "make report RUN=synthetic",
        "make measure STUDY=synthetic",
    ]
    assert inferred().run.manifest["seal"][:16] in plain(provenance.bibtex(inferred()))
    assert "Imaginary X1" in plain(machine.machine(lonely()))
