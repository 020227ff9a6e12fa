"""Our clock: what a sample is, what clock and cache change, the launch gap, and what the cache held."""

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer.machine.clocks import farthest, launch_gaps
from attnlab.infer.machine.residency import CALLER
from attnlab.infer.machine.residency import residency as of_residency
from attnlab.infer.results import Results
from attnlab.runs.methods import DEVICE
from attnlab.study.studies import Timing

GAPLESS = "k calls in a row, replayed by a graph into a busy stream, over k"
SAMPLES = {
    ("device", "warm"): f"{GAPLESS}; the cache holds what the call before left",
    ("device", "cold"): "one call on a held stream, after twice the last level of cache was overwritten",
    ("eager", "warm"): "one call into an idle stream, between events; on a CPU, between readings of its counter",
    ("eager", "cold"): "the same, after twice the last level of cache was overwritten",
    ("cupti", "warm"): "for how long the kernels of a graph of k calls run, by the device's time stamps, over k",
}
ANSWERS = {
    "device": "how long the device works: a program that replays graphs, or keeps the device ahead of the host",
    "eager": "how long a program waits that launches each call by itself",
    "cupti": "how long the kernels alone take",
}
AFTER_OTHERS = ", where other work has taken the cache before"


@exhibit("environment.clocks")
def clocks(results: Results) -> Table:
    """What a sample is under each timing of the run, and how fine the clock is."""
    rows = [
        {"timing": str(timing), "a sample is": SAMPLES[timing.clock, timing.cache], "it answers": _answer(timing)}
        for timing in results.timings or results.study.timings
    ]
    taken = formats.count(len(rows), "timing")
    caption = f"{taken} of the same calls: what a sample is, and which question it answers."
    return Table.of(rows, caption, say("environment.clock", clocks=results.run.manifest["clocks"]))


def _answer(timing: Timing) -> str:
    return ANSWERS[timing.clock] + AFTER_OTHERS * (timing.cache == "cold")


@exhibit("environment.timings")
def timings(results: Results) -> Prose:
    """How far clock and cache change a median at most, and what a cold sample differs in besides the cache."""
    return Prose(say("environment.farthest", rows=farthest(results, "seq_len"), letter="S") + cold_note(results))


def cold_note(results: Results) -> str:
    """After a blank, how a cold sample of the device clock differs from a warm one besides the cache; or nothing."""
    if {timing.cache for timing in results.timings if timing.clock == DEVICE} != {"warm", "cold"}:
        return ""
    return f" {say('environment.cold', nothing_us=results.run.manifest['clocks']['nothing_us'])}"


@exhibit("environment.launch_gap")
def launch_gap(results: Results) -> Prose:
    """The launch gap, where both clocks were used with a warm cache."""
    return Prose(
        say(
            "environment.launch_gap",
            name=results.study.baseline,
            gaps=launch_gaps(results),
            unit="cards" if results.over_cards else "replicates",
        )
    )


@exhibit("environment.residency")
def residency(results: Results) -> Prose:
    """Whether cold was cold, and warm as warm as the L2 allows."""
    facts = {"by": CALLER, "target": results.study.target_shape}
    return Prose(say("environment.residency", r=of_residency(results), **facts))
