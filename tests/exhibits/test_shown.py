"""All exhibits of runs of every kind: text without what is not a number, and a sentence where a run lacks something."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import synthetic
from reading import NOT_A_NUMBER
from synthetic import TARGET, Recipe, inferred, lonely

from attnlab.exhibits import catalogue
from attnlab.exhibits.catalogue import Show, Shown
from attnlab.exhibits.display import Missing
from attnlab.infer.results import Results
from attnlab.study import studies
from attnlab.study.shapes import Shape

GIVEN = {"backends.cost": {"price_per_hour": 3.0}}
GONE = ("failed", "before timing, call: error against float64")
NAMES = ["sdpa.auto", "sdpa.flash"]
BRIEF = {
    "implementations": NAMES,
    "replicates": 1,
    "sweeps": {name: [sweep[0] | {"seq_len": 128}] for name, sweep in synthetic.STUDY["sweeps"].items()}
    | {"seq_len": [synthetic.AXES | {"seq_len": [64, 128]}]},
}


def all_of(*names: str) -> synthetic.Fates:
    return {(name, shape): GONE for name in names for shape in studies.parse(synthetic.STUDY | BRIEF, "").shapes}


def brief(
    study: dict[str, Any] | None = None, fates: synthetic.Fates | None = None, **recipe: Any
) -> Callable[[], Results]:
    return partial(synthetic.infer, Recipe(study=BRIEF | (study or {}), fates=fates or {}, **recipe))


NO_CEILINGS = {name: (None, unit) for name, (_, unit) in synthetic.CEILINGS.items()}
CLIMB = {"implementations": [*NAMES, "kernel.tiled", "kernel.mma", "kernel.swizzled"]}
CUT_OFF = {
    "nothing measured yet": brief(shapes=0),
    "cut off before the target": brief(shapes=1),
    "cut off after the target": brief(shapes=2),
    "kernels not reached yet": brief(CLIMB, shapes=0),
}
RUNS = CUT_OFF | {
    "the baseline failed at the target": brief(fates={("sdpa.auto", TARGET): GONE}),
    "the baseline failed everywhere": brief(fates=all_of("sdpa.auto")),
    "all failed everywhere": brief(fates=all_of(*NAMES)),
    "a length that nothing takes": brief(fates={(name, Shape(2, 4, 64, 64)): GONE for name in NAMES}),
    "sweeps of its own": brief({"sweeps": {"mine": [synthetic.AXES | {"seq_len": [128, 64]}]}}),
    "kernels": brief(CLIMB, fates={("kernel.mma", TARGET): GONE}),
    "kernels of which the first failed everywhere": brief(CLIMB, fates=all_of("kernel.tiled")),
    "kernels without ceilings": brief(CLIMB, ceilings=NO_CEILINGS),
}
RUNS |= {
    of.__name__: of
    for of in (
        *(inferred, lonely, synthetic.climbed, synthetic.chosen, synthetic.valued),
        *(synthetic.controlled, synthetic.biased, synthetic.contradicted, synthetic.unclaimable),
    )
}


@cache
def show(run: str) -> list[Shown]:
    """All exhibits of which a run has something."""
    of = Show(RUNS[run]())
    shown = [always(id) or of(id, **GIVEN.get(id, {})) for id in catalogue.every()]
    return [exhibit for exhibit in shown if exhibit.content is not None]


@cache
def always(id: str) -> Shown | None:
    """What is the same for every run, made once; None for the rest."""
    return None if catalogue.find(id).shows_a_run else Show()(id)


@pytest.mark.parametrize("run", RUNS)
def test_nothing_is_shown_that_is_not_a_number_or_is_misspelt_by_counting(run):
    for exhibit in show(run):
        bundle, told = exhibit._repr_mimebundle_()[0], exhibit.markdown
        html = bundle.get("text/html", "")
        assert bundle["text/plain"].strip()
        assert "<tbody></tbody>" not in html
        text = f"{told} {re.sub('<[^>]*>', ' ', html)}"
        assert not NOT_A_NUMBER.search(text.replace("filled with NaN", "")), exhibit.id
        if exhibit.run:
            counted = r"(?<![.,\d])1 (?!agrees)(?:\w+s|fresh processes)\b(?! of)|processs\b"
            assert not re.search(counted, text), exhibit.id
        assert not re.search(r"\w \)|\( | [.,;:]", told), exhibit.id


@pytest.mark.parametrize("run", CUT_OFF)
def test_a_run_cut_off_says_that_it_is(run):
    told = "".join(exhibit.markdown for exhibit in show(run))
    assert "the run is not complete: `make measure RUN=synthetic` continues it" in told


LACKED = [
    *(f"backends.{id}" for id in ("attend.chosen", "attend.overhead", "attend.regret", "decode", "few", "grouped")),
    *(f"backends.{id}" for id in ("peers.beside", "peers.dots", "peers.support", "ragged", "training")),
    *("baseline.odd_lengths", "baseline.reproducibility", "kernels.compiled", "profile.how"),
    *(f"environment.{id}" for id in ("cards", "endurance", "load", "panel", "panel.table", "residency")),
    *(f"model.{id}" for id in ("compared", "gained", "outputs", "records", "share", "steps")),
    *(f"verdicts.{id}" for id in ("controls", "false_positives", "values", "values.elsewhere", "values.said")),
]
"""What the ordinary run has nothing of: no other run beside it, no panel, no control, no kinds of values."""
ALONE = [
    *LACKED,
    *("backends.rules", "backends.summary", "environment.launch_gap", "environment.timings"),
    "roofline.literature.shares",
    *(f"verdicts.{id}" for id in ("by_candidate", "by_timing", "counted", "every", "publishable", "statement")),
    *("verdicts.target", "verdicts.timings"),
]
"""The same of a run of one implementation on a CPU."""


@pytest.mark.parametrize(("run", "lacked"), [("inferred", LACKED), ("lonely", ALONE)])
def test_what_a_run_lacks_is_said_in_a_sentence(run, lacked):
    assert [exhibit.id for exhibit in show(run) if isinstance(exhibit.content, Missing)] == sorted(lacked)
