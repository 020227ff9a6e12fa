"""What `attnlab.attend` adds to a call, by a stream whose times were chosen; and how that is said."""

from dataclasses import replace

import pandas as pd
import pytest
import synthetic
from synthetic import AXES, DOUBLE, HALF, TARGET, Recipe, changed

from attnlab.exhibits.backends import attend as shown
from attnlab.infer.backends import attend
from attnlab.infer.bootstrap import over_replicates
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import dispatch
from attnlab.runs.dispatch import Choice, Dispatch
from attnlab.runs.tables import TABLES
from attnlab.study.implementations import DISPATCH, FALLBACK

SHAPES = [HALF, TARGET, DOUBLE]
STUDY = {
    "implementations": [FALLBACK, DISPATCH],
    "sweeps": {"table": [AXES | {"seq_len": [64, 128, 256]}]},
    "timings": synthetic.STUDY["timings"][1:],
}


def served(later_us: tuple[float, float] = (0.0, 0.0), names: tuple[str, str] = (FALLBACK, DISPATCH)) -> Results:
    """A run with a stream of requests.

    A request takes 1, 2, ... us. The second side answers `later_us` later, by the replicate. It keeps the host 2 or 4
    us longer, and 100 at `TARGET`.
    """
    of = synthetic.infer(Recipe(study=STUDY, fates={}))
    rows = [
        {"implementation": name, **shape.axes, "replicate": replicate, "process": f"p{replicate}", "position": position}
        | {"latency_us": position + 1.0 + later * later_us[replicate], "host_us": 10.0 + later * more[shape]}
        for replicate, more in enumerate(({HALF: 2.0, TARGET: 100.0}, {HALF: 4.0, TARGET: 100.0}))
        for later, name in enumerate(names)
        for position in range(100)
        for shape in [TARGET if position % 4 == 0 else HALF]
    ]
    stream = pd.DataFrame(rows, columns=TABLES["stream"].names)
    return changed(of, manifest={"dispatch": {"run": "theirs"}}, stream=stream)


def chosen(**calls: str) -> Dispatch:
    """A table, written, that names other calls than SDPA's at some lengths, 1.25 times as fast."""
    choices = [_choice(shape, calls.get(f"at_{shape.seq_len}", FALLBACK)) for shape in SHAPES]
    table = Dispatch(run="theirs", seal="s", device="NVIDIA H200", torch="2", timing="eager clock", choices=choices)
    dispatch.write(table)
    return table


def _choice(shape, name: str) -> Choice:
    axes = {axis: value for axis, value in shape.axes.items() if axis in Choice.AXES}
    ends = (1.25, 1.2, 1.3) if name != FALLBACK else (1.0, 1.0, 1.0)
    return Choice(**axes, implementation=name, **dict(zip(("speedup", "low", "high"), ends, strict=True)))


def test_what_is_added_is_students_t_over_replicates(data):
    chosen(at_128="sdpa.flash")
    found = attend.overhead(served(later_us=(2.0, 4.0)))
    # t(0.975, 1) = 12.706 times half of what two replicates differ by
    for added in (found.host_us, found.latency_us):
        assert (added.estimate, added.low, added.high) == pytest.approx((3, 3 - 12.706, 3 + 12.706), abs=1e-3)
    assert found.requests == 150  # three quarters of each replicate's 100 make the same call
    assert (found.later, found.replicates, found.median_us) == (2, 2, 50.5)
    saved = attend.overhead(served(names=(DISPATCH, FALLBACK)))
    assert (saved.host_us.estimate, saved.later) == (-3, 0)


@pytest.mark.parametrize(("host_us", "allowed"), [((3, 2, 4), True), ((20, 19, 21), False), ((15, -175, 205), None)])
def test_what_is_allowed_is_so_by_the_whole_interval(host_us, allowed, data):
    chosen(at_128="sdpa.flash")
    assert replace(attend.overhead(served()), host_us=Interval(*host_us)).is_allowed is allowed
    assert "Within the 10 µs allowed: undecided. Over the whole stream" in shown.overhead(served()).markdown


def test_one_replicate_has_no_interval():
    assert over_replicates([20.0]) == Interval(20.0, float("-inf"), float("inf"))


def test_a_stream_that_never_called_the_same_says_nothing(data):
    with pytest.raises(NotMeasured, match=r"There is no dispatch table for NVIDIA H200: `make dispatch RUN="):
        attend.overhead(served())
    chosen(at_64="sdpa.flash", at_128="sdpa.flash")
    with pytest.raises(NotMeasured, match=r"No request of the stream was answered by `sdpa\.auto` on both sides"):
        attend.overhead(served())
    stream = served().run.stream
    alone = changed(served(), stream=stream[stream["implementation"] == DISPATCH])
    with pytest.raises(NotMeasured, match="No stream of requests to"):
        attend.overhead(alone)


def test_a_run_by_another_table_says_nothing_of_the_present_one(data):
    chosen(at_128="sdpa.flash")
    other = changed(served(), manifest={"dispatch": {"run": "before"}})
    with pytest.raises(NotMeasured, match=r"^`dispatch\.attend` went by the table of `before` in this run"):
        attend.overhead(other)
