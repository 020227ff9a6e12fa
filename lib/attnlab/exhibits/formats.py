"""Numbers as tables and sentences print them: no more digits than their interval supports."""

import math
from collections.abc import Sequence

from attnlab.base import rules
from attnlab.base.texts import escaped
from attnlab.infer.stats import Interval
from attnlab.study.shapes import Shape

CI = f"{100 * rules.CONFIDENCE:g} %"
"""The confidence of every interval."""
MARGIN = f"{100 * rules.EQUIVALENCE_MARGIN:g} %"
"""The margin of equivalence."""
MOST_NAMED = 12
"""More shapes than this are counted and not named."""
FARTHEST = 1000
"""An end of an interval that is more times its estimate says nothing by its digits."""


def number(value: float, digits: int = 3) -> str:
    """`digits` significant digits, scientific below 0.0001, with a thousands separator; an em dash for NaN."""
    if value is None or math.isnan(value):
        return "—"
    if math.isinf(value):
        return "not finite"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    text = f"{value:.{digits - 1}e}" if exponent < -4 else f"{value:,.{max(0, digits - 1 - exponent)}f}"
    return _with_minus(text)


def whole(value: float) -> str:
    """A count in full, with a thousands separator."""
    return number(value) if not math.isfinite(value) else f"{value:,.0f}"


def signed(value: float) -> str:
    """Two decimals, always with a sign."""
    return _with_minus(f"{value:+.2f}")


def decimals_for(interval: Interval) -> int:
    """Decimals that show an interval's width to two digits and its estimate to three, at most four."""
    widths = [interval.high - interval.low, interval.estimate / 10]
    finite = [width for width in widths if 0 < width < math.inf]
    return min(4, max(0, *(1 - math.floor(math.log10(width)) for width in finite))) if finite else 3


def interval(value: Interval) -> str:
    """``47.46 [47.41, 47.52]``; an end without a digit, or far above the estimate, as a bound: ``[<1, >10,000]``."""
    if math.isnan(value.estimate):
        return "—"
    decimals = decimals_for(value)
    estimate, low, high = (_fixed(end, decimals) for end in (value.estimate, value.low, value.high))
    return f"{estimate} [{low}, {_bound(value.estimate, value.high) or high}]"


def percent(value: float) -> str:
    """A percentage with one decimal below ten and none above."""
    if not math.isfinite(value):
        return number(value)
    return _with_minus(f"{value:.1f} %" if abs(value) < 10 else f"{value:.0f} %")


def change(value: Interval) -> str:
    """A change in percent, always with a sign: ``−12.3 % [−12.5, −12.1]``."""
    if math.isnan(value.estimate):
        return "—"
    widths = Interval(abs(value.estimate), value.low, value.high)
    decimals = min(1, decimals_for(widths)) if abs(value.estimate) < 1000 else 0
    estimate, low, high = (_with_minus(f"{end:+,.{decimals}f}") for end in (value.estimate, value.low, value.high))
    return f"{estimate} % [{low}, {_bound(100, value.high) or high}]"


def times(value: float) -> str:
    """A factor: ``1.30×``."""
    return f"{number(value)}×"


def multiple(factor: float) -> str:
    """A factor in a sentence: ``twice``, ``2.5 times``."""
    return "twice" if factor == 2 else f"{factor:g} times"


def kibibytes(value: float) -> str:
    """Bytes in KiB, without trailing zeros."""
    return f"{value / 2**10:,.4g}"


def mebibytes(value: float) -> str:
    """Bytes in MiB."""
    return number(value / 2**20)


def pvalue(value: float) -> str:
    """A p-value with four decimals; below 0.0001, that bound."""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def cudnn(version: str) -> str:
    """A version of cuDNN as its releases are called, ``9.19.0``; since 9 it gives itself as 91900, before as 8907."""
    if not version.isdigit():
        return version
    scale = 10_000 if int(version) >= 90_000 else 1000
    return f"{int(version) // scale}.{int(version) % scale // 100}.{int(version) % 100}"


def kernel(name: str) -> str:
    """A kernel's name without its arguments.

    Template arguments run to hundreds of characters, and the name before them distinguishes kernels. In CUTLASS's
    wrapper, the first argument is the kernel.
    """
    plain = name.removeprefix("void ").replace("`", "'")  # it is set as code
    for wrapper in ("(anonymous namespace)::", "<unnamed>::", "cutlass::Kernel2<"):
        plain = plain.replace(wrapper, "")
    return shortened(plain.split("<")[0].split("(")[0].split(">")[0], 90)


def shortened(text: str, most: int = 160) -> str:
    """A text, cut to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def clause(text: str, most: int = 200) -> str:
    """A text as a part of a sentence: on one line, without its full stop."""
    return shortened(" ".join(text.split()).rstrip("."), most)


def ended(text: str, most: int = 200) -> str:
    """A `clause` that ends a sentence in Markdown: with a full stop, unless it was cut."""
    short = clause(text, most)
    return escaped(short) if short.endswith("…") else f"{escaped(short)}."


def listing(words: list[str]) -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


def names(words: Sequence[str]) -> str:
    """``a, b and c``, each set as code."""
    return listing(code(words))


def runs(name: str) -> str:
    """``the run `a``` or ``the runs `a` and `b```, of names that commas separate."""
    found = name.split(",")
    return f"the {'run' if len(found) == 1 else 'runs'} {names(found)}"


def code(names: Sequence[str]) -> list[str]:
    """Names as code, for `listing`."""
    return [f"`{name}`" for name in names]


def count(amount: int, one: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{amount:,} {one if amount == 1 else one + 's'}"


def named(values: Sequence[Shape], among: Sequence[Shape]) -> str:
    """`shapes`, or of many how many they are of a study's."""
    return f"{len(values)} of {count(len(among), 'shape')}" if len(values) > MOST_NAMED else shapes(values, among)


def shapes(values: Sequence[Shape], among: Sequence[Shape] = ()) -> str:
    """``B=32 H=8 S=4096 and 8192 D=64, with and without the causal mask``, groups separated by semicolons.

    Of shapes that differ in their values alone, the number of kinds is said.

    Args:
        among: the shapes that these have to be distinguished from, such as all of a study: head_dim and dtype are
            named where they differ among them. Without any, they are always named.
    """
    heads_differ, types_differ = (len({getattr(value, axis) for value in among}) != 1 for axis in ("head_dim", "dtype"))
    masks: dict[tuple[int, int, str, str, int], set[bool]] = {}
    on_kinds: dict[Shape, list[Shape]] = {}
    for value in values:
        on_kinds.setdefault(value.plain, []).append(value)
    for plain, (value, *others) in on_kinds.items():
        words = [*plain.special, f"{1 + len(others)} kinds of values"] if others else value.special
        special = "".join(f", {word}" for word in words)
        kind = f" D={value.head_dim}" * heads_differ + f" {value.dtype}" * types_differ
        masks.setdefault((value.batch, value.heads, kind, special, value.seq_len), set()).add(value.causal)
    groups: dict[tuple[int, int, str, str, bool, bool], list[str]] = {}
    for (batch, heads, kind, special, length), found in masks.items():
        groups.setdefault((batch, heads, kind, special, True in found, False in found), []).append(str(length))
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for (batch, heads, kind, special, causal, full), lengths in groups.items():
        mask = ", with and without the causal mask" if causal and full else ", causal" * causal
        by_kind.setdefault(kind, []).append((f"B={batch} H={heads} S={listing(lengths)}", f"{mask}{special}"))
    return "; ".join(_of_one_kind(kind, found) for kind, found in by_kind.items())


def _of_one_kind(kind: str, found: list[tuple[str, str]]) -> str:
    if len(found) == 1:
        (sizes, mask), *_ = found
        return f"{sizes}{kind}{mask}"
    return "; ".join(f"{sizes}{mask}" for sizes, mask in found) + (f" (each{kind})" if kind else "")


def _fixed(value: float, decimals: int) -> str:
    """A value with so many decimals; what is above zero and would read as it, as below a unit of the last."""
    if value > 0 and round(value, decimals) == 0:
        return f"<{10**-decimals:.{decimals}f}"
    return _with_minus(f"{value:,.{decimals}f}").replace("inf", "∞")


def _bound(estimate: float, high: float) -> str:
    """For an upper end that is `FARTHEST` times the estimate and more, the power of ten below that; else nothing."""
    far = FARTHEST * estimate
    return f">{10 ** math.floor(math.log10(far)):,}" if 0 < far < high < math.inf else ""


def _with_minus(text: str) -> str:
    return f"−{text[1:]}" if text.startswith("-") else text
