"""All that the explorer shows, in one compressed block that a browser unpacks."""

import gzip
import json
from collections.abc import Iterable, Iterator
from functools import partial
from math import ceil
from typing import Any

from matplotlib.colors import to_hex

from attnlab.base.version import VERSION
from attnlab.exhibits import formats
from attnlab.exhibits.decisions import CLAIMABLE, EQUIVALENT, FASTER, INCONCLUSIVE, SIGNS, SLOWER
from attnlab.exhibits.drawing import inverted
from attnlab.exhibits.explore import between, recorded
from attnlab.exhibits.explore.others import Told, told
from attnlab.exhibits.explore.samples import Packed, Passed, pack, planes
from attnlab.exhibits.quantities import QUANTITIES, Quantity
from attnlab.exhibits.style import look
from attnlab.infer.results import Results

MOST_SAMPLES, MOST_OF_OTHERS = 600_000, 200_000
"""Samples of the run, and of the others together, that are sent at first."""
MOST_BYTES = 3_500_000
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


def payload(shown: Results, others: Iterable[Told]) -> bytes:
    """A run and the others beside it, as `gzip`; each of these is let go before the next is taken.

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


def _said(shown: Results, others: Iterable[Told]) -> tuple[dict[str, Any], list[Passed]]:
    """What is said of the runs, and the samples of each."""
    beside = list(map(partial(_beside, shown), others))  # a loop would hold one run while the next is read
    _, run, rows = told(shown, recorded.baselines(shown))
    runs = [run, *(said for said, _, _ in beside)]
    metrics = {"speedup": "speedup", **recorded.METRICS}
    said = {
        "attnlab": VERSION,
        "confidence": formats.CI,
        "runs": runs,
        "pairs": [{"other": place} | pair for place, (_, pair, _) in enumerate(beside, start=1)],
        "metrics": {name: _named(QUANTITIES[quantity]) for name, quantity in metrics.items()},
        "sides": [
            *([QUANTITIES[quantity].head, field] for field, quantity in recorded.SIDES.items()),
            *([QUANTITIES[quantity].title, field] for field, quantity in recorded.READ.items()),
        ],
        "colours": colours(dict.fromkeys(name for run in runs for name in run["implementations"])),
        "verdicts": signs(),
    }
    return said, [rows, *(theirs for _, _, theirs in beside)]


def _beside(shown: Results, other: Told) -> tuple[dict[str, Any], dict[str, Any], Passed]:
    """What is said of another run, and of the two; and its samples."""
    pair = {"deltas": between.deltas(shown, other.of), "flips": between.flips_between(shown, other.of)}
    return other.said, pair, other.rows


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
