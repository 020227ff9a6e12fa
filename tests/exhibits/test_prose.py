"""Sentences say what the tables hold."""

import re
from dataclasses import replace

import pytest
import synthetic
from reading import plain
from synthetic import AT_TARGET, CPU, TARGET, Recipe, inferred, lonely

from attnlab.exhibits.baseline import correctness, sweeps
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.environment import clocks, machine, provenance
from attnlab.exhibits.roofline import floor
from attnlab.exhibits.verdicts import abstract
from attnlab.study import studies

TOLD = [
    "baseline.span",
    "baseline.correctness",
    "roofline.regimes",
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


def test_the_span_of_the_baseline():
    told = plain(sweeps.span(inferred()))
    assert "2.50 µs at B=2 H=4 S=32 to 160 µs at B=2 H=4 S=256" in told
    assert "a factor of 64.0 for 64.0 times the FLOPs" in told
    assert "highest throughput is 0.852 TFLOP/s at B=2 H=4 S=64, causal" in told  # 2129920·2 FLOPs in 5 µs
    assert "highest bandwidth 52.4 GB/s at B=2 H=4 S=32." in told  # 131072 bytes in 2.5 µs, and in 5 at S=64 causal


def test_regimes():
    told = plain(floor.regimes(inferred()))
    assert "device clock, warm cache, the floor is set at S = 32, 64, 128 and 256 by matrix product" in told
    assert "20.0 FLOP/byte in float16" in told
    assert "64.0 FLOP/byte, is to the right of it" in told


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


def test_the_gate_in_a_sentence():
    told = plain(correctness.correctness(inferred()))
    assert "150 checks and 3 failed" in told
    assert "is 0.00500, that" in told
    assert "16 checks and all passed" in plain(correctness.correctness(lonely()))


def test_replicates_and_processes_are_both_counted():
    run = inferred().run
    late = (run.samples["replicate"] == 1) & (run.samples["seq_len"] == 256)
    again = replace(run, samples=run.samples.assign(process=run.samples["process"].mask(late, "p2")))
    of = synthetic.results.Results(again, inferred().table)
    words = "2 replicates, in 3 fresh processes, since one replicate was divided"
    assert words in plain(abstract.abstract(of))
    assert words in plain(machine.effort(of))
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


def test_without_ceilings_there_is_neither_ridge_nor_share():
    none = {name: (None, unit) for name, (_, unit) in synthetic.CEILINGS.items()}
    some = none | {"copy": (100.0, "GB/s")}
    runs = [synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, ceilings=rates)) for rates in (none, some)]
    assert "No ceiling was measured" in plain(floor.regimes(runs[0]))
    assert "ridge" not in plain(floor.regimes(runs[1]))


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
