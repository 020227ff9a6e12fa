"""Printed numbers as the ranges that round to them, and arithmetic on such ranges.

A number printed as 0.3210 may have been anything from 0.32095 to 0.32105. Arithmetic on such ranges is interval
arithmetic (Moore, Interval Analysis, 1966), so whether a recomputed number differs by rounding is computed, and no
tolerance is chosen.
"""

import math
from dataclasses import dataclass
from decimal import Decimal

SCALES = {
    "1": 1.0,
    "%": 0.01,
    "count": 1.0,
    "thousand": 1e3,
    "million": 1e6,
    "s": 1.0,
    "ms": 1e-3,
    "min": 60.0,
    "h": 3600.0,
    "month": 1.0,
    "1/s": 1.0,
    "1/min": 1 / 60,
    "USD": 1.0,
    "USD/h": 1 / 3600,
    "byte": 1.0,
    "MB": 1e6,
    "GB": 1e9,
    "MiB": 2.0**20,
    "FLOP": 1.0,
    "FLOP/byte": 1.0,
    "GB/s": 1e9,
    "GFLOP/s": 1e9,
    "TFLOP/s": 1e12,
    "W": 1.0,
    "MHz": 1e6,
}
"""Units, each in seconds, bytes, FLOPs or dollars."""
TEXT = "text"
"""The unit of a word."""
EXACT = {"count", "thousand", "million"}
"""Units of counts, which are not rounded."""
# Relative difference by which equal edges may differ in floating point.
NOISE = 1e-12


@dataclass(frozen=True)
class Number:
    """A number and the range of all numbers that round to its digits, in base units."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Number":
        """A number that was not rounded."""
        return cls(value, value, value)

    @classmethod
    def printed(cls, text: str, unit: str) -> "Number":
        """A number as printed; its range is half a unit of the last digit to each side.

        Raises ValueError where the text is not a finite number.
        """
        try:
            decimal = Decimal(text)
        except ArithmeticError:
            raise ValueError(f"{text!r} is not a number") from None
        exponent = decimal.as_tuple().exponent
        if not isinstance(exponent, int):
            raise ValueError(f"{text!r} is not a finite number")
        scale, value = SCALES[unit], float(decimal)
        half = 0.0 if unit in EXACT else 0.5 * 10.0**exponent
        return cls(scale * value, scale * (value - half), scale * (value + half))

    def __add__(self, other: "Number") -> "Number":
        return Number(self.value + other.value, self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Number") -> "Number":
        return Number(self.value - other.value, self.low - other.high, self.high - other.low)

    def __mul__(self, other: "Number") -> "Number":
        ends = [mine * theirs for mine in (self.low, self.high) for theirs in (other.low, other.high)]
        return Number(self.value * other.value, min(ends), max(ends))

    def __truediv__(self, other: "Number") -> "Number":
        if other.low <= 0 <= other.high:
            raise ZeroDivisionError("a divisor that may be zero")
        ends = [mine / theirs for mine in (self.low, self.high) for theirs in (other.low, other.high)]
        return Number(self.value / other.value, min(ends), max(ends))

    def contains(self, value: float) -> bool:
        """Whether a value lies in the range, edges included."""
        slack = NOISE * abs(value)
        return self.low - slack <= value <= self.high + slack

    def meets(self, other: "Number") -> bool:
        """Whether the ranges share a value, edges included."""
        slack = NOISE * max(abs(self.high), abs(other.high))
        return self.low <= other.high + slack and other.low <= self.high + slack


def as_printed(number: Number, like: str, unit: str) -> str:
    """A recomputed number in a unit, with one decimal more than the printed number that it is compared with.

    It has more decimals where three significant digits need them, and none for a whole count. A printed exponent is
    kept.
    """
    value = number.value / SCALES[unit]
    mantissa, mark, exponent = like.lower().partition("e")
    if mark:
        value /= 10.0 ** int(exponent)
    if unit in EXACT and value == round(value):
        return f"{value:.0f}"
    decimals = len(mantissa.partition(".")[2]) + 1
    if value:
        decimals = max(decimals, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return f"{text}e{exponent}" if mark else text


def megabytes(amount: float) -> str:
    return f"{amount / 1e6:.1f} MB"


def gigaflop(amount: float) -> str:
    return f"{amount / 1e9:.4g} GFLOP"
