"""All that the explorer shows, in one compressed block that a browser unpacks."""

import gzip
import json
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, islice
from math import ceil
from typing import Any, NamedTuple

from matplotlib.colors import to_hex

from attnlab.base.version import VERSION
from attnlab.exhibits import formats
from attnlab.exhibits.decisions import CLAIMABLE, EQUIVALENT, FASTER, INCONCLUSIVE, SIGNS, SLOWER
from attnlab.exhibits.drawing import inverted
from attnlab.exhibits.explore import between, recorded
from attnlab.exhibits.explore.samples import Packed, Passed, pack, passed, planes
from attnlab.exhibits.quantities import QUANTITIES, Quantity
from attnlab.exhibits.style import look
from attnlab.infer import results
from attnlab.infer.compare import repeat
from attnlab.infer.results import Results

MOST_RUNS = 4
"""Other runs on a device of the same name that are shown beside a run; one more is of another device."""
MOST_SAMPLES, MOST_OF_OTHERS = 600_000, 200_000
"""Samples of the run, and of the others together, that are sent at first."""
MOST_BYTES = 3_600_000
"""As base64, a third more, and with the code beside it a page stays below 5 MB."""

DARK_GROUND = "#17181a"
FILLS = {
    CLAIMABLE: (("#08519c", "white"), ("#9ecae1", "#0b1c2c")),
    FASTER: (("#c6dbef", "black"), ("#1d4468", "#ffffff")),
    EQUIVALENT: (("#e3e3e3", "black"), ("#3b3c3f", "#ffffff")),
    INCONCLUSIVE: (("#ffffff", "black"), (DARK_GROUND, "#dededa")),
    SLOWER: (("#fdd0a2", "black"), ("#7a3d0c", "#ffffff")),
    "no latency": (("#ffffff", "#595959"), (DARK_GROUND, "#a3a39e")),
}
"""Fill and ink of a cell on a light and on a dark ground, by its verdict."""


def others(shown: Results) -> Iterator[Results]:
    """The runs beside one that share the most cases with it: some of its device, and one of another."""
    mine = shown.run.manifest
    return map(results.inferred, chain(islice(repeat.others(mine), MOST_RUNS), islice(repeat.elsewhere(mine), 1)))


def payload(shown: Results, others: Iterable[Results]) -> bytes:
    """A run and the others beside it, as `gzip`; each of these is needed only until the next is asked for.

    Within: the length of a JSON text in four bytes, little-endian, that text in UTF-8, and the samples of each run
    (`attnlab.exhibits.explore.samples`). Where they are more than fit, of every so many rounds the first is kept.
    """
    said, rows = _said(shown, others)
    for steps in _thinned([len(each.case) for each in rows]):
        packed = [pack(each, every) for each, every in zip(rows, steps, strict=True)]
        block = _block(said, packed, steps)
        if len(block) <= MOST_BYTES:
            break
    return block


class _Beside(NamedTuple):
    """Another run: the names of its implementations, what is said of it and of the two, and its samples."""

    names: list[str]
    run: dict[str, Any]
    pair: dict[str, Any]
    rows: Passed


def _beside(shown: Results, other: Results) -> _Beside:
    pair = {"deltas": between.deltas(shown, other), "flips": between.flips_between(shown, other)}
    return _Beside(other.study.implementations, _run(other, [other.study.baseline]), pair, passed(other))


def _run(of: Results, baselines: list[str]) -> dict[str, Any]:
    return recorded.recorded(of, baselines) | {"flips": between.flips(of)}


def _said(shown: Results, others: Iterable[Results]) -> tuple[dict[str, Any], list[Passed]]:
    """What is said of the runs, and the samples of each."""
    run = _run(shown, recorded.baselines(shown))
    beside = list(map(partial(_beside, shown), others))  # a loop would hold one run while the next is read
    names = dict.fromkeys(chain(shown.study.implementations, *(other.names for other in beside)))
    metrics = {"speedup": "speedup", **recorded.METRICS}
    said = {
        "attnlab": VERSION,
        "confidence": formats.CI,
        "runs": [run, *(other.run for other in beside)],
        "pairs": [{"other": place} | other.pair for place, other in enumerate(beside, start=1)],
        "metrics": {name: _named(QUANTITIES[quantity]) for name, quantity in metrics.items()},
        "sides": [
            *([QUANTITIES[quantity].head, field] for field, quantity in recorded.SIDES.items()),
            *([QUANTITIES[quantity].title, field] for field, quantity in recorded.READ.items()),
        ],
        "colours": colours(names),
        "verdicts": signs(),
    }
    return said, [passed(shown), *(other.rows for other in beside)]


def _named(quantity: Quantity) -> dict[str, str]:
    return {"title": quantity.title, "axis": quantity.axis, "suffix": quantity.suffix}


def _thinned(samples: list[int]) -> Iterator[list[int]]:
    """Of every how many rounds one is sent, for each run by its samples: the others are thinned first."""
    shown, *others = samples
    own, theirs = ceil(shown / MOST_SAMPLES) or 1, ceil(sum(others) / MOST_OF_OTHERS) or 1
    for _ in range(12):
        yield [own] + [theirs] * len(others)
        own, theirs = own * 2, theirs * 4


def _block(said: dict[str, Any], packed: list[Packed], steps: list[int]) -> bytes:
    samples = [
        {"cases": one.cases, "count": int(one.codes.size), "every": every, "error_pct": one.error_pct}
        for one, every in zip(packed, steps, strict=True)
    ]
    text = json.dumps(said | {"samples": samples}, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    parts = [planes(values) for one in packed for values in (one.codes, one.clocks)]
    return gzip.compress(b"".join([len(text).to_bytes(4, "little"), text, *parts]), mtime=0)


def colours(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The colour of each implementation's lines on a light and on a dark ground."""
    found = {name: to_hex(look(name)["color"]) for name in names}
    return {name: {"light": colour, "dark": inverted(colour.removeprefix("#"))} for name, colour in found.items()}


def signs() -> dict[str, dict[str, list[str] | str]]:
    """Sign, fill and ink of each kind of verdict."""
    return {
        kind: {"sign": SIGNS.get(kind, "×"), "light": list(light), "dark": list(dark)}
        for kind, (light, dark) in FILLS.items()
    }
