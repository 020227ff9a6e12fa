"""The runs that the explorer shows beside one: those that share the most cases with it, and one of another device."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

from attnlab.exhibits.explore import between, recorded
from attnlab.exhibits.explore.samples import Passed, passed
from attnlab.infer import results
from attnlab.infer.compare import repeat
from attnlab.infer.results import Results
from attnlab.runs.schema import Manifest

MOST = 4
"""Other runs on a device of the same name; one more is of another device."""


class Told(NamedTuple):
    """A run, what is said of it alone, and its samples."""

    of: Results
    said: dict[str, Any]
    rows: Passed


def told(of: Results, baselines: list[str]) -> Told:
    """A run with what is said of it against these baselines."""
    return Told(of, recorded.recorded(of, baselines) | {"flips": between.flips(of)}, passed(of))


def others(mine: Manifest) -> Iterator[Told]:
    """The runs beside that of a manifest, each against its own baseline; each is inferred from as it is taken."""
    there = chain(islice(repeat.others(mine), MOST), islice(repeat.elsewhere(mine), 1))
    return (told(of, [of.study.baseline]) for of in map(results.inferred, there))
