"""Numbers as a table and a sentence print them: no more digits than their interval supports."""

import math

from attnlab.shapes import Shape
from attnlab.stats import Interval


def number(value: float, digits: int = 3) -> str:
    """`digits` significant digits, with thin thousands; an em dash for NaN."""
    if value is None or math.isnan(value):
        return "—"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def decimals_for(interval: Interval) -> int:
    """Decimals that show an interval's width to two digits and its estimate to three, at most four."""
    widths = [interval.high - interval.low, interval.estimate / 10]
    finite = [width for width in widths if 0 < width < math.inf]
    return min(4, max(0, *(1 - math.floor(math.log10(width)) for width in finite))) if finite else 3


def interval(value: Interval) -> str:
    """``47.46 [47.41, 47.52]``."""
    if math.isnan(value.estimate):
        return "—"
    decimals = decimals_for(value)
    return f"{value.estimate:,.{decimals}f} [{value.low:,.{decimals}f}, {value.high:,.{decimals}f}]"


def stacked(value: Interval) -> str:
    """As `interval`, on two lines: for tables of many columns."""
    return interval(value).replace(" [", "\n[")


def percent(value: float) -> str:
    """A percentage with one decimal below ten and none above."""
    return "—" if math.isnan(value) else f"{value:.1f} %" if abs(value) < 10 else f"{value:.0f} %"


def mebibytes(value: float) -> str:
    """Bytes in MiB."""
    return number(value / 2**20)


def pvalue(value: float) -> str:
    """A p-value; below what a table needs to tell apart, an upper bound."""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def shape(value: Shape) -> str:
    """``(32, 8, 512, 64)``, with what differs from the ordinary named."""
    mask = ", causal" if value.causal else ""
    return f"({value.batch}, {value.heads}, {value.seq_len}, {value.head_dim}) {value.dtype}{mask}"


def listing(words: list[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"
