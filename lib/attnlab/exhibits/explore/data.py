"""All that the explorer shows, in one compressed block that a browser unpacks."""

import gzip
import json
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

from matplotlib.colors import to_hex

from attnlab.base import rules
from attnlab.base.version import VERSION
from attnlab.exhibits import formats
from attnlab.exhibits.decisions import CLAIMABLE, EQUIVALENT, FASTER, INCONCLUSIVE, SIGNS, SLOWER
from attnlab.exhibits.drawing import inverted
from attnlab.exhibits.explore import between, recorded
from attnlab.exhibits.explore.others import Told, told
from attnlab.exhibits.explore.samples import Packed, Passed, pack, planes
from attnlab.exhibits.quantities import QUANTITIES, Quantity
from attnlab.exhibits.style import look
from attnlab.exhibits.words import say
from attnlab.infer import regimes
from attnlab.infer.results import Results

Fewer = tuple[int | None, int | None]
FEWER: tuple[Fewer, ...] = (
    *((None, None), (None, 48), (None, 24), (48, 24), (24, 24), (24, 16), (24, 12)),
    *((16, 12), (12, 12), (8, 8), (6, 6), (4, 4)),
)
"""At most so many samples of a replicate of the run are sent, and of the others': the first of these that fit.

Four at the least: with fewer there is no curve to see, and a run of the others is left out before.
"""
MOST_BYTES = 2_600_000
"""As base64, a third more, and with the code beside it a page stays below 3.6 MB."""

Beside = tuple[dict[str, Any], dict[str, Any], Passed]
"""What is said of another run, and of it and the run that is shown; and its samples."""
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
    """A run and as many of the others beside it as fit, as `gzip`; each is let go before the next is taken.

    Within: the length of a JSON text in four bytes, little-endian, that text in UTF-8, and the samples of each run
    (`attnlab.exhibits.explore.samples`). Where they are more than fit, each replicate is thinned, and then the last of
    the others are left out, which `left_out` names.
    """
    beside = list(map(partial(_beside, shown), others))  # a loop would hold one run while the next is read
    return _fitted(told(shown, recorded.baselines(shown)), beside)


def _fitted(own: Told, beside: list[Beside]) -> bytes:
    """As many of the runs as fit with their fewest samples, and then as many samples as fit.

    It is too long where even the first run's fewest samples are.
    """
    for many in range(len(beside), -1, -1):
        said = _said(own, beside[:many], [other for other, _, _ in beside[many:]])
        block = cache(partial(_thinned, said, [own.rows, *(theirs for _, _, theirs in beside[:many])]))
        if len(block(FEWER[-1])) <= MOST_BYTES:
            break
    first = bisect_left(FEWER, True, hi=len(FEWER) - 1, key=lambda most: len(block(most)) <= MOST_BYTES)
    return block(FEWER[first])


def _thinned(said: dict[str, Any], rows: list[Passed], most: Fewer) -> bytes:
    """What is said of runs, and at most so many samples of each replicate of theirs."""
    mosts = [most[0]] + [most[1]] * (len(rows) - 1)
    packed = [pack(each, one) for each, one in zip(rows, mosts, strict=True)]
    is_whole = [one.codes.size == len(each.case) for one, each in zip(packed, rows, strict=True)]
    thinned = [None if whole else one for whole, one in zip(is_whole, mosts, strict=True)]
    return _block(said, packed, thinned)


def _said(own: Told, beside: list[Beside], left_out: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    """What is said of the runs."""
    runs = [own.said, *(said for said, _, _ in beside)]
    metrics = {"speedup": "speedup", **recorded.METRICS}
    return {
        "attnlab": VERSION,
        "confidence": formats.CI,
        "margin": rules.EQUIVALENCE_MARGIN,
        "runs": runs,
        "left_out": [{"label": said["label"], "device": said["device"]} for said in left_out],
        "pairs": [{"other": place} | pair for place, (_, pair, _) in enumerate(beside, start=1)],
        "metrics": {name: _named(QUANTITIES[quantity]) for name, quantity in metrics.items()},
        "sides": [
            *([QUANTITIES[quantity].head, field] for field, quantity in recorded.SIDES.items()),
            *([QUANTITIES[quantity].title, field] for field, quantity in recorded.READ.items()),
        ],
        "colours": colours(dict.fromkeys(name for run in runs for name in run["implementations"])),
        "verdicts": signs(),
        "definitions": definitions(),
    }


def _beside(shown: Results, other: Told) -> Beside:
    pair = {"deltas": between.deltas(shown, other.of), "flips": between.flips_between(shown, other.of)}
    return other.said, pair, other.rows


def _named(quantity: Quantity) -> dict[str, str]:
    return {"title": quantity.title, "axis": quantity.axis, "suffix": quantity.suffix}


def _block(said: dict[str, Any], packed: list[Packed], mosts: list[int | None]) -> bytes:
    samples = [
        {"cases": one.cases, "count": int(one.codes.size), "most": most, "error_pct": one.error_pct}
        for one, most in zip(packed, mosts, strict=True)
    ]
    text = json.dumps(said | {"samples": samples}, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    parts = [planes(values) for one in packed for values in (one.codes, one.clocks)]
    return gzip.compress(b"".join([len(text).to_bytes(4, "little"), text, *parts]), mtime=0)


def colours(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The colour of each implementation's lines on a light and on a dark ground."""
    found = {name: to_hex(look(name)["color"]) for name in names}
    return {name: {"light": colour, "dark": inverted(colour.removeprefix("#"))} for name, colour in found.items()}


def definitions() -> dict[str, str]:
    """What the terms of a verdict mean, in the words of 06_verdicts."""
    return {
        CLAIMABLE: say("verdicts.claimable"),
        EQUIVALENT: say("verdicts.equivalent"),
        QUANTITIES["regime"].head: say("verdicts.regime_note", mostly=regimes.MOSTLY_PCT),
    }


def signs() -> dict[str, dict[str, list[str] | str]]:
    """Sign, fill and ink of each kind of verdict."""
    return {
        kind: {"sign": SIGNS.get(kind, "×"), "light": list(light), "dark": list(dark)}
        for kind, (light, dark) in FILLS.items()
    }
