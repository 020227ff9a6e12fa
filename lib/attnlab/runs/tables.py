"""The tables of a run and their columns, each declared once.

Types, checks, the tables of data/README.md and the words of an export follow from these entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import pandas as pd

from attnlab.base import texts
from attnlab.base.rules import GATE_FACTOR, STEADY
from attnlab.runs import methods, metrics
from attnlab.runs.kinds import (
    AT_LEAST_0,
    COUNT,
    ERROR,
    FLAG,
    LATENCY,
    NAME,
    POSITIVE,
    SIZE,
    SOURCE,
    TEXT,
    Kind,
    matching,
    one_of,
    whole,
)
from attnlab.runs.schema import MOMENTS, OLDEST, STATUSES, Row
from attnlab.study.studies import Timing
from attnlab.study.values import NORMAL

UNITS = {"_us": "µs", "_s": "s", "_seconds": "s", "_mhz": "MHz", "_w": "W", "_c": "°C", "_bytes": "bytes"}
"""The unit of a column by how its name ends."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        means: what it holds, as data/README.md and the README of an export tell it.
        empty: whether a row may hold nothing.
        key: whether it is one of the columns that together name a row; no two rows share them all.
        since: the version of the layout that it came with; in complete runs before that, every row holds `before`.
    """

    name: str
    kind: Kind
    means: str
    empty: bool = False
    key: bool = False
    since: int = OLDEST
    before: Any = None

    @property
    def dtype(self) -> str:
        """The type of the column in every run."""
        return self.kind.nullable if self.empty else self.kind.dtype

    @property
    def unit(self) -> str:
        """The unit that its name ends with; empty where it has none."""
        return next((unit for end, unit in UNITS.items() if self.name.endswith(end)), "")


@dataclass(frozen=True)
class Table:
    """A table that every run has, whatever it holds so far.

    Attributes:
        rows: what there is a row for.
    """

    name: str
    rows: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.columns]

    @property
    def key(self) -> list[str]:
        """The columns that together name a row."""
        return [column.name for column in self.columns if column.key]

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def frame(self, rows: Sequence[Row]) -> pd.DataFrame:
        """Rows as they are recorded: with all columns, and with types also where nothing is known."""
        plain = [row | {name: texts.printable(row[name]) for name in self._written if row.get(name)} for row in rows]
        made = pd.DataFrame(plain if self._written else rows, columns=self.names)
        return made.astype({each.name: each.dtype for each in self.columns if each.empty or made.empty})

    def typed(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The columns of a frame that holds what it may, with the types that they have in every run."""
        held = frame[self.names].astype({each.name: each.dtype for each in self.columns})
        for name in self._written:  # texts repeat: each is looked at once
            plain = {text: texts.printable(text) for text in held[name].dropna().unique()}
            changed = {text: other for text, other in plain.items() if text != other}
            if changed:
                held[name] = held[name].map(lambda text, to=changed: to.get(text, text), na_action="ignore")
        return held

    @property
    def _written(self) -> list[str]:
        """The columns that hold what others wrote: it may be anything, and files and terminals have to take it."""
        return [column.name for column in self.columns if column.kind in (TEXT, SOURCE)]


IMPLEMENTATION = Column(
    "implementation",
    NAME,
    "its name, [as a study states it](../docs/studies.md#fields); `control.<baseline>` for the baseline's second turn",
    key=True,
)
AXES = (
    Column("batch", SIZE, "B", key=True),
    Column("heads", SIZE, "H, heads of queries", key=True),
    Column("seq_len", SIZE, "S, tokens of queries", key=True),
    Column("head_dim", SIZE, "D", key=True),
    Column("causal", FLAG, "whether a causal mask hides later keys", key=True),
    Column("dtype", NAME, "of Q, K, V and O", key=True),
    Column("kv_heads", SIZE, "heads of keys and values", key=True),
    Column("kv_len", SIZE, "S_kv, tokens of keys and values", key=True),
    Column(
        "lengths", NAME, "`equal`, or `spread`: sequences of different lengths, end to end without padding", key=True
    ),
    Column("direction", NAME, "`forward`, or `training`: forward and backward", key=True),
    Column("layout", NAME, "`heads first`: contiguous; `tokens first`: transposed views of (B, S, H, D)", key=True),
    Column("scale", AT_LEAST_0, "factor of the scores; 0 for 1/√D", key=True),
    Column("values", NAME, "the kind of numbers in Q, K and V", key=True, since=7, before=NORMAL),
)
REPLICATE = Column("replicate", COUNT, "number of the replicate", key=True)
PROCESS = Column(
    "process",
    NAME,
    "random name of the process that measured; a run that was resumed, or shared out among GPUs, may have more "
    "processes than replicates",
)
SHARED = (IMPLEMENTATION, *AXES, REPLICATE, PROCESS)
"""Columns that most tables have."""
CLOCK = Column(
    "clock",
    one_of(get_args(Timing.model_fields["clock"].annotation)),
    "`device`: launch gap removed; `eager`: one call as a program makes it; `cupti`: for how long its kernels ran",
    key=True,
)
CACHE = Column(
    "cache",
    one_of(get_args(Timing.model_fields["cache"].annotation)),
    "`warm` or `cold` L2 where a sample begins",
    key=True,
)
SM_CLOCK = Column("sm_clock_mhz", whole(1, bits=32), "the SM clock, read through NVML once a round", empty=True)
POWER = Column("power_w", AT_LEAST_0, "the power that the card draws, likewise", empty=True)
TEMPERATURE = Column("temperature_c", whole(bits=32), "the card's temperature, likewise", empty=True)
THROTTLED = Column("throttled", FLAG, "whether the card held its clock back", empty=True)
METRIC = Column(
    "metric",
    one_of(metrics.RECORDED, "a counter of Nsight Compute or a reading of the canary"),
    "a counter by Nsight Compute's own name, whose durations are not latencies; or what the canary found of Q, K or V: "
    "lines in the L2, and the cycles that they took",
    key=True,
)
WHY = Column("why", TEXT, "why there is no value, in a row that has none", empty=True)
SAMPLES = Table(
    "samples",
    "a row per timed latency",
    (
        *(IMPLEMENTATION, *AXES, CLOCK, CACHE, REPLICATE, PROCESS),
        Column("round", COUNT, "the round within the replicate", key=True),
        Column("position", COUNT, "the place within the round's random order"),
        Column("started_s", AT_LEAST_0, "when it began, since the process did; from 2026-11-24 on to 8 µs"),
        Column("launches", SIZE, "calls that one timing spans; the latency is their mean"),
        Column("latency_us", LATENCY, "the sample"),
        Column(
            "strain",
            ERROR,
            "the error of what the last of these calls computed, against the "
            "[witness](../docs/method.md#correctness-gate) on the same inputs, in units of what is allowed; a case in "
            "which one is larger than allowed is not `measured`",
            empty=True,
        ),
        *(SM_CLOCK, POWER, TEMPERATURE),
        Column("throttle_reasons", COUNT, "NVML's bits", empty=True),
        THROTTLED,
    ),
)
CHECKS = Table(
    "checks",
    "a row per correctness check",
    (
        *SHARED,
        Column("moment", one_of(MOMENTS), "whether it was made before or after timing", key=True),
        Column("inputs", NAME, "their kind: the shape's `values`, `large logits` or `constant rows`", key=True),
        Column(
            "route",
            matching(r"call|graph of [1-9][0-9]*", "`call` or `graph of N`"),
            "how the output was computed: by a call, or by replaying a graph of several",
            key=True,
        ),
        Column(
            "max_error",
            ERROR,
            "largest absolute error against the float64 oracle, on inputs not seen before, in memory filled with NaN; "
            "in training that of whichever of O, dQ, dK and dV is farthest from its bound; in FP8 against the oracle "
            "of what the e4m3 inputs stand for",
        ),
        Column("mean_error", ERROR, "mean absolute error, likewise"),
        Column(
            "framework_max_error",
            ERROR,
            "largest error of the framework's own low-precision result, in FP8 of its operations that round to e4m3",
        ),
        Column("framework_mean_error", ERROR, "mean error of that result, likewise"),
        Column(
            "allowed_max_error",
            ERROR,
            "the largest error with which the check passes ([method](../docs/method.md#correctness-gate)); where "
            f"it is empty, {GATE_FACTOR:g} times `framework_max_error`, and on other than normal values no less",
            empty=True,
            since=10,
        ),
        Column("allowed_mean_error", ERROR, "the mean error with which it passes, likewise", empty=True, since=10),
        Column(
            "drawn_rms_error",
            ERROR,
            "root of the mean square error of O against the float64 oracle of the inputs as they were drawn, whatever "
            "the implementation rounded them to; empty on extremes",
            empty=True,
            since=9,
        ),
        Column("drawn_max_error", ERROR, "largest such error", empty=True, since=9),
        Column("differing", COUNT, "elements that differ in any bit between runs on the same inputs", empty=True),
        Column("passed", FLAG, "whether the check passed"),
    ),
)
CASES = Table(
    "cases",
    "a row per case and replicate",
    (
        *SHARED,
        Column("status", one_of(STATUSES), "`measured`, or what happened instead"),
        Column("reason", TEXT, "why that happened"),
        Column("kernels", TEXT, "what ran, as the profiler named it, the longest first"),
        Column("peak_memory_bytes", COUNT, "most memory allocated at once during a call"),
        Column("warmup_calls", COUNT, "calls before timing"),
        Column("steady", FLAG, f"whether one window of these agreed with the next within {100 * STEADY:g} %"),
        Column(
            "alone_differing",
            COUNT,
            "elements in which the output of a sequence alone differs in any bit from that in the batch; empty where "
            "there is one sequence, or it was not asked, as in later replicates",
            empty=True,
            since=7,
        ),
    ),
)
PROCESSES = Table(
    "processes",
    "a row per process",
    (
        replace(PROCESS, key=True),
        REPLICATE,
        Column("setup_seconds", AT_LEAST_0, "time before the first shape"),
        Column("card", TEXT, "the start of the SHA-256 of the card's UUID; empty where there is none", empty=True),
        Column("ecc", FLAG, "whether it is on; empty where the card doesn't say", empty=True),
        Column("power_limit_w", POSITIVE, "the limit that the card keeps to", empty=True),
        Column("persistence", FLAG, "whether persistence mode is on, likewise", empty=True),
        Column("mig", FLAG, "whether MIG is on, likewise", empty=True),
        Column("cpu", TEXT, "the CPU's model", empty=True),
        Column("governor", TEXT, "what governs the CPU's clock; empty where nothing says", empty=True),
        Column(
            "host",
            TEXT,
            "the start of the SHA-256 of the host's name; containers on several machines may share it",
            empty=True,
        ),
    ),
)
RESOURCES = Table(
    "resources",
    "a row per case of a kernel of the ladder, and replicate",
    (
        *SHARED,
        Column("function", SOURCE, "what was compiled"),
        Column("architecture", NAME, "for which architecture"),
        Column("registers", COUNT, "needs of a thread, from the driver"),
        Column("local_bytes", COUNT, "likewise"),
        Column("static_shared_bytes", COUNT, "needs of a CTA, from the driver"),
        Column("dynamic_shared_bytes", COUNT, "likewise"),
        Column("threads", SIZE, "threads of a CTA"),
        Column("ctas", SIZE, "CTAs launched"),
        Column("ctas_per_sm", SIZE, "CTAs that a multiprocessor holds at once"),
    ),
)
PROFILE = Table(
    "profile",
    "a row per kernel launch and metric of one call at the target, and where the study asks for it",
    (
        *(IMPLEMENTATION, *AXES),
        Column("function", SOURCE, "the kernel's name"),
        Column("launch", COUNT, "the number of the launch within the call", key=True),
        METRIC,
        Column("unit", TEXT, "of the value"),
        Column("value", AT_LEAST_0, "what was counted"),
    ),
)
STREAM = Table(
    "stream",
    "a row per call of a stream of requests",
    (
        *SHARED,
        Column("position", COUNT, "the number of the request within the replicate", key=True),
        Column("latency_us", LATENCY, "from before the call until its output was there, by the host's clock"),
        Column(
            "host_us", LATENCY, "from before the call until it returned, which on a GPU is before the output is there"
        ),
    ),
)
PANEL = Table(
    "panel",
    "a row per case, method and round: the same calls by every clock at hand",
    (
        *(IMPLEMENTATION, *AXES),
        Column(
            "method",
            one_of([method.name for method in methods.METHODS]),
            "the clock; `lib/attnlab/runs/methods.py` says what one sample of each is",
            key=True,
        ),
        Column(
            "round",
            COUNT,
            "the round in which methods of one process took turns; methods of another process have rounds of their own",
            empty=True,
            key=True,
        ),
        Column("latency_us", LATENCY, "the sample", empty=True),
        replace(SM_CLOCK, means="the SM clock, read after it"),
        WHY,
    ),
)
RESIDENCY = Table(
    "residency",
    "a row per case, clock, cache, round and metric: what the L2 holds where a sample begins",
    (
        *(IMPLEMENTATION, *AXES, CLOCK, CACHE),
        Column("round", COUNT, "the number of the look", empty=True, key=True),
        METRIC,
        Column("unit", TEXT, "of the value", empty=True),
        Column("value", AT_LEAST_0, "what was found there, or what the call then read from memory", empty=True),
        WHY,
    ),
)
ENDURANCE = Table(
    "endurance",
    "a row per slice of a load without pause",
    (
        *(IMPLEMENTATION, *AXES),
        Column(
            "started_s",
            AT_LEAST_0,
            "when the slice ended, since the load began on a card at rest",
            empty=True,
            key=True,
        ),
        Column("latency_us", LATENCY, "of a call in that slice", empty=True),
        replace(SM_CLOCK, means="the SM clock, read while the slice ran"),
        *(POWER, TEMPERATURE, THROTTLED, WHY),
    ),
)
TABLES = {
    table.name: table
    for table in (SAMPLES, CHECKS, CASES, PROCESSES, RESOURCES, PROFILE, STREAM, PANEL, RESIDENCY, ENDURANCE)
}
"""Every table of a run, by its name."""
