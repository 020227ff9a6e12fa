"""The tables of a run, a pyarrow schema each.

The metadata of a field state the meaning of its column and the values that it may hold. Checks, the types of frames and
the tables of data/README.md follow from these.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, get_args

import pandas as pd
import pyarrow as pa

from attnlab.base import texts
from attnlab.runs import methods, metrics
from attnlab.runs.schema import MOMENTS, STATUSES, Row
from attnlab.study.studies import Timing

DTYPES = {pa.string(): ("str", "str"), pa.bool_(): ("bool", "boolean"), pa.float64(): ("float64", "Float64")} | {
    pa.int64(): ("int64", "Int64"),
    pa.int32(): ("int32", "Int32"),
}
"""The pandas types of a column in which every row has a value, and of one in which a row may have none."""


def dtype(field: pa.Field) -> str:
    """The pandas type of a column."""
    return DTYPES[field.type][field.nullable]


def about(field: pa.Field, what: str) -> str:
    """An entry of a field's metadata: `means`, `values`, `least`, `pattern`, `key`, `free`; empty without one."""
    return (field.metadata or {}).get(what.encode(), b"").decode()


def key(table: pa.Schema) -> list[str]:
    """The columns that together name a row: no 2 rows share them all."""
    return [field.name for field in table if about(field, "key")]


def free(table: pa.Schema) -> list[str]:
    """The columns with free texts, such as messages. They are stored as `texts.printable`, which terminals can show."""
    return [field.name for field in table if about(field, "free")]


def frame_of(table: pa.Schema, rows: Sequence[Row]) -> pd.DataFrame:
    """A frame of rows for recording: with all columns of the table, typed even if all values are missing."""
    plain = [row | {name: texts.printable(row[name]) for name in free(table) if row.get(name)} for row in rows]
    made = pd.DataFrame(plain, columns=table.names)
    return made.astype({field.name: dtype(field) for field in table if field.nullable or made.empty})


# Columns by their values


def _column(kind: pa.DataType, values: str, name: str, means: str, empty: bool = False, **limits: Any) -> pa.Field:
    metadata = {"means": means, "values": values.format(**limits), **limits}
    return pa.field(name, kind, nullable=empty, metadata={what: str(value) for what, value in metadata.items()})


_whole = partial(_column, pa.int64(), "a whole number of at least {least}", least=0)
_reading = partial(_column, pa.int32(), "a whole number of at least {least}", empty=True)
_number = partial(_column, pa.float64(), "a finite number of at least {least:g}", least=0)
_latency = partial(_number, least=1e-3)  # no call takes less than a nanosecond
_error = partial(_column, pa.float64(), "a number of at least 0", least=0, infinite="yes")
_flag = partial(_column, pa.bool_(), "true or false")
_name = partial(_column, pa.string(), "a name of letters, digits, '_', '.', '-' and blanks", pattern=r"\w[\w. -]*")
_text = partial(_column, pa.string(), "a text", free="yes")
_source = partial(_column, pa.string(), "a text that is not empty", free="yes", pattern="(?s).+")


def _choice(choices: Collection[str], name: str, means: str, values: str = "", **limits: Any) -> pa.Field:
    pattern = "|".join(choice.replace(".", r"\.") for choice in choices)
    return _column(pa.string(), values or f"one of {', '.join(choices)}", name, means, pattern=pattern, **limits)


def _table(rows: str, *columns: pa.Field) -> pa.Schema:
    return pa.schema(columns, metadata={"rows": rows})


# Columns of several tables

IMPLEMENTATION = _name("implementation", "name; `control.<baseline>`: the baseline's second turn", key=True)
AXES = (
    _whole("batch", "B", least=1, key=True),
    _whole("heads", "H, heads of queries", least=1, key=True),
    _whole("seq_len", "S, tokens of queries", least=1, key=True),
    _whole("head_dim", "D", least=1, key=True),
    _flag("causal", "causal mask", key=True),
    _name("dtype", "of Q, K, V and O", key=True),
    _whole("kv_heads", "heads of keys and values", least=1, key=True),
    _whole("kv_len", "tokens of keys and values", least=1, key=True),
    _name("lengths", "`equal`, or `spread` or a law (varlen)", key=True),
    _name("direction", "`forward`, `training` (with backward) or `backward` (alone)", key=True),
    _name("layout", "`heads first` (BHSD) or `tokens first` (BSHD)", key=True),
    _number("scale", "factor of the scores; 0 for 1/√D", key=True),
    _name("values", "input distribution", key=True),
)
REPLICATE = _whole("replicate", "from 0", key=True)
PROCESS = _name("process", "random name of the measuring process")
SHARED = (IMPLEMENTATION, *AXES, REPLICATE, PROCESS)
"""Columns that most tables have."""
CLOCK = _choice(get_args(Timing.model_fields["clock"].annotation), "clock", "[method](../docs/method.md)", key=True)
CACHE = _choice(get_args(Timing.model_fields["cache"].annotation), "cache", "L2 when a sample begins", key=True)
SM_CLOCK = _reading("sm_clock_mhz", "SM clock by NVML", least=1)
POWER = _number("power_w", "power by NVML", empty=True)
TEMPERATURE = _reading("temperature_c", "temperature by NVML", least=-273)
THROTTLED = _flag("throttled", "the card held its clock back", empty=True)
METRIC = _choice(
    metrics.RECORDED, "metric", "counter of Nsight Compute, or reading of the canary", "a recorded metric", key=True
)
WHY = _text("why", "reason for a missing value", empty=True)

SAMPLES = _table(
    "a row per timed latency",
    *(IMPLEMENTATION, *AXES, CLOCK, CACHE, REPLICATE, PROCESS),
    _whole("round", "within the replicate", key=True),
    _whole("position", "turn in the round's random order"),
    _number("started_s", "start since the process began, to 8 µs"),
    _whole("launches", "calls in one timing; the latency is their mean", least=1),
    _latency("latency_us", "the sample"),
    _error("strain", "error of the timed output, in units of the allowed error", empty=True),
    *(SM_CLOCK, POWER, TEMPERATURE),
    _whole("throttle_reasons", "NVML's bits", empty=True),
    THROTTLED,
)
CHECKS = _table(
    "a row per correctness check",
    *SHARED,
    _choice(MOMENTS, "moment", "before or after timing", key=True),
    _name("inputs", "the shape's `values`, `large logits` or `constant rows`", key=True),
    _column(
        *(pa.string(), "`call` or `graph of N`", "route", "a call, or a graph replay"),
        pattern=r"call|graph of [1-9][0-9]*",
        key=True,
    ),
    _error("max_error", "largest absolute error against float64"),
    _error("mean_error", "mean absolute error"),
    _error("framework_max_error", "of PyTorch's own operations in this dtype"),
    _error("framework_mean_error", "of the same"),
    _error("allowed_max_error", "the check's limit; empty in converted runs", empty=True),
    _error("allowed_mean_error", "the check's limit", empty=True),
    _error("drawn_rms_error", "RMS error of O against float64 of the values as drawn", empty=True),
    _error("drawn_max_error", "largest such error", empty=True),
    _whole("differing", "elements that differ between runs on the same inputs", empty=True),
    _flag("passed", "the check passed"),
)
CASES = _table(
    "a row per case and replicate",
    *SHARED,
    _choice(STATUSES, "status", "outcome"),
    _text("reason", "of any other status than `measured`"),
    _text("kernels", "kernels that ran, the longest first"),
    _whole("peak_memory_bytes", "most memory allocated during a call"),
    _whole("warmup_calls", "calls before timing"),
    _flag("steady", "2 windows of these agreed"),
    _whole("alone_differing", "elements that differ when a sequence runs alone", empty=True),
)
PROCESSES = _table(
    "a row per process",
    *(_name("process", "its random name", key=True), REPLICATE),
    _number("setup_seconds", "time before the first shape"),
    _text("card", "start of the SHA-256 of the card's UUID", empty=True),
    _flag("ecc", "ECC is on", empty=True),
    _number("power_limit_w", "the card's power limit", least=1e-3, empty=True),
    _flag("persistence", "persistence mode is on", empty=True),
    _flag("mig", "MIG is on", empty=True),
    _text("cpu", "model of the CPU", empty=True),
    _text("governor", "frequency governor of the CPU", empty=True),
    _text("host", "start of the SHA-256 of the host's name", empty=True),
)
RESOURCES = _table(
    "a row per case of a kernel of the ladder, and replicate",
    *SHARED,
    _source("function", "compiled instance"),
    _name("architecture", "target architecture"),
    _whole("registers", "per thread"),
    _whole("local_bytes", "per thread"),
    _whole("static_shared_bytes", "per CTA"),
    _whole("dynamic_shared_bytes", "per CTA"),
    _whole("threads", "per CTA", least=1),
    _whole("ctas", "CTAs launched", least=1),
    _whole("ctas_per_sm", "CTAs that fit a multiprocessor", least=1),
)
PROFILE = _table(
    "a row per kernel launch and metric of one call",
    *(IMPLEMENTATION, *AXES),
    _source("function", "name of the kernel"),
    _whole("launch", "number of the launch in the call", key=True),
    METRIC,
    _text("unit", "of the value"),
    _number("value", "the reading"),
)
STREAM = _table(
    "a row per call of a stream of requests",
    *SHARED,
    _whole("position", "number of the request in the replicate", key=True),
    _latency("latency_us", "until the output is there, by the host's clock"),
    _latency("host_us", "until the call returns"),
)
PANEL = _table(
    "a row per case, clock method and round",
    *(IMPLEMENTATION, *AXES),
    _choice((*methods.WARM, *methods.COLD), "method", "see `lib/attnlab/runs/methods.py`", key=True),
    _whole("round", "among the methods of one process", empty=True, key=True),
    _latency("latency_us", "the sample", empty=True),
    *(SM_CLOCK, WHY),
)
RESIDENCY = _table(
    "a row per case, timing, round and metric: contents of the L2 at the start of a sample",
    *(IMPLEMENTATION, *AXES, CLOCK, CACHE),
    _whole("round", "from 0", empty=True, key=True),
    METRIC,
    _text("unit", "of the value", empty=True),
    _number("value", "the reading", empty=True),
    WHY,
)
ENDURANCE = _table(
    "a row per slice of a load without pause",
    *(IMPLEMENTATION, *AXES),
    _number("started_s", "end of the slice since the load began", empty=True, key=True),
    _latency("latency_us", "of a call in the slice", empty=True),
    *(SM_CLOCK, POWER, TEMPERATURE, THROTTLED, WHY),
)
TABLES = {"samples": SAMPLES, "checks": CHECKS, "cases": CASES, "processes": PROCESSES, "resources": RESOURCES}
TABLES |= {"profile": PROFILE, "stream": STREAM, "panel": PANEL, "residency": RESIDENCY, "endurance": ENDURANCE}
"""Every table of a run, by its name."""
