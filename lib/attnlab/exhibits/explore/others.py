"""The runs that the explorer shows beside one: those that the pages show, and others that share cases with it."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from attnlab.exhibits.explore import between, recorded
from attnlab.exhibits.explore.samples import Passed, passed
from attnlab.infer import results
from attnlab.infer.compare import repeat
from attnlab.infer.compare.companions import COMPANIONS, companion_of
from attnlab.infer.kernels.rungs import stale
from attnlab.infer.results import Results
from attnlab.runs.schema import Manifest

MOST = 4
"""Other runs on a device of the same name, where the pages show no more; one more is of another device."""


class Told(NamedTuple):
    """A run, what is said of it alone, and its samples."""

    of: Results
    said: dict[str, Any]
    rows: Passed


def told(of: Results, baselines: list[str]) -> Told:
    """A run with what is said of it against these baselines."""
    flips = {baseline: between.flips(of, baseline) for baseline in baselines}
    return Told(of, recorded.recorded(of, baselines) | {"flips": flips}, passed(of))


def others(mine: Manifest) -> Iterator[Told]:
    """The runs beside that of a manifest, each against its own baseline; each is inferred from as it is taken.

    First one of another device, then the companions that the pages show, then those that share the most cases: of
    these the newest first, and last those whose kernels have changed since. Where room lacks, the last go.
    """
    cited = _companions(mine)
    rest = (of for of in repeat.others(mine) if of.run.name not in cited)
    some = sorted(islice(rest, max(0, MOST - len(cited))), key=_worth, reverse=True)
    there = chain(islice(repeat.elsewhere(mine), 1), cited.values(), some)
    return (told(of, [of.study.baseline]) for of in map(results.inferred, there))


def _companions(mine: Manifest) -> dict[str, Results]:
    """The runs that the pages show beside that of a manifest, by their names."""
    found = (companion_of(mine, name, results.with_samples) for name in COMPANIONS)
    return {of.run.name: of for of in found if of}


def _worth(of: Results) -> tuple[bool, str]:
    return not stale(of.run), of.run.manifest["created"]
