"""What each column of a run's tables may hold, and which columns no two rows share.

Pandera looks through the tables; it is imported here alone, where a run is read.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any, get_args

import numpy as np
import pandas as pd

from attnlab.runs import methods, metrics
from attnlab.runs.schema import CASE, COLUMNS, STATUSES
from attnlab.runs.table import Table, shown
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

BEFORE, AFTER = MOMENTS = ("before", "after")
"""When a case is checked: before or after it is timed."""


@dataclass(frozen=True)
class Rule:
    """What the values of a column have to be, in words, and which of them are."""

    words: str
    holds: Callable[[pd.Series], pd.Series]


def _numbers(values: pd.Series) -> pd.Series:
    """The values as floats, NaN where one is no number."""
    if values.dtype.kind not in "iuf":  # text, truth values, or a mixture
        values = values.map(lambda value: value if isinstance(value, Real) and not isinstance(value, bool) else np.nan)
    return values.astype("float64")


def _number(least: float = -np.inf, above: bool = False, whole: bool = False, infinite: bool = False) -> Rule:
    """A number from `least` on, or `above` it."""

    def holds(values: pd.Series) -> pd.Series:
        numbers = _numbers(values)
        inside = (numbers > least) if above else (numbers >= least)
        return inside & (infinite | np.isfinite(numbers)) & (not whole or numbers % 1 == 0)

    kind = "a whole number" if whole else "a number" if infinite else "a finite number"
    bound = "" if least == -np.inf else f" above {least:g}" if above else f" of at least {least:g}"
    return Rule(kind + bound, holds)


def _one_of(words: Collection[str], called: str = "") -> Rule:
    def holds(values: pd.Series) -> pd.Series:
        text = _is_text(values)
        return text & values.where(text).isin(list(words))  # what isn't text may have no hash

    return Rule(called or f"one of {', '.join(words)}", holds)


def _is_text(values: pd.Series) -> pd.Series:
    if isinstance(values.dtype, pd.StringDtype):
        return pd.Series(True, index=values.index)
    return values.map(lambda value: isinstance(value, str)).astype(bool)


def _is_flag(values: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(values.dtype):
        return pd.Series(True, index=values.index)
    return values.map(lambda value: isinstance(value, bool | np.bool_)).astype(bool)


TEXT = Rule("a text", _is_text)
NAME = Rule("a text that is not empty", lambda values: _is_text(values) & (values != ""))
FLAG = Rule("true or false", _is_flag)
POSITIVE, AT_LEAST_0, FINITE = _number(0, above=True), _number(0), _number()
COUNT, SIZE, ERROR = _number(0, whole=True), _number(1, whole=True), _number(0, infinite=True)
_SEEN = (metrics.HITS, metrics.LATENCY, metrics.HIT, metrics.MISS)
_METRICS = [*metrics.COUNTERS, metrics.CANARY, *(metrics.of_canary(tensor, what) for tensor in "qkv" for what in _SEEN)]
RULES: dict[str, Rule] = {
    "implementation": NAME,
    **dict.fromkeys(("batch", "heads", "seq_len", "head_dim", "kv_heads", "kv_len"), SIZE),
    "causal": FLAG,
    "scale": AT_LEAST_0,
    **dict.fromkeys(("dtype", "lengths", "direction", "layout", "values"), NAME),
    "clock": _one_of(get_args(Timing.model_fields["clock"].annotation)),
    "cache": _one_of(get_args(Timing.model_fields["cache"].annotation)),
    **dict.fromkeys(("replicate", "round", "position"), COUNT),
    "process": NAME,
    "started_s": AT_LEAST_0,
    "launches": SIZE,
    **dict.fromkeys(("latency_us", "host_us"), POSITIVE),
    "sm_clock_mhz": POSITIVE,
    "power_w": AT_LEAST_0,
    "temperature_c": FINITE,
    "throttle_reasons": COUNT,
    "throttled": FLAG,
    "moment": _one_of(MOMENTS),
    "inputs": NAME,
    "route": Rule("`call` or `graph of N`", lambda values: _matches(values, r"call|graph of [1-9][0-9]*")),
    **dict.fromkeys(("max_error", "mean_error", "framework_max_error", "framework_mean_error"), ERROR),
    "differing": COUNT,
    "passed": FLAG,
    "status": _one_of(STATUSES),
    **dict.fromkeys(("reason", "kernels", "card", "cpu", "governor", "host"), TEXT),
    **dict.fromkeys(("peak_memory_bytes", "warmup_calls"), COUNT),
    "steady": FLAG,
    "alone_differing": COUNT,
    "strain": ERROR,
    "setup_seconds": AT_LEAST_0,
    "power_limit_w": POSITIVE,
    **dict.fromkeys(("ecc", "persistence", "mig"), FLAG),
    **dict.fromkeys(("function", "architecture"), NAME),
    **dict.fromkeys(("registers", "local_bytes", "static_shared_bytes", "dynamic_shared_bytes"), COUNT),
    **dict.fromkeys(("threads", "ctas", "ctas_per_sm"), SIZE),
    "launch": COUNT,
    "method": _one_of([method.name for method in methods.METHODS]),
    "metric": _one_of(_METRICS, "a counter of Nsight Compute or a reading of the canary"),
    "unit": TEXT,
    "value": AT_LEAST_0,
    "why": TEXT,
}
"""What a column holds, in every table that has it."""
READINGS = ("sm_clock_mhz", "power_w", "temperature_c", "throttle_reasons", "throttled")
"""What the card may not tell."""
EMPTY = {
    "samples": (*READINGS, "strain"),
    "checks": ("differing",),
    "cases": ("alone_differing",),
    "processes": ("card", "ecc", "power_limit_w", "persistence", "mig", "cpu", "governor", "host"),
    "panel": ("round", "latency_us", "why", *READINGS),
    "residency": ("round", "unit", "value", "why"),
    "endurance": ("started_s", "latency_us", "why", *READINGS),
}
"""By table, the columns in which a row may hold nothing."""
ONE_ROW = {
    "samples": (*CASE, "clock", "cache", "replicate", "round"),
    "checks": (*CASE, "replicate", "moment", "inputs", "route"),
    "cases": (*CASE, "replicate"),
    "processes": ("process",),
    "resources": (*CASE, "replicate"),
    "profile": (*CASE, "launch", "metric"),
    "stream": ("implementation", "replicate", "position"),
    "panel": (*CASE, "method", "round"),
    "residency": (*CASE, "clock", "cache", "round", "metric"),
    "endurance": (*CASE, "started_s"),
}
"""By table, the columns that together name a row."""


def require(table: Table) -> None:
    """Raise UserError at the first row with a value that its column can't hold, or that names what an earlier row does.

    That the axes of each row are those of a shape is checked as well.
    """
    if missing := [column for column in COLUMNS[table.name] if column not in table.frame]:
        raise table.refusal(f"the column {missing[0]!r} is missing")
    _require_values(table)
    _require_shapes(table)
    _require_one_row_each(table)


def _require_values(table: Table) -> None:
    from pandera.errors import SchemaErrors

    try:
        _schema(table.name).validate(table.frame, lazy=True, inplace=True)  # else it is copied first
    except SchemaErrors as errors:
        found = errors.failure_cases.sort_values(["index", "column"]).iloc[0]
        column = str(found["column"])
        wanted = f"has to be {RULES[column].words}"
        if pd.isna(found["index"]):  # values so odd that they can't even be compared
            raise table.refusal(f"{column} {wanted}") from None
        row = int(found["index"])
        raise table.refusal(f"{column} is {shown(table.frame[column].iloc[row])} and {wanted}", row) from None


@cache
def _schema(name: str) -> Any:
    import pandera.pandas as pandera

    empty = EMPTY.get(name, ())
    columns = {
        column: pandera.Column(checks=pandera.Check(RULES[column].holds), nullable=column in empty)
        for column in COLUMNS[name]
    }
    return pandera.DataFrameSchema(columns)


def _require_shapes(table: Table) -> None:
    if "seq_len" not in COLUMNS[table.name]:
        return
    distinct = table.frame[list(Shape.AXES)].drop_duplicates()
    for row, axes in zip(distinct.index, distinct.to_dict("records"), strict=True):
        try:
            Shape(**axes)
        except ValueError as error:
            raise table.refusal(str(error), int(row)) from None


def _require_one_row_each(table: Table) -> None:
    named = list(ONE_ROW[table.name])
    again = table.frame.duplicated(named)
    if again.any():
        row = int(again.idxmax())
        same = (table.frame[named] == table.frame[named].iloc[row]) | table.frame[named].isna()
        first = table.place(int(same.all(axis="columns").idxmax()))
        axes = "its shape, " if "seq_len" in named else ""
        names = [column for column in named if column not in Shape.AXES]
        raise table.refusal(f"{axes}{', '.join(names)} are those of {first}", row)


def _matches(values: pd.Series, pattern: str) -> pd.Series:
    return values.astype(str).str.fullmatch(pattern).astype(bool)
