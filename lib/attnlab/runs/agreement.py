"""Whether the tables of a run agree with its study and with each other.

A run that is complete holds every shape of its study in every replicate. One that was closed early, or that is still
being measured, may lack shapes, and may hold blocks of samples of a shape whose cases were not recorded any more; what
it holds of a case and timing is whole.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from attnlab.runs.columns import BEFORE
from attnlab.runs.schema import CASE, EXTREMES, MEASURED, Manifest, block_key, replicate_key, shape_key
from attnlab.runs.table import OF_SHAPE, Table
from attnlab.study import studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, Timing
from attnlab.study.values import NORMAL

FATE = [*CASE, "replicate"]
BLOCK = [*Shape.AXES, "replicate"]
TIMED = [*FATE, "clock", "cache"]
TYPES = {
    **dict.fromkeys(("round", "position"), "Int64"),
    **dict.fromkeys(("batch", "heads", "seq_len", "head_dim", "kv_heads", "kv_len", "replicate"), "int64"),
    **dict.fromkeys(("causal", "passed"), "bool"),
    **dict.fromkeys(("max_error", "mean_error", "framework_max_error", "framework_mean_error", "scale"), "float64"),
    **dict.fromkeys(
        ("implementation", "dtype", "lengths", "direction", "layout", "values", "process", "clock", "cache", "status"),
        "str",
    ),
    "strain": "Float64",
}
"""Types under which columns of different tables are compared; an empty table has none of its own."""
OF_STUDY = (*OF_SHAPE, "stream")
"""Tables that hold nothing but what the study asks for."""
WITH_REASONS = {"panel": "latency_us", "residency": "value", "endurance": "latency_us"}
"""Tables in which a row holds this value, or says why there is none."""


def require(tables: Mapping[str, Table], manifest: Manifest) -> None:
    """Raise UserError at the first thing in which the tables of a run disagree."""
    study = studies.recorded(manifest)
    whole = bool(manifest["complete"] and not manifest.get("closed_early"))
    tables = {name: _typed(table) for name, table in tables.items()}
    samples, checks, cases = (tables[name] for name in ("samples", "checks", "cases"))
    # What holds for all samples of a block is looked at once a block.
    blocks = replace(samples, frame=samples.frame.drop_duplicates([*TIMED, "process"]))
    of_study = {name: tables[name] for name in OF_STUDY} | {"samples": blocks}
    for table in of_study.values():
        _require_of_study(table, study)
    _require_numbers_below(samples, {"round": study.samples, "position": len(study.subjects)})
    _require_numbers_below(tables["stream"], {"position": study.stream})
    _require_numbers_below(tables["processes"], {"replicate": study.replicates})
    for name, column in WITH_REASONS.items():
        _require_value_or_reason(tables[name], column)
    _require_timings(blocks, study, manifest["missing_clocks"])
    _require_every_implementation(cases, study)
    _require_every_shape(cases, study, manifest, whole)
    for name, table in of_study.items():
        _require_cases(table, cases, whole or name == "stream")
    _require_sampled(blocks, checks)
    _require_rounds(samples, cases, study, manifest)
    _require_checks(checks, cases, manifest)
    _require_strain(samples, cases)
    _require_answers(tables["stream"], study)
    _require_processes(of_study, tables["processes"], study, whole)
    _require_named(of_study, tables["processes"])


def _typed(table: Table) -> Table:
    types = {column: dtype for column, dtype in TYPES.items() if column in table.frame}
    return replace(table, frame=table.frame.astype(types))


def _require_of_study(table: Table, study: Study) -> None:
    """Raise UserError at a row of an implementation, replicate or shape that the study doesn't ask for."""
    if not (other := table.frame[~table.frame["implementation"].isin(study.subjects)]).empty:
        raise table.refusal(f"implementation is {other['implementation'].iloc[0]!r}, not one of the study", _row(other))
    _require_numbers_below(table, {"replicate": study.replicates})
    shapes, distinct = set(study.shapes), table.frame[list(Shape.AXES)].drop_duplicates()
    for row, axes in zip(distinct.index, distinct.to_dict("records"), strict=True):
        if (shape := Shape(**axes)) not in shapes:
            raise table.refusal(f"{shape} is no shape of the study", int(row))


def _require_numbers_below(table: Table, counts: dict[str, int]) -> None:
    """Raise UserError at a row with a number that is not below as many as the study has."""
    for column, count in counts.items():
        if not (beyond := table.frame[table.frame[column] >= count]).empty:
            said = f"{column} is {beyond[column].iloc[0]}, and the study's go up to {count - 1}"
            raise table.refusal(said, _row(beyond))


def _require_value_or_reason(table: Table, column: str) -> None:
    lacks = table.frame[column].isna()
    wrong = table.frame[lacks != (table.frame["why"].fillna("") != "")]
    if not wrong.empty:
        row = _row(wrong)
        said = f"{column} is missing, and why says nothing" if lacks[row] else f"{column} stands beside a why"
        raise table.refusal(said, row)


def _require_timings(samples: Table, study: Study, missing: list[str]) -> None:
    known = {(timing.clock, timing.cache) for timing in study.timings if str(timing) not in missing}
    timings = samples.frame[["clock", "cache"]].drop_duplicates()
    for row, *timing in timings.itertuples():
        if tuple(timing) not in known:
            raise samples.refusal(f"clock and cache are {' '.join(timing)}, which is no timing of this run", int(row))


def _require_every_implementation(cases: Table, study: Study) -> None:
    """Raise UserError where a shape was recorded without one of the implementations."""
    rows = cases.frame[cases.frame["implementation"].isin(study.implementations)]
    for (*axes, replicate), held in rows.groupby(BLOCK, sort=False)["implementation"]:
        if lacking := [name for name in study.implementations if name not in set(held)]:
            shape = Shape(**dict(zip(Shape.AXES, axes, strict=True)))
            said = f"implementation: {lacking[0]} is missing at {shape} in replicate {replicate}"
            raise cases.refusal(said, key=shape_key(study, shape, replicate))


def _require_every_shape(cases: Table, study: Study, manifest: Manifest, whole: bool) -> None:
    """Raise UserError where a run lacks shapes of its replicates that its manifest says it has."""
    held = cases.frame[BLOCK].drop_duplicates()
    each = held.groupby("replicate").size().reindex(range(study.replicates), fill_value=0)
    planned = len(study.shapes)
    if whole and (each < planned).any():
        replicate = int((each < planned).idxmax())
        raise cases.refusal(f"replicate: {replicate} has {each[replicate]} of the study's {planned} shapes")
    if closed := manifest.get("closed_early"):
        found = {"replicates": int((each == planned).sum()), "shapes": len(held)}
        for field, number in found.items():
            if closed[field] != number:
                said = f"replicate: {number} {field} are here, and closed_early in the manifest says {closed[field]}"
                raise cases.refusal(said)


def _require_cases(table: Table, cases: Table, every: bool) -> None:
    """Raise UserError at a row of a case that is not in `cases`.

    Args:
        every: whether every row has to have its case; otherwise it may be of a shape that was cut off.
    """
    lacking = ~_found(table.frame, cases.frame, FATE)
    if not every:
        lacking &= _found(table.frame, cases.frame, BLOCK)
    if lacking.any():
        rows = table.frame[lacking]
        where = f"{_case(rows)} in replicate {rows['replicate'].iloc[0]}"
        raise table.refusal(f"implementation: {where} is not among the cases", _row(rows))


def _require_sampled(blocks: Table, checks: Table) -> None:
    """Raise UserError at a sample by a process in which the case failed a check before it was to be timed."""
    refused = checks.frame[~checks.frame["passed"] & (checks.frame["moment"] == BEFORE)]
    wrong = blocks.frame[_found(blocks.frame, refused, [*FATE, "process"])]
    if not wrong.empty:
        raise blocks.refusal(f"latency_us is of {_case(wrong)}, which failed a check before it was timed", _row(wrong))


def _require_rounds(samples: Table, cases: Table, study: Study, manifest: Manifest) -> None:
    """Raise UserError where a measured case has other rounds than its timing asks for, or another one has gaps.

    Of a shape that has no cases yet, every block of samples is whole.
    """
    there = [timing for timing in study.timings if str(timing) not in manifest["missing_clocks"]]
    each = [timing.model_dump() | {"asked": study.rounds(timing)} for timing in there]
    asked = pd.DataFrame(each, columns=["clock", "cache", "asked"])
    measured = cases.frame.loc[cases.frame["status"] == MEASURED, FATE].assign(measured=True)
    rounds = samples.frame.groupby(TIMED, sort=False)["round"].agg(["size", "max"]).reset_index()
    counted = measured.merge(asked[["clock", "cache"]], how="cross").merge(rounds, how="outer", on=TIMED)
    counted = counted.merge(asked, on=["clock", "cache"])
    size, last = counted["size"].fillna(0), counted["max"].fillna(-1)
    short = counted["measured"].notna() & (size < counted["asked"])
    for wrong, rest in (
        (short | (size > counted["asked"]), "of {} rounds"),
        (last + 1 != size, "of {} rounds, and not the first ones"),
    ):
        if wrong.any():
            found = counted[wrong]
            held = f"{int(size[wrong].iloc[0])} {rest.format(found['asked'].iloc[0])}"
            raise samples.refusal(f"round: {_case(found)} {_under(found)} has {held}", key=_key(found, study))
    blocks = counted.groupby([*BLOCK, "clock", "cache", "asked"], sort=False)["size"].max().reset_index()
    torn = blocks[~_found(blocks, cases.frame, BLOCK) & (blocks["size"] < blocks["asked"])]
    if not torn.empty:
        held = f"{int(torn['size'].iloc[0])} of {torn['asked'].iloc[0]} rounds"
        said = f"round: the block of {_shape(torn)} {_under(torn)} has {held}"
        raise samples.refusal(said, key=_key(torn, study))


def _require_checks(checks: Table, cases: Table, manifest: Manifest) -> None:
    """Raise UserError where a check says that it passed and its errors don't, or disagrees with its case's status."""
    frame, passed = checks.frame, checks.frame["passed"]
    factor = manifest["rules"]["gate_factor"]
    other = frame[(frame["inputs"] != frame["values"]) & ~frame["inputs"].isin(EXTREMES)]
    if not other.empty:
        known = ", ".join([other["values"].iloc[0], *EXTREMES])
        raise checks.refusal(f"inputs is {other['inputs'].iloc[0]!r} and has to be one of {known}", _row(other))
    for error in ("max_error", "mean_error"):
        # On other inputs than normal ones, the rounding of large scores may allow more than the framework's error does.
        allowed = (factor * frame[f"framework_{error}"]).where(frame["inputs"] == NORMAL, math.inf)
        wrong = frame[passed & ((frame[error] == math.inf) | (frame[error] > allowed))]
        if not wrong.empty:
            said = f"passed is True beside a {error} of {wrong[error].iloc[0]:.3g}, which is too large"
            raise checks.refusal(said, _row(wrong))
    measured = cases.frame[cases.frame["status"] == MEASURED]
    wrong = frame[~passed & _found(frame, measured, FATE)]
    if not wrong.empty:
        raise checks.refusal(f"passed is False, and in cases {_case(wrong)} counts as {MEASURED}", _row(wrong))
    wrong = measured[~_found(measured, frame, FATE)]
    if not wrong.empty:
        raise cases.refusal(f"status is {MEASURED!r}, and no check of {_case(wrong)} is recorded", _row(wrong))


def _require_strain(samples: Table, cases: Table) -> None:
    """Raise UserError at a timed output of a measured case that erred by more than is allowed."""
    strained = samples.frame[(samples.frame["strain"] > 1).fillna(False).astype(bool)]
    wrong = strained[_found(strained, cases.frame[cases.frame["status"] == MEASURED], FATE)]
    if not wrong.empty:
        said = f"strain is {wrong['strain'].iloc[0]:.3g}, above 1, and {_case(wrong)} counts as {MEASURED}"
        raise samples.refusal(said, _row(wrong))


def _require_answers(stream: Table, study: Study) -> None:
    """Raise UserError where a request of a stream was not answered by every implementation, at one shape."""
    requests = stream.frame.groupby(["replicate", "position"])
    answers = requests["implementation"].nunique()
    if (answers < len(study.implementations)).any():
        replicate, position = answers[answers < len(study.implementations)].index[0]
        said = f"position: {position} of replicate {replicate} was not answered by every implementation"
        raise stream.refusal(said, key=replicate_key(replicate))
    shapes = requests[list(Shape.AXES)].nunique().max(axis="columns")
    if (shapes > 1).any():
        replicate, position = shapes[shapes > 1].index[0]
        said = f"position: {position} of replicate {replicate} is a request of more than one shape"
        raise stream.refusal(said, key=replicate_key(replicate))
    each = answers.groupby("replicate").size()
    if (each < study.stream).any():
        replicate = int((each < study.stream).idxmax())
        said = f"position: replicate {replicate} has {each[replicate]} of {study.stream} requests"
        raise stream.refusal(said, key=replicate_key(replicate))


def _require_processes(tables: Mapping[str, Table], processes: Table, study: Study, whole: bool) -> None:
    """Raise UserError where a process measured in two replicates, or no process of a replicate is among `processes`."""
    named = processes.frame.set_index("process")["replicate"].to_dict()
    for table in tables.values():
        found = table.frame[["process", "replicate"]].drop_duplicates()
        for row, process, replicate in found.itertuples():
            if named.setdefault(process, replicate) != replicate:
                said = f"replicate is {replicate}, and its process {process!r} measured replicate {named[process]}"
                raise table.refusal(said, int(row))
    held = set(processes.frame["replicate"])
    if whole and (missing := [number for number in range(study.replicates) if number not in held]):
        raise processes.refusal(
            f"replicate: no process of replicate {missing[0]} is here", key=replicate_key(missing[0])
        )


def _require_named(tables: Mapping[str, Table], processes: Table) -> None:
    """Raise UserError where a process that measured is not among `processes`, which it enters before it measures."""
    for table in tables.values():
        if not (other := table.frame[~table.frame["process"].isin(processes.frame["process"])]).empty:
            process, replicate = other[["process", "replicate"]].iloc[0]
            said = f"process: {process!r} is missing, which measured the {table.name} of replicate {replicate}"
            raise processes.refusal(said, key=replicate_key(replicate))


def _found(frame: pd.DataFrame, others: pd.DataFrame, columns: list[str]) -> pd.Series:
    """A mask of the rows of `frame` whose columns are those of a row of `others`."""
    known = frame[columns].merge(others[columns].drop_duplicates(), how="left", on=columns, indicator="found")
    return (known["found"] == "both").set_axis(frame.index)


def _key(frame: pd.DataFrame, study: Study) -> str:
    """The key of the block of samples that the first row is of."""
    row = frame.iloc[0]
    return block_key(study, _shape(frame), row["replicate"], Timing(clock=row["clock"], cache=row["cache"]))


def _row(frame: pd.DataFrame) -> int:
    """The number of the first row in the table that it was taken from."""
    return int(frame.index[0])


def _case(frame: pd.DataFrame) -> str:
    """The case of the first row, in words."""
    return f"{frame['implementation'].iloc[0]} at {_shape(frame)}"


def _under(frame: pd.DataFrame) -> str:
    """The replicate and the timing of the first row, in words."""
    row = frame.iloc[0]
    return f"in replicate {row['replicate']} under {row['clock']} {row['cache']}"


def _shape(frame: pd.DataFrame) -> Shape:
    """The shape of the first row."""
    return Shape(**frame[list(Shape.AXES)].head(1).to_dict("records")[0])
