"""What no run may hold: rules over its tables, its study and its manifest.

They find the bugs of what writes runs, and clumsy edits, but no forger: whoever scales every latency and seals the run
again passes.

A run that is complete holds every shape of its study in every replicate. One that was closed early, or that is still
being measured, may lack shapes, and may hold blocks of samples of a shape whose cases were not recorded any more; what
it holds of a case and timing is whole.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from attnlab.runs import schema
from attnlab.runs.held import Rows
from attnlab.study import studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing
from attnlab.study.values import NORMAL

AXES, TIMING = list(Shape.AXES), list(schema.TIMING)
BLOCK, FATE = [*AXES, "replicate"], [*schema.CASE, "replicate"]
TIMED = [*FATE, *TIMING]
BLOCKS = "blocks"
"""The samples, a row for each case, timing and process: what holds for all samples of a block is looked at there."""
MOST_ALIKE = 5
"""Samples of one shape and replicate that may all be the same by chance, by a coarse clock."""
OF_STUDY = (BLOCKS, "checks", "cases", "resources", "stream")
"""Tables that hold nothing but what the study asks for."""


class OfStudy:
    """The tables of a run of a study, and what its manifest says that they hold.

    Attributes:
        whole: whether every shape of the study has to be there.
    """

    def __init__(self, tables: Mapping[str, Rows], manifest: schema.Manifest) -> None:
        samples = tables["samples"]
        blocks = replace(samples, frame=samples.frame.drop_duplicates([*TIMED, "process"]))
        self.tables, self.manifest = {**tables, BLOCKS: blocks}, manifest
        self.study, self.closed = studies.recorded(manifest), manifest.get("closed_early")
        self.whole = bool(manifest["complete"] and not self.closed)

    def __getitem__(self, table: str) -> pd.DataFrame:
        return self.tables[table].frame

    @cached_property
    def asked(self) -> pd.DataFrame:
        """Every case and replicate of the study, those of the control too."""
        subjects = pd.DataFrame({"implementation": self.study.subjects})
        replicates = pd.DataFrame({"replicate": range(self.study.replicates)})
        shapes = pd.DataFrame([shape.axes for shape in self.study.shapes])
        return shapes.merge(replicates, how="cross").merge(subjects, how="cross")

    @cached_property
    def due(self) -> pd.DataFrame:
        """The cases that have to be here: of a run that isn't whole, those of each shape and replicate that has one."""
        uncontrolled = self.asked[self.asked["implementation"].isin(self.study.implementations)]
        return uncontrolled if self.whole else semi_join(uncontrolled, self["cases"], BLOCK)

    @cached_property
    def timings(self) -> pd.DataFrame:
        """The timings for which there was a clock, with the rounds that each was asked for."""
        there = [timing for timing in self.study.timings if str(timing) not in self.manifest["missing_clocks"]]
        rows = [timing.model_dump() | {"asked": self.study.rounds(timing)} for timing in there]
        return pd.DataFrame(rows, columns=[*TIMING, "asked"])

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The cases that count as measured."""
        return self["cases"][self["cases"]["status"] == schema.MEASURED]

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """How many rounds each case has under each timing, how many were asked for, and the number of the last."""
        held = self["samples"].groupby(TIMED, sort=False)["round"].agg(["size", "max"]).reset_index()
        due = self.measured[FATE].assign(measured=True).merge(self.timings[TIMING], how="cross")
        counted = due.merge(held, how="outer", on=TIMED).merge(self.timings, on=TIMING)
        return counted.assign(size=counted["size"].fillna(0).astype(int), last=counted["max"].fillna(-1).astype(int))

    def key(self, row: schema.Row) -> str:
        """The key of the block that a row is of; empty where it is of none."""
        if "clock" in row:
            timing = Timing(clock=row["clock"], cache=row["cache"])
            return schema.block_key(self.study, _shape(row), row["replicate"], timing)
        if "seq_len" in row:
            return schema.shape_key(self.study, _shape(row), row["replicate"])
        return schema.replicate_key(row["replicate"]) if "replicate" in row else ""


@dataclass(frozen=True)
class Rule:
    """Something that no run may hold.

    Attributes:
        tables: where it is seen.
        words: what is said of it, filled in from the columns of the first row.
        broken: the rows of a table that it holds of, or rows with other columns, which say what the table lacks.
    """

    tables: tuple[str, ...]
    words: str
    broken: Callable[[OfStudy, pd.DataFrame], pd.DataFrame]

    def require(self, facts: OfStudy) -> None:
        """Raise UserError at the first row that a run may not hold, or that it lacks."""
        for rows in map(facts.tables.__getitem__, self.tables):
            broken = self.broken(facts, rows.frame)
            if not broken.empty:
                first = broken.head(1).to_dict("records")[0]
                said = f"{_named(first)} {self.words.format(**first)}".lstrip()
                if set(rows.table.names) <= set(broken.columns):
                    raise rows.refusal(said, broken.index[0])
                raise rows.refusal(said, key=facts.key(first))


def require(tables: Mapping[str, Rows], manifest: schema.Manifest) -> None:
    """Raise UserError at the first rule that a run breaks."""
    held = OfStudy(tables, manifest)
    for rule in RULES:
        rule.require(held)


def semi_join(rows: pd.DataFrame, others: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """The rows whose columns are those of a row of `others`."""
    return rows[_found(rows, others, on)]


def anti_join(rows: pd.DataFrame, others: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """The rows whose columns are those of no row of `others`."""
    return rows[~_found(rows, others, on)]


def _found(rows: pd.DataFrame, others: pd.DataFrame, on: list[str]) -> pd.Series:
    known = rows[on].merge(others[on].drop_duplicates().assign(found=True), how="left", on=on)
    return known["found"].notna().set_axis(rows.index)


def _named(row: schema.Row) -> str:
    """The case, replicate and timing of a row, in words, as far as it has them."""
    shape = f"at {_shape(row)}" if "seq_len" in row else ""
    replicate = f"in replicate {row['replicate']}" if "replicate" in row else ""
    timing = f"under {row['clock']} {row['cache']}" if "clock" in row else ""
    said = " ".join(filter(None, [row.get("implementation"), shape, replicate, timing]))
    return said.removeprefix("at ").removeprefix("in ")


def _shape(row: schema.Row) -> Shape:
    return Shape(**{axis: row[axis] for axis in AXES})


# What rules look for


def _with_or_without(column: str) -> Callable[[OfStudy, pd.DataFrame], pd.DataFrame]:
    """Rows that hold both a value and a reason why there is none, or neither."""
    return lambda run, rows: rows[rows[column].isna() != (rows["why"].fillna("") != "")]


def _without_case(run: OfStudy, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of a case that isn't there; its shape may have been cut off as a whole."""
    lacking = anti_join(rows, run["cases"], FATE)
    return lacking if run.whole else semi_join(lacking, run["cases"], BLOCK)


def _other_than_closed(run: OfStudy, cases: pd.DataFrame) -> pd.DataFrame:
    each = cases[BLOCK].drop_duplicates().groupby("replicate").size()
    held = {"replicates": int((each == len(run.study.shapes)).sum()), "shapes": int(each.sum())}
    rows = [{"what": what, "held": count, "stated": run.closed[what]} for what, count in held.items() if run.closed]
    return pd.DataFrame([row for row in rows if row["held"] != row["stated"]])


def _missing_processes(run: OfStudy, processes: pd.DataFrame) -> pd.DataFrame:
    who = ["process", "replicate"]
    return anti_join(pd.concat([run[table][who].drop_duplicates() for table in OF_STUDY]), processes, who)


def _failed_before(run: OfStudy) -> pd.DataFrame:
    return run["checks"][~run["checks"]["passed"] & (run["checks"]["moment"] == schema.BEFORE)]


def _same_turn(*block: str) -> Callable[[OfStudy, pd.DataFrame], pd.DataFrame]:
    """Samples of a block, which has these columns in common, that took a turn that another took."""
    return lambda run, samples: samples[samples.duplicated([*block, "round", "position"])]


def _backwards(run: OfStudy, samples: pd.DataFrame) -> pd.DataFrame:
    """Samples that began before the one that took its turn before them."""
    block = samples.groupby([*BLOCK, *TIMING, "process"], sort=False).ngroup()
    ordered = samples.assign(block=block).sort_values(["block", "round", "position"])
    return ordered[ordered.groupby("block")["started_s"].diff() < 0]


def _constant(run: OfStudy, samples: pd.DataFrame) -> pd.DataFrame:
    """Blocks of `MOST_ALIKE` samples and more that are all the same, of whatever implementation."""
    held = samples.groupby([*BLOCK, *TIMING], sort=False)["latency_us"].agg(["size", "min", "max"]).reset_index()
    return held[(held["size"] > MOST_ALIKE) & (held["min"] == held["max"])]


def _failed_in_nothing(run: OfStudy, cases: pd.DataFrame) -> pd.DataFrame:
    """Cases that count as not measured, though they were checked after timing, and no check failed."""
    after = run["checks"][run["checks"]["moment"] == schema.AFTER]
    unmeasured = semi_join(cases[cases["status"] != schema.MEASURED], after, FATE)
    return anti_join(unmeasured, run["checks"][~run["checks"]["passed"]], FATE)


def _other_rounds(run: OfStudy, _: pd.DataFrame) -> pd.DataFrame:
    """Cases that were measured with fewer rounds than were asked for, and any with more."""
    rounds = run.rounds
    fewer = rounds["measured"].notna() & (rounds["size"] < rounds["asked"])
    return rounds[fewer | (rounds["size"] > rounds["asked"])]


def _too_far_off(run: OfStudy, checks: pd.DataFrame) -> pd.DataFrame:
    wrong = pd.Series(False, index=checks.index)
    for error in ("max_error", "mean_error"):
        # A run that doesn't record what is allowed was judged by the framework's error alone on normal inputs, and on
        # others by the rounding of large scores, where it allows more.
        twice = run.manifest["rules"]["gate_factor"] * checks[f"framework_{error}"]
        unrecorded = twice.where(checks["inputs"] == NORMAL, math.inf)
        wrong |= checks[error] > checks[f"allowed_{error}"].fillna(unrecorded)
        wrong |= checks[error] == math.inf
    return checks[checks["passed"] & wrong]


def _unanswered(run: OfStudy, stream: pd.DataFrame) -> pd.DataFrame:
    requests = pd.DataFrame({"position": range(run.study.stream)})
    names = pd.DataFrame({"implementation": run.study.implementations})
    due = stream[["replicate"]].drop_duplicates().merge(requests, how="cross").merge(names, how="cross")
    return anti_join(due, stream, ["replicate", "position", "implementation"])


def _of_another_shape(run: OfStudy, stream: pd.DataFrame) -> pd.DataFrame:
    first = stream.drop_duplicates(["replicate", "position"])
    return anti_join(stream, first, [*BLOCK, "position"])


RULES = (
    Rule(
        (*OF_STUDY, "processes"),
        "is not of the study",
        lambda run, rows: anti_join(rows, run.asked, [name for name in FATE if name in rows]),
    ),
    Rule((BLOCKS,), "is under no timing of this run", lambda run, rows: anti_join(rows, run.timings, TIMING)),
    Rule(("processes",), "was measured by the process {process!r}, which is missing", _missing_processes),
    Rule(
        ("samples",),
        "is at position {position}, beyond the turns of a round",
        lambda run, samples: samples[samples["position"] >= len(run.study.subjects)],
    ),
    Rule(("samples",), "is at position {position} of round {round}, where another is", _same_turn(*BLOCK, *TIMING)),
    Rule(("samples",), "began in round {round} before the sample before it", _backwards),
    Rule(("samples",), "holds {size} samples, and all are of {min:g} µs", _constant),
    Rule(("panel", "endurance"), "has a latency_us and a why, or neither", _with_or_without("latency_us")),
    Rule(("residency",), "has a value and a why, or neither", _with_or_without("value")),
    Rule(("cases",), "is missing", lambda run, cases: anti_join(run.due, cases, FATE)),
    Rule(("cases",), "{held} {what} are here, and closed_early in the manifest says {stated}", _other_than_closed),
    Rule(OF_STUDY, "is not among the cases", _without_case),
    Rule(
        (BLOCKS,),
        "was timed after it failed a check",
        lambda run, rows: semi_join(rows, _failed_before(run), [*FATE, "process"]),
    ),
    Rule(("samples",), "has {size} of {asked} rounds", _other_rounds),
    Rule(
        ("samples",),
        "has {size} of {asked} rounds, and not the first ones",
        lambda run, _: run.rounds[run.rounds["last"] + 1 != run.rounds["size"]],
    ),
    Rule(
        ("checks",),
        "was checked on {inputs!r}, which are neither its values nor an extreme",
        lambda run, checks: checks[(checks["inputs"] != checks["values"]) & ~checks["inputs"].isin(schema.EXTREMES)],
    ),
    Rule(
        ("checks",),
        "passed a check with errors of {max_error:.3g} and {mean_error:.3g}, which are too large",
        _too_far_off,
    ),
    Rule(
        ("checks",),
        "failed a check and counts as measured",
        lambda run, checks: semi_join(checks[~checks["passed"]], run.measured, FATE),
    ),
    Rule(("cases",), "counts as {status}, and passed every check, before and after timing", _failed_in_nothing),
    Rule(
        ("cases",),
        "counts as measured, and no check of it is recorded",
        lambda run, _: anti_join(run.measured, run["checks"], FATE),
    ),
    Rule(
        ("samples",),
        "counts as measured, and its strain is {strain:.3g}, above 1",
        lambda run, samples: semi_join(samples[(samples["strain"] > 1).fillna(False)], run.measured, FATE),
    ),
    Rule(
        ("stream",),
        "answers request {position}, beyond those of the study",
        lambda run, stream: stream[stream["position"] >= run.study.stream],
    ),
    Rule(("stream",), "didn't answer request {position}", _unanswered),
    Rule(("stream",), "answers request {position}, which is of another shape", _of_another_shape),
)
"""What no run may hold."""
