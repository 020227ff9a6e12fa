"""What the values of a column may be: numbers in a range, texts, choices, flags."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from numbers import Real

import numpy as np
import pandas as pd

_NAME = re.compile(r"\w[\w. -]*")


@dataclass(frozen=True)
class Kind:
    """What values of a column may be.

    Attributes:
        words: what each has to be.
        dtype: the type of a column in which every row has a value.
        nullable: the type of a column in which a row may have none.
        holds: tells which values of a column are such values, whatever its type.
    """

    words: str
    dtype: str
    nullable: str
    holds: Callable[[pd.Series], pd.Series]


def number(least: float = -np.inf, above: bool = False, infinite: bool = False) -> Kind:
    """A number from `least` on, or `above` it."""
    words = ("a number" if infinite else "a finite number") + _bound(least, above)
    return Kind(words, "float64", "Float64", lambda values: _within(_numbers(values), least, above, infinite))


def whole(least: float = -np.inf, bits: int = 64) -> Kind:
    """A whole number from `least` on."""

    def holds(values: pd.Series) -> pd.Series:
        numbers = _numbers(values)
        return _within(numbers, least) & (numbers % 1 == 0)

    return Kind("a whole number" + _bound(least), f"int{bits}", f"Int{bits}", holds)


def one_of(choices: Collection[str], words: str = "") -> Kind:
    """One of several texts; `words` says which where they are too many to list."""

    def holds(values: pd.Series) -> pd.Series:
        text = _is_text(values)
        return text & values.where(text).isin(list(choices))  # what isn't text may have no hash

    return Kind(words or f"one of {', '.join(choices)}", "str", "str", holds)


def matching(pattern: str, words: str) -> Kind:
    """A text that a regular expression matches as a whole."""
    return Kind(words, "str", "str", lambda values: values.astype(str).str.fullmatch(pattern).astype(bool))


def _bound(least: float, above: bool = False) -> str:
    return "" if least == -np.inf else f" above {least:g}" if above else f" of at least {least:g}"


def _within(numbers: pd.Series, least: float, above: bool = False, infinite: bool = False) -> pd.Series:
    inside = (numbers > least) if above else (numbers >= least)
    return inside & (infinite | np.isfinite(numbers))


def _numbers(values: pd.Series) -> pd.Series:
    """The values as floats, NaN where one is no number."""
    if values.dtype.kind not in "iuf":  # text, truth values, or a mixture
        values = values.map(lambda value: value if isinstance(value, Real) and not isinstance(value, bool) else np.nan)
    return values.astype("float64")


def _is_text(values: pd.Series) -> pd.Series:
    if isinstance(values.dtype, pd.StringDtype):
        return values.notna()
    return values.map(lambda value: isinstance(value, str)).astype(bool)


def _is_name(values: pd.Series) -> pd.Series:
    text = _is_text(values)
    others = [name for name in values[text].unique() if not _NAME.fullmatch(name)]  # few names for many rows
    return text & ~values.isin(others) if others else text


def _is_flag(values: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(values.dtype):
        return values.notna()
    return values.map(lambda value: isinstance(value, bool | np.bool_)).astype(bool)


TEXT = Kind("a text", "str", "str", _is_text)
SOURCE = Kind("a text that is not empty", "str", "str", lambda values: _is_text(values) & (values != ""))
NAME = Kind("a name of letters, digits, '_', '.', '-' and blanks", "str", "str", _is_name)
FLAG = Kind("true or false", "bool", "boolean", _is_flag)
POSITIVE, AT_LEAST_0 = number(0, above=True), number(0)
LATENCY = number(1e-3)
"""In us; no call takes less than a nanosecond."""
ERROR = number(0, infinite=True)
COUNT, SIZE = whole(0), whole(1)
