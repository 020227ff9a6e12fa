"""What no run may hold: what the schema of a table rules out, and ten relations among tables, study and manifest.

They find the bugs of what writes runs, and clumsy edits, but no forger: whoever scales every latency and seals the run
again passes. A run that was closed early, or that is still being measured, may lack shapes, and may hold samples of a
shape whose cases were not recorded; what it holds of a case and timing is whole.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.runs import schema
from attnlab.runs.tables import about, dtype, key, printable
from attnlab.study import studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, Timing
from attnlab.study.values import NORMAL

Tables = Mapping[str, pd.DataFrame]
"""The tables of a run by name. Rows are indexed by the file that they are in and their number there, from 0."""
Broken = Iterator[tuple[str, pd.DataFrame, str]]
"""Tables, the rows of each that break a rule or that it lacks, and what is said of the first of these."""
AXES, TIMING = list(Shape.AXES), list(schema.TIMING)
BLOCK, FATE = [*AXES, "replicate"], [*schema.CASE, "replicate"]
TIMED = [*FATE, *TIMING]
MOST_ALIKE = 5
"""Samples of one shape and replicate that may all be the same by chance, by a coarse clock."""
OF_STUDY = ("blocks", "checks", "cases", "resources", "stream")
"""Tables that hold nothing but what the study asks for; `blocks` has a row for all samples of a case and timing."""
NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype(), pa.float64(): pd.Float64Dtype()}
NULLABLE |= {pa.bool_(): pd.BooleanDtype()}
"""The pandas types that lose nothing where a value is missing."""
OF_SHAPE = ("samples", "checks", "cases", "resources")
"""Tables with blocks of a shape, which is measured again as a whole."""


def refusal(path: Path, said: str, row: int | None = None) -> UserError:
    """The error of a file of a run that is refused: where it is wrong, what is wrong there, and what to do."""
    advice = _measured_again(path) if path.parent.name == schema.PARTS else "restore the run from where it came from"
    return UserError(f"{paths.shown(path)}{'' if row is None else f', row {row}'}: {said}: {advice}")


def _measured_again(part: Path) -> str:
    """How to have a part measured again: with whatever else is measured with it."""
    table, block = part.name.rstrip("*").split(".")[:2]
    run, together = part.parent.parent.name, f"{block}.*"
    if table in OF_SHAPE:
        together = f"{schema.of_shape(block)}*"
    elif table == "processes":
        together = block.split("-")[0] + "*"
    return f"delete {paths.shown(part.with_name(f'*.{together}'))}, and `make measure RUN={run}` measures that again"


# The schema


def frame_of_files(files: Mapping[Path, pa.Table], table: pa.Schema, is_judged: bool = False) -> pd.DataFrame:
    """The rows of several files in the columns and types of a schema, indexed by file and row.

    Those of a run that is judged, by its seal, are not looked at again, and are not indexed so.

    Raises:
        UserError: a column is missing or has another type, or a value is none that the column may hold.
    """
    if not (files := {path: _cast(held, table, path) for path, held in files.items() if held.num_rows}):
        return table.empty_table().to_pandas().astype({field.name: dtype(field) for field in table})
    names, sizes = list(files), [each.num_rows for each in files.values()]
    held = pa.concat_tables(files.values())
    if is_judged:
        return _frame(held, table)
    place = np.repeat(range(len(names)), sizes), np.concatenate([np.arange(size) for size in sizes])
    for field in table:
        if (row := _first_wrong(held[field.name], field)) >= 0:
            shown = "missing" if (value := held[field.name][row].as_py()) is None else repr(value)
            said = f"{field.name} is {shown} and has to be {about(field, 'values')}"
            raise refusal(names[place[0][row]], said, place[1][row])
    index = pd.MultiIndex(levels=[names, range(max(sizes))], codes=place)
    return _frame(held, table).set_index(index)


def _frame(held: pa.Table, table: pa.Schema) -> pd.DataFrame:
    columns = {}
    for field in table:  # with a mapper, pyarrow makes each text an object
        mapper = NULLABLE.get if field.nullable and field.type in NULLABLE else None
        columns[field.name] = held[field.name].to_pandas(types_mapper=mapper).astype(dtype(field))
    return printable(pd.DataFrame(columns), table)


def _cast(held: pa.Table, table: pa.Schema, path: Path) -> pa.Table:
    columns = []
    for field in table:
        if (there := held.schema.names.count(field.name)) != 1:
            raise refusal(path, f"the column {field.name!r} is {'there twice' if there else 'missing'}")
        column = held[field.name]
        try:
            if not _is_alike(column.type, field.type):
                raise ValueError("a type that may not be cast")
            columns.append(column.cast(field.type))
        except (pa.ArrowException, ValueError):
            said = f"the column {field.name!r} holds {column.type}, and each value has to be {about(field, 'values')}"
            raise refusal(path, said) from None
    return pa.table(columns, names=table.names)


def _is_alike(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one type may stand for another: pandas stores a column of nothing without a type."""
    if pa.types.is_integer(kind):
        return pa.types.is_integer(wanted) or pa.types.is_floating(wanted)
    return kind in (wanted, pa.null()) or (kind, wanted) == (pa.large_string(), pa.string())


def _first_wrong(column: pa.ChunkedArray, field: pa.Field) -> int:
    """The number of the first row whose value a column can't hold; -1 where there is none."""
    right = pc.is_valid(column)
    if least := about(field, "least"):
        right = pc.greater_equal(column, pa.scalar(float(least)))  # which NaN is not
        if pa.types.is_floating(field.type) and not about(field, "infinite"):
            right = pc.and_(right, pc.is_finite(column))
    elif pattern := about(field, "pattern"):  # few texts for many rows
        named = [text for text in column.unique().to_pylist() if text is not None and re.fullmatch(pattern, text)]
        right = pc.is_in(column, pa.array(named, pa.string()))
    right = pc.or_(pc.fill_null(right, False), pc.is_null(column)) if field.nullable else pc.fill_null(right, False)
    return int(pc.index(right, False).as_py())


def require_rows(frame: pd.DataFrame, table: pa.Schema) -> None:
    """Raise UserError at the first row that has no shape, has a value and a reason for having none, or is there twice.

    Args:
        frame: as `frame_of_files` gives it.
    """
    if set(AXES) <= set(table.names):
        distinct = frame[AXES].drop_duplicates()
        for (path, row), axes in zip(distinct.index, distinct.to_dict("records"), strict=True):
            try:
                Shape(**axes)
            except ValueError as error:
                raise refusal(path, str(error), row) from None
    if "why" in table.names:
        value = "value" if "value" in table.names else "latency_us"
        torn = frame[frame[value].isna() != (frame["why"].fillna("") != "")]
        for path, row in torn.index[:1]:
            raise refusal(path, f"has a {value} and a why, or neither", row)
    again = frame[frame.duplicated(key(table))]
    for path, row in again.index[:1]:
        names = [name for name in key(table) if name not in AXES]
        raise refusal(path, f"another row has the same shape, {', '.join(names)}", row)


# Relations


def require(tables: Tables, manifest: schema.Manifest, folder: Path) -> None:
    """Raise UserError at the first relation among tables, study and manifest that a run breaks.

    Args:
        folder: of the tables, or of their parts.
    """
    study = studies.recorded(manifest)
    tables = {**tables, "blocks": tables["samples"].drop_duplicates([*TIMED, "process"])}
    found = (one for relation in RELATIONS for one in relation(tables, manifest, study))
    for table, broken, words in found:
        if not broken.empty:
            first, place = broken.head(1).to_dict("records")[0], broken.index[0]
            said = f"{_named(first)} {words.format(**first)}".lstrip()
            if isinstance(place, tuple):
                raise refusal(place[0], said, place[1])
            name = table.replace("blocks", "samples")
            named = f"{name}.{_key(study, first)}*" if folder.name == schema.PARTS else f"{name}.parquet"
            raise refusal(min(folder.glob(named), default=folder / named), said)


def _key(study: Study, row: schema.Row) -> str:
    """The key of the block that a row is of; empty where it is of none."""
    if "clock" in row:
        timing = Timing(clock=row["clock"], cache=row["cache"])
        return schema.block_key(study, _shape(row), row["replicate"], timing)
    if "seq_len" in row:
        return schema.shape_key(study, _shape(row), row["replicate"])
    return schema.replicate_key(row["replicate"]) if "replicate" in row else ""


def _named(row: schema.Row) -> str:
    """The case, replicate and timing of a row, in words, as far as it has them."""
    shape = f"at {_shape(row)}" if "seq_len" in row else ""
    replicate = f"in replicate {row['replicate']}" if "replicate" in row else ""
    timing = f"under {row['clock']} {row['cache']}" if "clock" in row else ""
    said = " ".join(filter(None, [row.get("implementation"), shape, replicate, timing]))
    return said.removeprefix("at ").removeprefix("in ")


def _shape(row: schema.Row) -> Shape:
    return Shape(**{axis: row[axis] for axis in AXES})


def semi_join(rows: pd.DataFrame, others: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """The rows whose columns are those of a row of `others`."""
    return rows[_has_match(rows, others, on)]


def anti_join(rows: pd.DataFrame, others: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """The rows whose columns are those of no row of `others`."""
    return rows[~_has_match(rows, others, on)]


def _has_match(rows: pd.DataFrame, others: pd.DataFrame, on: list[str]) -> pd.Series:
    known = rows[on].merge(others[on].drop_duplicates().assign(found=True), how="left", on=on)
    return known["found"].notna().set_axis(rows.index)


def _asked(study: Study, names: list[str]) -> pd.DataFrame:
    """Every case and replicate of a study."""
    replicates = pd.DataFrame({"replicate": range(study.replicates)})
    shapes = pd.DataFrame([shape.axes for shape in study.shapes])
    return shapes.merge(replicates, how="cross").merge(pd.DataFrame({"implementation": names}), how="cross")


def _timings(manifest: schema.Manifest, study: Study) -> pd.DataFrame:
    """The timings for which there was a clock, with the rounds that each was asked for."""
    there = [timing for timing in study.timings if str(timing) not in manifest["missing_clocks"]]
    rows = [timing.model_dump() | {"asked": study.rounds(timing)} for timing in there]
    return pd.DataFrame(rows, columns=[*TIMING, "asked"])


def _measured(tables: Tables) -> pd.DataFrame:
    return tables["cases"][tables["cases"]["status"] == schema.MEASURED]


def _is_whole(manifest: schema.Manifest) -> bool:
    """Whether every shape of the study has to be there."""
    return bool(manifest["complete"] and not manifest.get("closed_early"))


def _rows_are_of_the_study(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    asked = _asked(study, study.subjects)
    for table in (*OF_STUDY, "processes"):
        on = [name for name in FATE if name in tables[table]]
        yield table, anti_join(tables[table], asked, on), "is not of the study"
    yield "blocks", anti_join(tables["blocks"], _timings(manifest, study), TIMING), "is under no timing of this run"


def _processes_are_known(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    who = ["process", "replicate"]
    named = pd.concat([tables[table][who].drop_duplicates() for table in OF_STUDY], ignore_index=True)
    lacking = anti_join(named, tables["processes"], who)
    yield "processes", lacking, "was measured by the process {process!r}, which is missing"


def _turns_follow_each_other(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    samples = tables["samples"]
    beyond = samples["position"] >= len(study.subjects)
    yield "samples", samples[beyond], "is at position {position}, beyond the turns of a round"
    taken = samples.duplicated([*BLOCK, *TIMING, "round", "position"])
    yield "samples", samples[taken], "is at position {position} of round {round}, where another is"
    block = samples.groupby([*BLOCK, *TIMING, "process"], sort=False).ngroup()
    ordered = samples.assign(block=block).sort_values(["block", "round", "position"])
    backwards = ordered.groupby("block")["started_s"].diff() < 0
    yield "samples", ordered[backwards], "began in round {round} before the sample before it"


def _latencies_vary(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    held = tables["samples"].groupby([*BLOCK, *TIMING], sort=False)["latency_us"].agg(["size", "min", "max"])
    constant = held[(held["size"] > MOST_ALIKE) & (held["min"] == held["max"])].reset_index()
    yield "samples", constant, "holds {size} samples, and all are of {min:g} µs"


def _cases_are_complete(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    cases, closed, due = tables["cases"], manifest.get("closed_early"), _asked(study, study.implementations)
    if not _is_whole(manifest):
        due = semi_join(due, cases, BLOCK)
    yield "cases", anti_join(due, cases, FATE), "is missing"
    each = cases[BLOCK].drop_duplicates().groupby("replicate").size()
    held = {"replicates": int((each == len(study.shapes)).sum()), "shapes": int(each.sum())}
    other = [(what, n, closed[what]) for what, n in held.items() if closed and n != closed[what]]
    words = "{held} {what} are here, and closed_early in the manifest says {stated}"
    yield "cases", pd.DataFrame(other, columns=["what", "held", "stated"]), words


def _rows_have_their_case(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    for table in OF_STUDY:
        lacking = anti_join(tables[table], tables["cases"], FATE)
        if not _is_whole(manifest):  # the shape may have been cut off before its cases were recorded
            lacking = semi_join(lacking, tables["cases"], BLOCK)
        yield table, lacking, "is not among the cases"


def _rounds_are_complete(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    timings = _timings(manifest, study)
    held = tables["samples"].groupby(TIMED, sort=False)["round"].agg(["size", "max"]).reset_index()
    due = _measured(tables)[FATE].assign(measured=True).merge(timings[TIMING], how="cross")
    rounds = due.merge(held, how="outer", on=TIMED).merge(timings, on=TIMING)
    rounds = rounds.assign(size=rounds["size"].fillna(0).astype(int), last=rounds["max"].fillna(-1).astype(int))
    fewer = rounds["measured"].notna() & (rounds["size"] < rounds["asked"])
    wrong = fewer | (rounds["size"] > rounds["asked"]) | (rounds["last"] + 1 != rounds["size"])
    yield "samples", rounds[wrong], "has {size} of {asked} rounds, and the last is round {last}"


def _passed_checks_are_within_bounds(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    checks = tables["checks"]
    other = (checks["inputs"] != checks["values"]) & ~checks["inputs"].isin(schema.EXTREMES)
    yield "checks", checks[other], "was checked on {inputs!r}, which are neither its values nor an extreme"
    wrong = pd.Series(False, index=checks.index)
    for error in ("max_error", "mean_error"):
        # A converted run lacks what was allowed: on normal inputs a multiple of the framework's error, on others more.
        twice = manifest["rules"]["gate_factor"] * checks[f"framework_{error}"]
        allowed = checks[f"allowed_{error}"].fillna(twice.where(checks["inputs"] == NORMAL, math.inf))
        wrong |= (checks[error] > allowed) | (checks[error] == math.inf)
    words = "passed a check with errors of {max_error:.3g} and {mean_error:.3g}, which are too large"
    yield "checks", checks[checks["passed"] & wrong], words


def _statuses_follow_from_checks(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    checks, samples, measured = tables["checks"], tables["samples"], _measured(tables)
    failed = checks[~checks["passed"]]
    before, after = (checks[checks["moment"] == moment] for moment in schema.MOMENTS)
    timed_anyway = semi_join(tables["blocks"], before[~before["passed"]], [*FATE, "process"])
    yield "blocks", timed_anyway, "was timed after it failed a check"
    yield "checks", semi_join(failed, measured, FATE), "failed a check and counts as measured"
    others = tables["cases"][tables["cases"]["status"] != schema.MEASURED]
    words = "counts as {status}, and passed every check, before and after timing"
    yield "cases", anti_join(semi_join(others, after, FATE), failed, FATE), words
    yield "cases", anti_join(measured, checks, FATE), "counts as measured, and no check of it is recorded"
    wrong = semi_join(samples[(samples["strain"] > 1).fillna(False)], measured, FATE)
    yield "samples", wrong, "counts as measured, and its strain is {strain:.3g}, above 1"


def _requests_are_answered(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    stream, request = tables["stream"], ["replicate", "position"]
    beyond = stream["position"] >= study.stream
    yield "stream", stream[beyond], "answers request {position}, beyond those of the study"
    asked = pd.DataFrame(product(range(study.stream), study.implementations), columns=["position", "implementation"])
    due = stream[["replicate"]].drop_duplicates().merge(asked, how="cross")
    yield "stream", anti_join(due, stream, [*request, "implementation"]), "didn't answer request {position}"
    other = anti_join(stream, stream.drop_duplicates(request), [*BLOCK, "position"])
    yield "stream", other, "answers request {position}, which is of another shape"


RELATIONS = (
    _rows_are_of_the_study,
    _processes_are_known,
    _turns_follow_each_other,
    _latencies_vary,
    _cases_are_complete,
    _rows_have_their_case,
    _rounds_are_complete,
    _passed_checks_are_within_bounds,
    _statuses_follow_from_checks,
    _requests_are_answered,
)
"""What the tables of a run say of each other, in the order in which it is looked at."""
