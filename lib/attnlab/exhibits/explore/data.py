"""All that the explorer shows, in one compressed block that a browser unpacks."""

import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from math import ceil
from typing import Any

from matplotlib.colors import to_hex

from attnlab.base.version import VERSION
from attnlab.exhibits import formats
from attnlab.exhibits.decisions import CLAIMABLE, EQUIVALENT, FASTER, INCONCLUSIVE, SIGNS, SLOWER
from attnlab.exhibits.drawing import inverted
from attnlab.exhibits.explore import between, recorded
from attnlab.exhibits.explore.samples import Packed, pack, planes
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


def payload(shown: Results) -> bytes:
    """A run, and the others that share the most cases with it, as `gzip`: of its device, and one of another.

    Within: the length of a JSON text in four bytes, little-endian, that text in UTF-8, and the samples of each run
    (`attnlab.exhibits.explore.samples`). Where they are more than fit, of every so many rounds the first is kept.
    """
    others = chain(islice(repeat.others(shown), MOST_RUNS), islice(repeat.elsewhere(shown), 1))
    there = [shown, *(results.inferred(other) for other in others)]
    said = _said(there)
    for steps in _thinned(there):
        packed = [pack(of, every) for of, every in zip(there, steps, strict=True)]
        block = _block(said, packed, steps)
        if len(block) <= MOST_BYTES:
            break
    return block


def _said(there: list[Results]) -> dict[str, Any]:
    """What is said of the runs, without their samples."""
    shown, *others = there
    names = dict.fromkeys(name for of in there for name in of.study.implementations)
    runs = [recorded.recorded(shown, recorded.baselines(shown))]
    runs += [recorded.recorded(other, [other.study.baseline]) for other in others]
    pairs = [
        {"other": place, "deltas": between.deltas(shown, other), "flips": between.flips_between(shown, other)}
        for place, other in enumerate(others, start=1)
    ]
    metrics = {"speedup": "speedup", **recorded.METRICS}
    return {
        "attnlab": VERSION,
        "confidence": formats.CI,
        "runs": [run | {"flips": between.flips(of)} for run, of in zip(runs, there, strict=True)],
        "pairs": pairs,
        "metrics": {name: _named(QUANTITIES[quantity]) for name, quantity in metrics.items()},
        "sides": [
            *([QUANTITIES[quantity].head, field] for field, quantity in recorded.SIDES.items()),
            *([QUANTITIES[quantity].title, field] for field, quantity in recorded.READ.items()),
        ],
        "colours": colours(names),
        "verdicts": signs(),
    }


def _named(quantity: Quantity) -> dict[str, str]:
    return {"title": quantity.title, "axis": quantity.axis, "suffix": quantity.suffix}


def _thinned(there: list[Results]) -> Iterator[list[int]]:
    """Of every how many rounds one is sent, for each run: the others are thinned first."""
    shown, *others = (len(of.passed) for of in there)
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
