"""Errors in a run give one line with file and row: a good run, with a change to its tables or its manifest."""

import io
import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import small
import synthetic
from conftest import told
from pyarrow import parquet

from attnlab.base import paths
from attnlab.runs import checks, manifest, methods, metrics, read, schema, write
from attnlab.runs.tables import TABLES, about, frame_of

STUDY = small.study(
    implementations=["sdpa.auto", "sdpa.math"],
    sweeps={"seq_len": small.AXES | {"seq_len": [16, 32]}},
    samples=3,
    replicates=2,
    stream=2,
)
SHAPE = {"implementation": "sdpa.auto", **STUDY.target_shape.axes}
Tables = dict[str, pd.DataFrame]
Run = tuple[Tables, dict[str, Any]]
Spoil = Callable[[Tables, dict[str, Any]], object]
RESTORE = ": restore the run from where it came from"
OTHERS = {
    "stream": [
        SHAPE | {"implementation": name, "replicate": replicate, "process": f"p{replicate}"}
        | {"position": position, "latency_us": 20.5, "host_us": 4.0}
        for replicate in (0, 1) for position in (0, 1) for name in STUDY.implementations
    ],
    "resources": [
        SHAPE | {"replicate": 0, "process": "p0", "function": "f", "architecture": "sm_90", "registers": 40}
        | {"local_bytes": 0, "static_shared_bytes": 0, "dynamic_shared_bytes": 1024}
        | {"threads": 128, "ctas": 4, "ctas_per_sm": 2}
    ],
    "profile": [SHAPE | {"function": "f", "launch": 0, "metric": metrics.DURATION, "unit": "ns", "value": 500.0}],
    "panel": [
        SHAPE | {"method": methods.DEVICE, "round": 0, "latency_us": 2.5, "why": ""},
        SHAPE | {"method": methods.NCU, "why": "not installed"},
    ],
    "residency": [
        SHAPE | {"clock": "eager", "cache": "warm", "round": 0, "metric": metrics.DRAM_READ, "value": 0.0, "why": ""}
    ],
    "endurance": [SHAPE | {"started_s": 0.5, "latency_us": 2.5, "why": ""}, SHAPE | {"why": "no such device"}],
}  # fmt: skip
"""Rows of the tables that only some runs have."""
PARTS = [*small.blocks(STUDY), *((table, "r00", frame_of(TABLES[table], rows)) for table, rows in OTHERS.items())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A data folder with a complete run `one` that has rows in every table. Not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(tmp_path_factory.mktemp("good")))
        cut(*PARTS)
        write.finish("one")
        return schema.folder("one").parent


@pytest.fixture(scope="module")
def good(folder) -> Run:
    """The tables of that run as `judge` takes them, and its manifest. Not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(folder))
        run = read.load("one")
    tables = {table: as_read(table, getattr(run, table)) for table in TABLES}
    assert [table for table, frame in tables.items() if frame.empty] == []
    return tables, run.manifest


@pytest.fixture
def one(folder, data) -> Path:
    """A copy of the run of `folder`."""
    return shutil.copytree(folder / "one", data / "one")


def spoiled(good: Run, *spoils: Spoil) -> Run:
    """A copy of a run with these changes."""
    tables, stated = {table: frame.drop(columns=checks.PLACE) for table, frame in good[0].items()}, deepcopy(good[1])
    for spoil in spoils:
        spoil(tables, stated)
    return tables, stated


def as_read(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    rows = pa.Table.from_pandas(rows, preserve_index=False)
    return checks.frame_of_files({Path(f"one/{name}.parquet"): rows}, TABLES[name])


def judged(good: Run, *spoils: Spoil) -> None:
    """Check a run with these changes, as if it had been read from the folder ``one``."""
    tables, stated = spoiled(good, *spoils)
    same = {name for name, rows in tables.items() if rows.equals(good[0][name].drop(columns=checks.PLACE))}
    read_back = {name: good[0][name] if name in same else as_read(name, rows) for name, rows in tables.items()}
    checks.judge(read_back, stated, Path("one"))


def refused(judge: Callable[[], object]) -> str:
    """The error message about a run, without the path of its folder."""
    return told(judge).removeprefix(f"{paths.shown(Path('one'))}/").removeprefix(f"{schema.folder('one')}/")


# Ways to spoil it


def cell(table: str, row: int, **values: Any) -> Spoil:
    """Change values in one row, by column."""

    def spoil(tables: Tables, manifest: dict[str, Any]) -> None:
        for column, value in values.items():
            changed = tables[table][column].tolist()
            changed[row] = value
            tables[table][column] = changed

    return spoil


def column(table: str, name: str, value: Any) -> Spoil:
    """Set all rows of a column to one value."""
    return lambda tables, manifest: tables[table].__setitem__(name, value)


def keep(table: str, chosen: Callable[[pd.DataFrame], Any]) -> Spoil:
    """Keep only the chosen rows, which may repeat."""
    return lambda tables, manifest: tables.update({table: tables[table].loc[chosen].reset_index(drop=True)})


def stated(field: str, value: Any) -> Spoil:
    """Set a field of the manifest; ... deletes it."""

    def spoil(tables: Tables, manifest: dict[str, Any]) -> None:
        *outer, last = field.split(".")
        place = reduce(dict.__getitem__, outer, manifest)
        place[last] = value
        if value is ...:
            del place[last]

    return spoil


def both(*spoils: Spoil) -> Spoil:
    return lambda tables, manifest: [spoil(tables, manifest) for spoil in spoils]


def in_row(table: str, row: int, said: str, **values: Any) -> tuple[Spoil, str]:
    """Changed values in one row, and the message about that row."""
    return cell(table, row, **values), f"{table}.parquet, row {row}: {said}"


def wrong(table: str, row: int, name: str, value: Any, shown: str) -> tuple[Spoil, str]:
    """A value that its column can't hold, and the message about it."""
    words = about(TABLES[table].field(name), "values")
    return in_row(table, row, f"{name} is {shown} and has to be {words}", **{name: value})


def untyped(table: str, name: str, value: Any, kind: str) -> tuple[Spoil, str]:
    """A column of another type, and the message about it."""
    words = about(TABLES[table].field(name), "values")
    said = f"the column {name!r} holds {kind}, and each value has to be {words}"
    return column(table, name, value), f"{table}.parquet: {said}"


NAN, INFINITE = float("nan"), float("inf")
FIRST = "B=1 H=4 S=16 D=64 full float32"
AUTO, MATH, FLASH = (f"sdpa.{name} at {FIRST} in replicate 0" for name in ("auto", "math", "flash"))
SECOND = MATH.replace("S=16", "S=32")
LARGE = "passed a check with errors of {} and {}, which are too large"
SAME = "has the same implementation, clock, cache, replicate, round as another row"
AUTO_WARM, MATH_WARM = f"{AUTO} under eager warm", f"{MATH} under eager warm"
FAILS = cell("cases", 0, status=schema.FAILED)
UNBOUNDED = {"allowed_max_error": None, "allowed_mean_error": None}
OF_REPLICATES = ("samples", "checks", "cases", "processes", "stream")


ROWS = [
    wrong("samples", 3, "latency_us", NAN, "missing"),
    wrong("samples", 3, "latency_us", INFINITE, "inf"),
    wrong("samples", 3, "latency_us", 1e-9, "1e-09"),
    wrong("samples", 1, "round", -1, "-1"),
    wrong("samples", 1, "round", -(2**62), str(-(2**62))),
    wrong("cases", 0, "status", None, "missing"),
    wrong("cases", 0, "status", "fine", "'fine'"),
    wrong("checks", 0, "inputs", "", "''"),
    wrong("checks", 1, "route", "graph of 0", "'graph of 0'"),
    wrong("checks", 1, "max_error", NAN, "missing"),
    wrong("checks", 1, "differing", -1, "-1"),
    wrong("profile", 0, "metric", "sm__joy.sum", "'sm__joy.sum'"),
    untyped("samples", "latency_us", "fast", "large_string"),
    untyped("samples", "round", 1.5, "double"),
    untyped("cases", "causal", "no", "large_string"),
    untyped("checks", "batch", 1.0, "double"),
    (lambda tables, manifest: tables["checks"].pop("passed"), "checks.parquet: the column 'passed' is missing"),
    in_row("cases", 1, "unknown dtype 'float17'; known are float16, bfloat16, float32, float64", dtype="float17"),
    in_row("residency", 0, f"sdpa.auto at {FIRST} under eager warm has a value and a why, or neither", why="none"),
    (keep("samples", lambda rows: [*rows.index, 1]), f"samples.parquet, row 24: {MATH_WARM} {SAME}"),
    in_row("samples", 3, f"{FLASH} under eager warm is not of the study", implementation="sdpa.flash"),
    in_row("samples", 3, f"{MATH} under eager cold is under no timing of this run", cache="cold"),
    in_row("processes", 1, "replicate 2 is not of the study", replicate=2),
    (
        cell("checks", 2, process="p1"),
        "processes.parquet: replicate 0 was measured by the process 'p1', which is missing",
    ),
    (
        both(*(keep(table, lambda rows: rows["replicate"] == 0) for table in OF_REPLICATES)),
        f"cases.parquet: sdpa.auto at {FIRST} in replicate 1 is missing",
    ),
    in_row("samples", 3, f"control.{AUTO_WARM} is not among the cases", implementation="control.sdpa.auto"),
    in_row("samples", 4, f"{AUTO_WARM} is at position 3, beyond the turns of a round", position=3),
    in_row("samples", 1, f"{MATH_WARM} is at position 0 of round 0, where another is", position=0),
    in_row("samples", 2, f"{AUTO_WARM} began in round 1 before the sample before it", started_s=0.25),
    (
        column("samples", "latency_us", 20.0),
        f"samples.parquet, row 0: {AUTO_WARM.partition(' at ')[2]} holds 6 samples, and all are of 20 µs",
    ),
    (
        both(keep("samples", lambda rows: [*rows.index, 0]), cell("samples", 24, round=3)),
        f"samples.parquet, row 0: {AUTO_WARM} has 4 of 3 rounds, and the last is round 3",
    ),
    (
        keep("samples", lambda rows: rows.index != 2),
        f"samples.parquet, row 0: {AUTO_WARM} has 2 of 3 rounds, and the last is round 2",
    ),
    (cell("samples", 4, round=3), f"samples.parquet, row 0: {AUTO_WARM} has 3 of 3 rounds, and the last is round 3"),
    (
        keep("samples", lambda rows: rows["implementation"] != "sdpa.math"),
        f"cases.parquet, row 1: {MATH_WARM} has 0 of 3 rounds, and the last is round -1",
    ),
    in_row("checks", 0, f"{AUTO} was checked on 'easy', which are neither its values nor an extreme", inputs="easy"),
    in_row("checks", 2, f"{AUTO} {LARGE.format('0.0021', '0.0001')}", max_error=2.1e-3),
    in_row("checks", 2, f"{AUTO} {LARGE.format('0.0021', '0.0001')}", max_error=2.1e-3, **UNBOUNDED),
    in_row("checks", 2, f"{AUTO} {LARGE.format('0.001', 'inf')}", inputs="large logits", mean_error=INFINITE),
    (
        both(FAILS, cell("checks", 0, passed=False)),
        f"samples.parquet, row 0: {AUTO_WARM} was timed after it failed a check",
    ),
    in_row("checks", 2, f"{AUTO} failed a check and counts as measured", passed=False),
    (FAILS, f"cases.parquet, row 0: {AUTO} counts as failed, and passed every check, before and after timing"),
    (
        keep("checks", lambda rows: rows["implementation"] != "sdpa.math"),
        f"cases.parquet, row 1: {MATH} counts as measured, and no check of it is recorded",
    ),
    in_row("samples", 1, f"{MATH_WARM} counts as measured, and its strain is 1.5, above 1", strain=1.5),
    in_row("stream", 2, f"{AUTO} answers request 2, beyond those of the study", position=2),
    (keep("stream", lambda rows: rows.index != 1), "stream.parquet: sdpa.math in replicate 0 didn't answer request 0"),
    in_row("stream", 1, f"{SECOND} answers request 0, which is of another shape", seq_len=32, kv_len=32),
]
FILES = ", ".join(f"{table}.parquet" for table in TABLES)
MANIFESTS = [
    (stated("device.kind", "tpu"), "device.kind: input should be 'cuda' or 'cpu', not 'tpu'"),
    (
        lambda tables, manifest: manifest["files"].update({"../two/samples.parquet": 64 * "0"}),
        f"files: '../two/samples.parquet' is no table of a run; tables are {FILES}",
    ),
    (lambda tables, manifest: manifest["files"].pop("samples.parquet"), "files: samples.parquet is missing"),
    (stated("study.replicates", 0), "study: replicates: input should be greater than or equal to 1, not 0"),
    (stated("environment.packages", {}), "environment.packages: the version of torch is missing"),
    (stated("device.l2_bytes", 2**63), f"device.l2_bytes: input should be less than {2**63}, not {2**63}"),
    (stated("device.threads", ...), "device.threads is missing, and the device is of the kind cpu"),
    (stated("rules.gate_factor", 20.0), "rules.gate_factor: 20.0 is not from 1 to today's 2.0"),
    (stated("clocks.tick_us", None), "the field 'clocks.tick_us' is missing"),
    (stated("surveyed.cpu", ...), "the field 'surveyed.cpu' is missing"),
    (
        stated("order", "2020-01-01T00:00:00+00:00+"),
        "order: '2020-01-01T00:00:00+00:00+' is neither 'created' nor that of a newer run and a '+'",
    ),
    (
        stated("ladder", [synthetic._rung("tiled") | {"after": "tiled"}]),
        "ladder.0: 'tiled' is there twice, or isn't after 'tiled'",
    ),
    (stated("device.name", "<script>"), "device.name: '<script>' has to be plain: letters, digits and signs"),
    (
        stated("closed_early", {"replicates": 1, "shapes": 2, "planned": 5}),
        "closed_early.planned: the study plans 4, not 5",
    ),
]


@pytest.mark.parametrize(("spoil", "said"), ROWS)
def test_rows_that_no_run_can_hold_are_a_line_with_file_and_row(good, spoil, said):
    assert refused(lambda: judged(good, spoil)) == said + RESTORE


@pytest.mark.parametrize(("spoil", "said"), MANIFESTS)
def test_a_manifest_that_no_run_can_have_is_a_line_with_its_field(good, spoil, said):
    _, stated = spoiled(good, spoil)
    line = refused(lambda: manifest.require(stated, "manifest.json"))
    assert line == f"manifest.json: {said}: restore it from where the run came from"


def test_a_good_run_breaks_no_rule(good):
    judged(good)
    # Who failed only after it was timed keeps its samples.
    judged(good, FAILS, cell("checks", 2, passed=False))


def test_at_other_values_checks_are_on_these_or_on_an_extreme(good):
    def other_values(tables: Tables, stated: dict[str, Any]) -> None:
        for block in (stated["study"]["target"], *stated["study"]["sweeps"]["seq_len"]):
            block["values"] = "sink 8"
        for table, frame in tables.items():
            tables[table] = frame.replace("normal", "sink 8")

    judged(good, other_values, cell("checks", 0, inputs=schema.LARGE_LOGITS))
    said = f"was checked on 'normal', which are neither its values nor an extreme{RESTORE}"
    assert refused(lambda: judged(good, other_values, cell("checks", 0, inputs="normal"))).endswith(said)


def test_a_run_that_was_edited_and_sealed_anew_is_held_to_the_same(one):
    def spoil(tables, stated):
        tables["samples"].index = range(100, 124)
        tables["samples"].loc[103, "latency_us"] = -1.0

    small.rewrite("one", spoil)
    # Rows are counted from none, whatever index they have.
    said = f"samples.parquet, row 3: latency_us is -1.0 and has to be a finite number of at least 0.001{RESTORE}"
    assert refused(lambda: read.load("one")) == said
    small.rewrite("one", stated("device.kind", "tpu"))
    said = "manifest.json: device.kind: input should be 'cuda' or 'cpu', not 'tpu': restore it from where the run came"
    assert refused(lambda: read.load("one")).startswith(said)


def test_a_folder_that_was_renamed_is_refused(one):
    one.rename(one.with_name("two"))
    assert refused(lambda: read.load("two")).endswith("is of the run 'one': give the folder that name again")


def stored(rows: pa.Table) -> bytes:
    """Rows as Parquet bytes, with the types of the Arrow table, which pandas might change."""
    parquet.write_table(rows, buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: b"PAR1 not really PAR1", ": it is no table in Parquet"),
        (
            lambda rows: stored(rows.drop(["latency_us"]).append_column("latency_us", [[NAN, NAN]])),
            ", row 0: latency_us is nan and has to be a finite number of at least 0.001",
        ),
        (lambda rows: stored(rows.append_column("why", rows["why"])), ": the column 'why' is there twice"),
    ],
)
def test_what_is_no_table_is_a_line(one, change, said):
    path = one / "panel.parquet"
    path.write_bytes(change(parquet.read_table(path)))
    small.seal("one")
    assert refused(lambda: read.load("one")) == f"panel.parquet{said}{RESTORE}"


def test_a_run_that_was_closed_early_holds_what_it_says(good):
    rest = [keep(t, lambda rows: (rows["replicate"] == 0) | (rows["seq_len"] == 16)) for t in OF_REPLICATES[:3]]
    rest.append(keep("stream", lambda rows: []))
    held = {"replicates": 1, "shapes": 3, "planned": 4}
    judged(good, *rest, stated("closed_early", held))
    for more, said in (({"replicates": 2}, "1 replicates are here, and"), ({"shapes": 4}, "3 shapes are here, and")):
        line = refused(lambda other=held | more: judged(good, *rest, stated("closed_early", other)))
        assert line.startswith(f"cases.parquet: {said} closed_early in the manifest says ")


# A run that is being measured


def cut(*parts: small.Part) -> None:
    """Write an incomplete run that has these blocks."""
    write.create("one", small.manifest(STUDY))
    for part in parts:
        write.add_part("one", *part)


def part_of(table: str, number: int = 0) -> Path:
    return sorted((schema.folder("one") / "parts").glob(f"{table}.*"))[number]


def rewritten(part: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Path:
    """Change the rows of a part, and give its file the name for these rows."""
    rows = change(pd.read_parquet(part))
    rows.to_parquet(part)
    table, key, _, end = part.name.split(".")
    return part.rename(part.with_name(f"{table}.{key}.{schema.short_hash(part.read_bytes())}.{end}"))


def in_its_part(spoiled: Path) -> str:
    """The error message about a run, without the path of this part and the remedy."""
    said = told(lambda: read.load("one"))
    shape = "-".join(spoiled.name.split(".")[1].split("-")[:2])
    again = f": delete {paths.shown(spoiled.parent)}/*.{shape}*, and `make measure RUN=one` measures that again"
    assert said.startswith(paths.shown(spoiled))
    assert said.endswith(again)
    return said.removeprefix(paths.shown(spoiled)).removesuffix(again)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda rows: rows.assign(latency_us=-1.0),
            ", row 0: latency_us is -1.0 and has to be a finite number of at least 0.001",
        ),
        (
            lambda rows: rows.assign(round=[0, 0, 1, 1, 3, 2]),
            f", row 0: sdpa.auto at {FIRST} in replicate 1 under eager warm has 3 of 3 rounds, and the last is round 3",
        ),
        (lambda rows: rows.drop(columns="cache"), ": the column 'cache' is missing"),
    ],
)
def test_a_part_is_held_to_the_same_and_named(data, change, said):
    cut(*PARTS)
    assert in_its_part(rewritten(part_of("samples", 2), change)) == said


def test_a_part_that_was_copied_is_named_with_the_rows_that_it_repeats(data):
    cut(*PARTS[:3])
    part = part_of("samples")
    copy = part.with_name(part.name.replace("s000", "s001"))
    copy.write_bytes(part.read_bytes())
    assert in_its_part(copy) == f", row 0: {AUTO_WARM} {SAME}"


def test_a_block_that_was_cut_off_is_whole_though_its_cases_are_not_there_yet(data):
    cut(*PARTS[:2])
    assert len(read.load("one").samples) == 6
