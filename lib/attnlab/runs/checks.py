"""Checks of a run: the schema of each table, and relations among tables, study and manifest.

They find bugs of the code that writes runs, and accidental edits. They don't detect forgery: a run whose latencies are
all scaled and that is sealed again passes. A run that was closed early, or is still being measured, may lack shapes. It
may have samples of a shape whose cases were not recorded. Its rows of a case and timing are complete.
"""

import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from attnlab.base import paths, texts
from attnlab.base.errors import UserError
from attnlab.runs import schema
from attnlab.runs.tables import DTYPES, TABLES, about, dtype, free, key
from attnlab.study import studies
from attnlab.study.shapes import Shape, shape_of
from attnlab.study.studies import Study
from attnlab.study.values import NORMAL

Tables = Mapping[str, pd.DataFrame]
Broken = Iterator[tuple[str, pd.DataFrame, Any, str]]
"""A table, rows that it has or lacks, a mask of those that break a rule, and a message about the first of these."""
PLACE = ["file", "row"]
"""2 columns that are added to checked tables: the file of a row, and its number in that file, from 0."""
AXES, TIMING = list(Shape.AXES), list(schema.TIMING)
BLOCK, CASE = [*AXES, "replicate"], [*schema.CASE, "replicate"]
MOST_ALIKE = 5
"""The most samples of a shape and replicate that a coarse clock may make all equal by chance."""
OF_STUDY = ("blocks", "checks", "cases", "resources", "stream")
"""Tables that hold only rows of the study; `blocks` has a row for all samples of a case and timing."""
NULLABLE = {kind: pd.api.types.pandas_dtype(names[1]) for kind, names in DTYPES.items() if kind != pa.string()}
"""By Arrow type, the pandas type that holds missing values without loss."""


def refusal(path: Path, said: str, row: int | None = None) -> UserError:
    """The error for a file of a run that fails a check: its place, the fault and the remedy."""
    advice = _measured_again(path) if path.parent.name == schema.PARTS else "restore the run from where it came from"
    return UserError(f"{paths.shown(path)}{'' if row is None else f', row {row}'}: {said}: {advice}")


def _measured_again(part: Path) -> str:
    """The remedy for a part: to measure its whole shape, or its whole replicate, again."""
    table, block = part.name.rstrip("*").split(".")[:2]
    together = f"{block}.*"
    if table in ("samples", "checks", "cases", "resources"):
        together = f"{schema.of_shape(block)}*"
    elif table == "processes":
        together = block.split("-")[0] + "*"
    again = f"`make measure RUN={part.parent.parent.name}` measures that again"
    return f"delete {paths.shown(part.with_name(f'*.{together}'))}, and {again}"


# The schema


def frame_of_files(files: Mapping[Path, pa.Table], table: pa.Schema, is_judged: bool = False) -> pd.DataFrame:
    """The rows of several files in the columns and types of a schema, and their `PLACE`.

    With `is_judged`, the run has passed before: its rows are not checked again and have no `PLACE`.

    Raises UserError: a column is missing or has another type, or holds an invalid value.
    """
    cast = {path: _cast(held, table, path) for path, held in files.items() if held.num_rows}
    held, names = pa.concat_tables([table.empty_table(), *cast.values()]), list(cast)
    if is_judged:
        return _frame(held, table)
    rows = np.concatenate([np.arange(0), *(np.arange(each.num_rows) for each in cast.values())])
    of_file = np.cumsum(rows == 0) - 1
    for field in table:
        if (row := _first_wrong(held[field.name], field)) >= 0:
            shown = "missing" if (value := held[field.name][row].as_py()) is None else repr(value)
            said = f"{field.name} is {shown} and has to be {about(field, 'values')}"
            raise refusal(names[of_file[row]], said, rows[row])
    return _frame(held, table).assign(file=pd.Categorical.from_codes(of_file, names), row=rows)


def _frame(held: pa.Table, table: pa.Schema) -> pd.DataFrame:
    columns = {}
    for field in table:  # a mapper makes pyarrow store each text as an object
        mapper = NULLABLE.get if field.nullable and field.type in NULLABLE else None
        columns[field.name] = held[field.name].to_pandas(types_mapper=mapper).astype(dtype(field))
    for name in free(table):
        columns[name] = columns[name].map(texts.printable, na_action="ignore").astype(columns[name].dtype)
    return pd.DataFrame(columns)


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
    return pa.Table.from_arrays(columns, schema=table)


def _is_alike(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of type `kind` may be cast to `wanted`: pandas stores a column without values untyped."""
    if pa.types.is_integer(kind):
        return pa.types.is_integer(wanted) or pa.types.is_floating(wanted)
    return kind in (wanted, pa.null()) or (kind, wanted) == (pa.large_string(), pa.string())


def _first_wrong(column: pa.ChunkedArray, field: pa.Field) -> int:
    """The number of the first row with an invalid value; -1 if there is none."""
    right = pc.is_valid(column)
    if least := about(field, "least"):
        right = pc.greater_equal(column, pa.scalar(float(least)).cast(column.type))  # false for NaN
        if pa.types.is_floating(field.type) and not about(field, "infinite"):
            right = pc.and_(right, pc.is_finite(column))
    elif pattern := about(field, "pattern"):  # few distinct texts for many rows
        named = [text for text in column.unique().to_pylist() if text is not None and re.fullmatch(pattern, text)]
        right = pc.is_in(column, pa.array(named, pa.string()))
    right = pc.if_else(pc.is_null(column), field.nullable, right)
    return int(pc.index(right, False).as_py())


# Relations


def judge(tables: Tables, manifest: schema.Manifest, folder: Path) -> None:
    """Raise UserError for the first row that is invalid, or that contradicts another part of the run.

    The tables are those of `frame_of_files`, from files of this folder or from their parts.
    """
    study = studies.recorded(manifest)
    _require_shapes(tables)
    tables = _numbered(tables, study)
    kinds = _broken_among_all, _broken_among_samples, _broken_among_checks, _broken_among_requests
    for table, rows, broken, words in chain.from_iterable(kind(tables, manifest, study) for kind in kinds):
        if not np.any(broken):
            continue
        (first,) = rows[broken].head(1).to_dict("records")
        path = first.get("file")
        if not isinstance(path, Path):  # the row is missing
            block = schema.replicate_key(first.get("replicate", 0))
            named = f"{table}.{block}*" if folder.name == schema.PARTS else f"{table}.parquet"
            path = min(folder.glob(named), default=folder / named)
        raise refusal(path, f"{_named(first)} {words.format(**first)}".lstrip(), first.get("row"))


def _require_shapes(tables: Tables) -> None:
    every = pd.concat([rows[[*AXES, *PLACE]] for rows in tables.values() if set(AXES) <= set(rows)])
    distinct = every.drop_duplicates(AXES)
    for axes, path, row in zip(distinct[AXES].to_dict("records"), distinct["file"], distinct["row"], strict=True):
        try:
            Shape(**axes)
        except ValueError as error:
            raise refusal(path, str(error), row) from None


def _named(row: schema.Row) -> str:
    """The case, replicate and timing of a row in words; those that it lacks are left out."""
    shape = f"at {shape_of(row)}" if "seq_len" in row else ""
    replicate = f"in replicate {row['replicate']}" if "replicate" in row else ""
    timing = f"under {row['clock']} {row['cache']}" if "clock" in row else ""
    said = " ".join(filter(None, [row.get("implementation"), shape, replicate, timing]))
    return said.removeprefix("at ").removeprefix("in ")


def _numbered(tables: Tables, study: Study) -> dict[str, pd.DataFrame]:
    """The tables with 2 more columns: `case`, a number per implementation, shape and replicate; and `block`.

    A block is all cases of a shape and replicate. 2 tables are added: `asked` has the study's cases, including its
    control's; `blocks` has the first sample of each case, timing and process.
    """
    asked = pd.DataFrame([shape.axes for shape in study.shapes])
    for name, values in (("replicate", range(study.replicates)), ("implementation", study.subjects)):
        asked = asked.merge(pd.Series(values, name=name), how="cross")
    of_cases = {"asked": asked} | {table: rows for table, rows in tables.items() if set(CASE) <= set(rows)}
    every = pd.concat([rows[CASE] for rows in of_cases.values()])
    block, case = (every.groupby(names, sort=False).ngroup().to_numpy() for names in (BLOCK, CASE))
    ends = np.cumsum([len(rows) for rows in of_cases.values()])[:-1]
    each = zip(of_cases.items(), np.split(block, ends), np.split(case, ends), strict=True)
    found = {**tables} | {table: rows.assign(block=blocks, case=cases) for (table, rows), blocks, cases in each}
    return found | {"blocks": found["samples"].drop_duplicates(["case", *TIMING, "process"])}


def _are_among(rows: pd.DataFrame, others: pd.DataFrame, on: list[str]) -> np.ndarray:
    """A mask of the rows whose columns `on` equal those of a row of `others`."""
    return pd.MultiIndex.from_frame(rows[on]).isin(pd.MultiIndex.from_frame(others[on]))


def _broken_among_all(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    """Rows that are duplicates or not of the study, and missing cases and processes."""
    cases, closed, due = tables["cases"], manifest.get("closed_early"), tables["asked"]
    is_whole = manifest["complete"] and not closed  # or else a shape may have been cut off before its cases
    for table, columns in TABLES.items():
        rows = tables[table]
        names = ", ".join(name for name in key(columns) if name not in AXES)
        yield table, rows, rows.duplicated(key(columns)), f"has the same {names} as another row"
        if "why" in rows:
            value = "value" if "value" in rows else "latency_us"
            torn = rows[value].isna() != (rows["why"].fillna("") != "")
            yield table, rows, torn, f"has a {value} and a why, or neither"
    processes, of_study = tables["processes"], {table: tables[table] for table in OF_STUDY}
    yield "processes", processes, processes["replicate"] >= study.replicates, "is not of the study"
    for table, rows in of_study.items():
        yield table, rows, ~rows["case"].isin(due["case"]), "is not of the study"
    named = pd.concat([rows[["process", "replicate"]] for rows in of_study.values()]).drop_duplicates()
    unknown = ~_are_among(named, processes, [*named])
    yield "processes", named, unknown, "was measured by the process {process!r}, which is missing"
    due = due[due["implementation"].isin(study.implementations) & (is_whole | due["block"].isin(cases["block"]))]
    yield "cases", due, ~due["case"].isin(cases["case"]), "is missing"
    each = cases.drop_duplicates("block").groupby("replicate").size()
    held = {"replicates": int((each == len(study.shapes)).sum()), "shapes": int(each.sum())}
    other = [(what, n, closed[what]) for what, n in held.items() if closed and n != closed[what]]
    words = "{held} {what} are here, and closed_early in the manifest says {stated}"
    yield "cases", pd.DataFrame(other, columns=["what", "held", "stated"]), [True] * len(other), words
    for table, rows in of_study.items():
        lacking = ~rows["case"].isin(cases["case"]) & (is_whole | rows["block"].isin(cases["block"]))
        yield table, rows, lacking, "is not among the cases"


def _broken_among_samples(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    """Samples with an invalid turn or all equal, and missing rounds."""
    samples, blocks, cases = (tables[table] for table in ("samples", "blocks", "cases"))
    block, turn = ["block", *TIMING], ["case", *TIMING]
    there = [timing for timing in study.timings if str(timing) not in manifest["missing_clocks"]]
    rows = [timing.model_dump() | {"asked": study.rounds(timing)} for timing in there]
    timings = pd.DataFrame(rows, columns=[*TIMING, "asked"])
    yield "samples", blocks, ~_are_among(blocks, timings, TIMING), "is under no timing of this run"
    beyond = samples["position"] >= len(study.subjects)
    yield "samples", samples, beyond, "is at position {position}, beyond the turns of a round"
    taken = samples.duplicated([*block, "round", "position"])
    yield "samples", samples, taken, "is at position {position} of round {round}, where another is"
    ordered = samples.sort_values([*block, "process", "round", "position"])
    backwards = ordered.groupby([*block, "process"], sort=False)["started_s"].diff() < 0
    yield "samples", ordered, backwards, "began in round {round} before the sample before it"
    latencies = samples.groupby(block, sort=False)["latency_us"]
    size, least, most = (latencies.transform(what) for what in ("size", "min", "max"))
    counted = samples.assign(size=size).drop(columns="implementation")
    alike = (size > MOST_ALIKE) & (least == most)
    yield "samples", counted, alike, "holds {size} samples, and all are of {latency_us:g} µs"
    cases = cases[cases["status"] == schema.MEASURED]
    due = pd.concat([blocks, cases.merge(timings[TIMING], how="cross")]).drop_duplicates(turn)
    held = samples.groupby(turn, sort=False)["round"].agg(size="size", last="max").reset_index()
    rounds = due.merge(held, how="left", on=turn).merge(timings, on=TIMING)
    rounds = rounds.assign(size=rounds["size"].fillna(0).astype(int), last=rounds["last"].fillna(-1).astype(int))
    fewer = rounds["case"].isin(cases["case"]) & (rounds["size"] < rounds["asked"])
    wrong = fewer | (rounds["size"] > rounds["asked"]) | (rounds["last"] + 1 != rounds["size"])
    yield "samples", rounds, wrong, "has {size} of {asked} rounds, and the last is round {last}"


def _broken_among_checks(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    """Checks that passed with too large an error, and statuses that don't follow from the checks."""
    checks, samples, cases, blocks = (tables[table] for table in ("checks", "samples", "cases", "blocks"))
    other = (checks["inputs"] != checks["values"]) & ~checks["inputs"].isin(schema.EXTREMES)
    yield "checks", checks, other, "was checked on {inputs!r}, which are neither its values nor an extreme"
    wrong = pd.Series(False, index=checks.index)
    for error in ("max_error", "mean_error"):
        # A converted run lacks the limits: on normal inputs a multiple of the framework's error, on others larger.
        twice = manifest["rules"]["gate_factor"] * checks[f"framework_{error}"]
        allowed = checks[f"allowed_{error}"].fillna(twice.where(checks["inputs"] == NORMAL, math.inf))
        wrong |= (checks[error] > allowed) | (checks[error] == math.inf)
    words = "passed a check with errors of {max_error:.3g} and {mean_error:.3g}, which are too large"
    yield "checks", checks, checks["passed"] & wrong, words
    is_measured = cases["status"] == schema.MEASURED
    measured, failed, case = cases["case"][is_measured], checks[~checks["passed"]], cases["case"]
    timed_anyway = _are_among(blocks, failed[failed["moment"] == schema.BEFORE], ["case", "process"])
    yield "samples", blocks, timed_anyway, "was timed after it failed a check"
    yield "checks", failed, failed["case"].isin(measured), "failed a check and counts as measured"
    after = checks["case"][checks["moment"] == schema.AFTER]
    passed = case.isin(after) & ~case.isin(failed["case"]) & ~is_measured
    yield "cases", cases, passed, "counts as {status}, and passed every check, before and after timing"
    yield "cases", cases, ~case.isin(checks["case"]) & is_measured, "counts as measured, and no check of it is recorded"
    wrong = (samples["strain"] > 1).fillna(False) & samples["case"].isin(measured)
    yield "samples", samples, wrong, "counts as measured, and its strain is {strain:.3g}, above 1"


def _broken_among_requests(tables: Tables, manifest: schema.Manifest, study: Study) -> Broken:
    stream, request = tables["stream"], ["replicate", "position"]
    yield "stream", stream, stream["position"] >= study.stream, "answers request {position}, beyond those of the study"
    due = product(stream["replicate"].unique(), range(study.stream), study.implementations)
    asked = pd.DataFrame(due, columns=[*request, "implementation"])
    yield "stream", asked, ~_are_among(asked, stream, [*asked]), "didn't answer request {position}"
    other = stream["block"] != stream.groupby(request)["block"].transform("first")
    yield "stream", stream, other, "answers request {position}, which is of another shape"
