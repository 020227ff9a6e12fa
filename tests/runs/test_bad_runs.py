"""Runs that were edited and sealed anew: whatever no run can hold is one line with file, column and row."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
import small
import synthetic

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.runs import agreement, methods, metrics, read, schema, write
from attnlab.study import studies
from attnlab.study.shapes import Shape
from attnlab.study.values import STANDARD

STUDY = small.study(
    implementations=["sdpa.auto", "sdpa.math"],
    sweeps={"seq_len": small.AXES | {"seq_len": [16, 32]}},
    samples=3,
    replicates=2,
    stream=2,
)
SHAPE = {"implementation": "sdpa.auto", **STUDY.target_shape.axes}
Tables = dict[str, pd.DataFrame]
Spoil = Callable[[Tables, dict[str, Any]], object]
RESTORE = ": restore the run from where it came from"


def others() -> list[synthetic.Part]:
    """Blocks of the tables that are not of every run."""
    answers = [
        SHAPE | {"implementation": name, "replicate": replicate, "process": f"p{replicate}"}
        | {"position": position, "latency_us": 20.5, "host_us": 4.0}
        for replicate in (0, 1) for position in (0, 1) for name in STUDY.implementations
    ]  # fmt: skip
    needs = {"registers": 40, "local_bytes": 0, "static_shared_bytes": 0, "dynamic_shared_bytes": 1024}
    launched = {"threads": 128, "ctas": 4, "ctas_per_sm": 2, "function": "f", "architecture": "sm_90"}
    kernel = SHAPE | {"replicate": 0, "process": "p0"} | needs | launched
    counted = SHAPE | {"function": "f", "launch": 0, "metric": metrics.DURATION, "unit": "ns", "value": 500.0}
    timed = [SHAPE | {"method": methods.DEVICE, "round": 0, "latency_us": 2.5, "why": ""}]
    timed.append(SHAPE | {"method": methods.NCU, "why": "not installed"})
    seen = SHAPE | {"clock": "eager", "cache": "warm", "round": 0, "metric": metrics.DRAM_READ, "value": 0.0, "why": ""}
    loads = [SHAPE | {"started_s": 0.5, "latency_us": 2.5, "why": ""}, SHAPE | {"why": "no such device"}]
    return [
        *(("stream", f"r{row['replicate']:02d}-{number}", pd.DataFrame([row])) for number, row in enumerate(answers)),
        ("resources", "r00-s000", pd.DataFrame([kernel])),
        ("profile", "sdpa-auto", pd.DataFrame([counted])),
        ("panel", "c00", schema.frame("panel", timed)),
        ("residency", "c00", schema.frame("residency", [seen])),
        ("endurance", "sdpa-auto", schema.frame("endurance", loads)),
    ]


PARTS = [*small.blocks(STUDY), *others()]


@pytest.fixture
def whole(data) -> str:
    """A complete run with rows in every table."""
    write.create("one", small.manifest(STUDY))
    for part in PARTS:
        write.add_part("one", *part)
    write.finish("one")
    run = read.load("one")
    assert [table for table in schema.TABLES if getattr(run, table).empty] == []
    return "one"


def sealed(name: str, spoil: Spoil) -> None:
    """Edit a run, and seal it as if it had been recorded so."""
    path = schema.folder(name) / "manifest.json"
    manifest = json.loads(path.read_text())
    tables = {table: pd.read_parquet(path.with_name(f"{table}.parquet")) for table in schema.TABLES}
    spoil(tables, manifest)
    for table, frame in tables.items():
        file = path.with_name(f"{table}.parquet")
        frame.to_parquet(file)
        if file.name in manifest.get("files", {}):
            manifest["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    body = {key: value for key, value in manifest.items() if key != "seal"}
    path.write_text(json.dumps(body | {"seal": schema.digest(body)}))


def refused(name: str) -> str:
    """What is said of a run, without the path of its folder."""
    with pytest.raises(UserError) as caught:
        read.load(name)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{schema.folder(name)}/")


# Ways to spoil it


def cell(table: str, row: int, **values: Any) -> Spoil:
    """Other values in one row."""

    def spoil(tables: Tables, manifest: dict[str, Any]) -> None:
        frame = tables[table]
        for column, value in values.items():
            changed = frame[column].tolist()
            changed[row] = value
            frame[column] = changed

    return spoil


def column(table: str, name: str, value: Any) -> Spoil:
    """One value in a whole column."""
    return lambda tables, manifest: tables[table].__setitem__(name, value)


def keep(table: str, chosen: Callable[[pd.DataFrame], Any]) -> Spoil:
    """Only some of the rows."""
    return lambda tables, manifest: tables.update({table: tables[table][chosen(tables[table])].reset_index(drop=True)})


def again(table: str, rows: slice) -> Spoil:
    """Some rows a second time, at the end."""
    return lambda tables, manifest: tables.update(
        {table: pd.concat([tables[table], tables[table][rows]], ignore_index=True)}
    )


def stated(**fields: Any) -> Spoil:
    """Fields of the manifest; those that are ... are left out."""

    def spoil(tables: Tables, manifest: dict[str, Any]) -> None:
        for field, value in fields.items():
            *outer, last = field.split("__")
            place = manifest
            for name in outer:
                place = place[name]
            if value is ...:
                del place[last]
            else:
                place[last] = value

    return spoil


def both(*spoils: Spoil) -> Spoil:
    return lambda tables, manifest: [spoil(tables, manifest) for spoil in spoils]


CLOCKS = ", ".join(get_args(studies.Timing.model_fields["clock"].annotation))
NAN, INFINITE = float("nan"), float("inf")
POSITIVE, NUMBER = "a finite number above 0", "a finite number of at least 0"
FIRST = "B=1 H=4 S=16 D=64 full float32"
AUTO = f"sdpa.auto at {FIRST}"
STATUSES = ", ".join(schema.STATUSES)
SAME = "its shape, implementation, clock, cache, replicate, round are those of {folder}/samples.parquet, row 1"
VALUES = {
    "a latency that is NaN": (
        cell("samples", 3, latency_us=NAN),
        f"samples.parquet, row 3: latency_us is NaN and has to be {POSITIVE}",
    ),
    "a negative latency": (
        cell("samples", 3, latency_us=-1.5),
        f"samples.parquet, row 3: latency_us is -1.5 and has to be {POSITIVE}",
    ),
    "a latency of zero": (
        cell("samples", 0, latency_us=0.0),
        f"samples.parquet, row 0: latency_us is 0.0 and has to be {POSITIVE}",
    ),
    "an infinite latency": (
        cell("samples", 23, latency_us=INFINITE),
        f"samples.parquet, row 23: latency_us is inf and has to be {POSITIVE}",
    ),
    "latencies that are text": (
        column("samples", "latency_us", "fast"),
        f"samples.parquet, row 0: latency_us is 'fast' and has to be {POSITIVE}",
    ),
    "a latency that is true": (
        column("samples", "latency_us", True),
        f"samples.parquet, row 0: latency_us is True and has to be {POSITIVE}",
    ),
    "latencies that are lists": (
        lambda tables, manifest: tables["samples"].__setitem__("latency_us", [[1.0]] * len(tables["samples"])),
        f"samples.parquet, row 0: latency_us is a ndarray and has to be {POSITIVE}",
    ),
    "statuses that are lists": (
        lambda tables, manifest: tables["cases"].__setitem__("status", [["measured"]] * len(tables["cases"])),
        f"cases.parquet, row 0: status is a ndarray and has to be one of {STATUSES}",
    ),
    "a negative clock": (
        column("samples", "sm_clock_mhz", -1),
        f"samples.parquet, row 0: sm_clock_mhz is -1 and has to be {POSITIVE}",
    ),
    "a round that is no number": (
        cell("samples", 1, round=1.5),
        "samples.parquet, row 1: round is 1.5 and has to be a whole number of at least 0",
    ),
    "no launches": (
        cell("samples", 1, launches=0),
        "samples.parquet, row 1: launches is 0 and has to be a whole number of at least 1",
    ),
    "an axis that is nonsense": (
        cell("samples", 2, heads=-4),
        "samples.parquet, row 2: heads is -4 and has to be a whole number of at least 1",
    ),
    "an axis that is no integer": (
        column("checks", "batch", 1.0),
        "checks.parquet, row 0: batch must be a positive integer, not 1.0",
    ),
    "axes that don't go together": (
        cell("checks", 5, kv_heads=3),
        "checks.parquet, row 5: kv_heads must divide heads, and 3 doesn't divide 4",
    ),
    "a dtype that is nonsense": (
        cell("cases", 1, dtype="float17"),
        "cases.parquet, row 1: unknown dtype 'float17'; known are float16, bfloat16, float32, float64",
    ),
    "a mask that is a word": (
        column("cases", "causal", "no"),
        "cases.parquet, row 0: causal is 'no' and has to be true or false",
    ),
    "an unknown status": (
        cell("cases", 1, status="fine"),
        f"cases.parquet, row 1: status is 'fine' and has to be one of {STATUSES}",
    ),
    "no status": (
        cell("cases", 0, status=None),
        f"cases.parquet, row 0: status is NaN and has to be one of {STATUSES}",
    ),
    "unknown inputs": (
        cell("checks", 0, inputs="easy"),
        "checks.parquet, row 0: inputs is 'easy' and has to be one of normal, large logits, constant rows",
    ),
    "inputs of other values": (
        cell("checks", 4, inputs="sink 8"),
        "checks.parquet, row 4: inputs is 'sink 8' and has to be one of normal, large logits, constant rows",
    ),
    "no inputs": (
        cell("checks", 0, inputs=""),
        "checks.parquet, row 0: inputs is '' and has to be a text that is not empty",
    ),
    "values that are nonsense": (
        cell("samples", 2, values="sink"),
        f"samples.parquet, row 2: unknown values 'sink'; known are {', '.join(STANDARD)}, or other amounts",
    ),
    "an unknown moment": (
        cell("checks", 1, moment="never"),
        "checks.parquet, row 1: moment is 'never' and has to be one of before, after",
    ),
    "an unknown route": (
        cell("checks", 1, route="graph of 0"),
        "checks.parquet, row 1: route is 'graph of 0' and has to be `call` or `graph of N`",
    ),
    "a negative error": (
        cell("checks", 1, mean_error=-1e-9),
        "checks.parquet, row 1: mean_error is -1e-09 and has to be a number of at least 0",
    ),
    "an error that is NaN": (
        cell("checks", 1, max_error=NAN),
        "checks.parquet, row 1: max_error is NaN and has to be a number of at least 0",
    ),
    "differing elements below none": (
        cell("checks", 1, differing=-1),
        "checks.parquet, row 1: differing is -1 and has to be a whole number of at least 0",
    ),
    "a negative number of seconds": (
        cell("processes", 1, setup_seconds=-0.5),
        f"processes.parquet, row 1: setup_seconds is -0.5 and has to be {NUMBER}",
    ),
    "no process": (
        cell("processes", 1, process=""),
        "processes.parquet, row 1: process is '' and has to be a text that is not empty",
    ),
    "a power limit of zero": (
        column("processes", "power_limit_w", 0.0),
        f"processes.parquet, row 0: power_limit_w is 0.0 and has to be {POSITIVE}",
    ),
    "an unknown method": (
        cell("panel", 0, method="sundial"),
        f"panel.parquet, row 0: method is 'sundial' and has to be one of {', '.join(m.name for m in methods.METHODS)}",
    ),
    "an unknown metric": (
        cell("profile", 0, metric="sm__joy.sum"),
        "profile.parquet, row 0: metric is 'sm__joy.sum' and has to be a counter of Nsight Compute or a reading of the "
        "canary",
    ),
    "an unknown clock": (
        cell("residency", 0, clock="wall"),
        f"residency.parquet, row 0: clock is 'wall' and has to be one of {CLOCKS}",
    ),
    "a kernel without threads": (
        cell("resources", 0, threads=0),
        "resources.parquet, row 0: threads is 0 and has to be a whole number of at least 1",
    ),
    "a request that took no time": (
        cell("stream", 2, host_us=0.0),
        f"stream.parquet, row 2: host_us is 0.0 and has to be {POSITIVE}",
    ),
    "a slice before the load": (
        cell("endurance", 0, started_s=-1.0),
        f"endurance.parquet, row 0: started_s is -1.0 and has to be {NUMBER}",
    ),
    "a column that is missing": (
        lambda tables, manifest: tables["checks"].pop("passed"),
        "checks.parquet: the column 'passed' is missing",
    ),
}
ROWS = {
    "a repeated sample": (again("samples", slice(1, 2)), f"samples.parquet, row 24: {SAME}"),
    "a copied block": (again("samples", slice(1, 6)), f"samples.parquet, row 24: {SAME}"),
    "a repeated check": (
        again("checks", slice(0, 1)),
        "checks.parquet, row 16: its shape, implementation, replicate, moment, inputs, route are those of "
        "{folder}/checks.parquet, row 0",
    ),
    "a repeated case": (
        again("cases", slice(0, 1)),
        "cases.parquet, row 8: its shape, implementation, replicate are those of {folder}/cases.parquet, row 0",
    ),
    "a process that is there twice": (
        column("processes", "process", "p0"),
        "processes.parquet, row 1: process are those of {folder}/processes.parquet, row 0",
    ),
    "an empty table of samples": (
        keep("samples", lambda rows: rows["round"] < 0),
        f"samples.parquet: round: {AUTO} in replicate 0 under eager warm has 0 of 3 rounds",
    ),
    "a round that is missing": (
        keep("samples", lambda rows: rows.index != 2),
        f"samples.parquet: round: {AUTO} in replicate 0 under eager warm has 2 of 3 rounds",
    ),
    "rounds that the study doesn't ask for": (
        cell("samples", 4, round=3),
        "samples.parquet, row 4: round is 3, and the study's go up to 2",
    ),
    "a place in a round that there isn't": (
        cell("samples", 4, position=3),
        "samples.parquet, row 4: position is 3, and the study's go up to 2",
    ),
    "samples of a replicate that are missing": (
        keep("samples", lambda rows: rows["replicate"] == 0),
        f"samples.parquet: round: {AUTO} in replicate 1 under eager warm has 0 of 3 rounds",
    ),
    "a replicate that is missing": (
        lambda tables, manifest: [
            keep(table, lambda rows: rows["replicate"] == 0)(tables, manifest)
            for table in ("samples", "checks", "cases", "processes", "stream")
        ],
        "cases.parquet: replicate: 1 has 0 of the study's 2 shapes",
    ),
    "a replicate too many": (
        cell("samples", 3, replicate=2),
        "samples.parquet, row 3: replicate is 2, and the study's go up to 1",
    ),
    "an implementation that is not of the study": (
        cell("samples", 3, implementation="sdpa.flash"),
        "samples.parquet, row 3: implementation is 'sdpa.flash', not one of the study",
    ),
    "a case that is missing": (
        keep("cases", lambda rows: rows.index != 1),
        f"cases.parquet: implementation: sdpa.math is missing at {FIRST} in replicate 0",
    ),
    "a shape that is not of the study": (
        cell("checks", 2, head_dim=32),
        "checks.parquet, row 2: B=1 H=4 S=16 D=32 full float32 is no shape of the study",
    ),
    "a timing that is not of the study": (
        cell("samples", 3, cache="cold"),
        "samples.parquet, row 3: clock and cache are eager cold, which is no timing of this run",
    ),
    "a sample without its case": (
        cell("samples", 3, implementation="control.sdpa.auto"),
        f"samples.parquet, row 3: implementation: control.{AUTO} in replicate 0 is not among the cases",
    ),
    "a sample of a case that failed before it was timed": (
        both(cell("cases", 0, status=schema.FAILED), cell("checks", 0, passed=False)),
        f"samples.parquet, row 0: latency_us is of {AUTO}, which failed a check before it was timed",
    ),
    "gaps between the rounds of a case that failed": (
        both(
            cell("cases", 0, status=schema.FAILED),
            keep("samples", lambda rows: rows.index != 2),
        ),
        f"samples.parquet: round: {AUTO} in replicate 0 under eager warm has 2 of 3 rounds, and not the first ones",
    ),
    "a check that failed beside a measured case": (
        cell("checks", 2, passed=False),
        f"checks.parquet, row 2: passed is False, and in cases {AUTO} counts as measured",
    ),
    "a check that passed with too large an error": (
        cell("checks", 2, max_error=2.1e-6),
        "checks.parquet, row 2: passed is True beside a max_error of 2.1e-06, which is too large",
    ),
    "a check that passed with an infinite error": (
        cell("checks", 2, inputs="large logits", mean_error=INFINITE),
        "checks.parquet, row 2: passed is True beside a mean_error of inf, which is too large",
    ),
    "a measured case without a check": (
        keep("checks", lambda rows: rows["implementation"] != "sdpa.math"),
        f"cases.parquet, row 1: status is 'measured', and no check of sdpa.math at {FIRST} is recorded",
    ),
    "a measured case whose timed outputs were wrong": (
        cell("samples", 1, strain=1.5),
        f"samples.parquet, row 1: strain is 1.5, above 1, and sdpa.math at {FIRST} counts as measured",
    ),
    "a process that was not recorded": (
        cell("samples", 3, process="p7"),
        "processes.parquet: process: 'p7' is missing, which measured the samples of replicate 0",
    ),
    "a process of two replicates": (
        cell("samples", 3, process="p1"),
        "samples.parquet, row 3: replicate is 0, and its process 'p1' measured replicate 1",
    ),
    "a replicate without a process": (
        keep("processes", lambda rows: rows["replicate"] == 0),
        "processes.parquet: replicate: no process of replicate 1 is here",
    ),
    "a request that one implementation didn't answer": (
        keep("stream", lambda rows: rows.index != 1),
        "stream.parquet: position: 0 of replicate 0 was not answered by every implementation",
    ),
    "a request of two shapes": (
        cell("stream", 1, seq_len=32, kv_len=32),
        "stream.parquet: position: 0 of replicate 0 is a request of more than one shape",
    ),
    "requests that are missing": (
        keep("stream", lambda rows: (rows["replicate"] == 0) | (rows["position"] == 0)),
        "stream.parquet: position: replicate 1 has 1 of 2 requests",
    ),
    "a panel without latency or reason": (
        cell("panel", 1, why=""),
        "panel.parquet, row 1: latency_us is missing, and why says nothing",
    ),
    "a load with both": (
        cell("endurance", 0, why="no such device"),
        "endurance.parquet, row 0: latency_us stands beside a why",
    ),
}
FILES = ", ".join(f"{table}.parquet" for table in schema.TABLES)
MANIFESTS = {
    "no complete": (stated(complete=...), "the field 'complete' is missing"),
    "complete is a word": (stated(complete="yes"), "complete: input should be a valid boolean, not 'yes'"),
    "no device": (stated(device=...), "the field 'device' is missing"),
    "an unknown kind": (stated(device__kind="tpu"), "device.kind: input should be 'cuda' or 'cpu', not 'tpu'"),
    "no cache": (stated(device__l2_bytes=0), "device.l2_bytes: input should be greater than or equal to 1, not 0"),
    "a negative ceiling": (
        stated(ceilings__copy__samples=[100.0, -3.0]),
        "ceilings.copy.samples.1: input should be greater than 0, not -3.0",
    ),
    "a ceiling that is no number": (
        stated(ceilings__copy__samples=[NAN]),
        "ceilings.copy.samples.0: input should be a finite number, not nan",
    ),
    "a ceiling in another unit": (
        stated(ceilings__copy__unit="TB/s"),
        "ceilings.copy.unit: input should be 'TFLOP/s', 'GB/s' or 'Gexp/s', not 'TB/s'",
    ),
    "a file outside the folder": (
        lambda tables, manifest: manifest["files"].update({"../two/samples.parquet": 64 * "0"}),
        f"files: '../two/samples.parquet' is no table of a run; tables are {FILES}",
    ),
    "no samples among the files": (
        lambda tables, manifest: manifest["files"].pop("samples.parquet"),
        "files: samples.parquet is missing",
    ),
    "a study that is none": (stated(study={}), "study: the field 'implementations' is missing, or is no list"),
    "a study without a target": (stated(study__target=...), "study: the field 'target' is missing"),
    "no replicates": (
        stated(study__replicates=0),
        "study: replicates: input should be greater than or equal to 1, not 0",
    ),
    "an unknown timing that is missing": (
        stated(missing_clocks=["wall warm"]),
        "missing_clocks: 'wall warm' is no timing of the study; timings are eager warm",
    ),
    "a tick that is negative": (
        stated(clocks__tick_us=-1.0),
        "clocks.tick_us: input should be greater than or equal to 0, not -1.0",
    ),
    "no rules": (stated(rules=...), "the field 'rules' is missing"),
    "a rule that is a word": (stated(rules__alpha="5 %"), "rules.alpha: input should be a valid number, not '5 %'"),
    "a day without a time": (
        stated(created="2026-11-21"),
        "created: '2026-11-21' is no time with its offset, such as 2026-11-21T10:30:33+00:00",
    ),
    "no version of torch": (
        stated(environment__packages={}),
        "environment.packages: the version of torch is missing",
    ),
    "another plan": (
        stated(closed_early={"replicates": 1, "shapes": 2, "planned": 5}),
        "closed_early.planned: the study plans 4, not 5",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), [*VALUES.values(), *ROWS.values()], ids=[*VALUES, *ROWS])
def test_a_table_that_no_run_can_hold_is_a_line_with_file_column_and_row(whole, spoil, said):
    sealed(whole, spoil)
    assert refused(whole) == said.replace("{folder}", str(schema.folder(whole))) + RESTORE


@pytest.mark.parametrize(("spoil", "said"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_that_no_run_can_have_is_a_line_with_its_field(whole, spoil, said):
    sealed(whole, spoil)
    assert refused(whole) == f"manifest.json: {said}: restore it from where the run came from"
    with pytest.raises(UserError, match=r"^.*/manifest\.json: "):
        read.read_manifest(whole)


def test_at_other_values_checks_are_on_these_or_on_an_extreme(data):
    axes = small.AXES | {"values": "sink 8"}
    study = small.study(target=axes, sweeps={"values": axes})
    write.create("one", small.manifest(study))
    for part in small.blocks(study):
        write.add_part("one", *part)
    write.finish("one")
    for inputs in ("sink 8", *schema.EXTREMES):
        sealed("one", cell("checks", 0, inputs=inputs))
        assert set(read.load("one").checks["values"]) == {"sink 8"}
    for inputs in ("normal", "sink 13"):
        sealed("one", cell("checks", 0, inputs=inputs))
        said = f"inputs is '{inputs}' and has to be one of sink 8, large logits, constant rows"
        assert refused("one") == f"checks.parquet, row 0: {said}{RESTORE}"


def test_what_is_no_table_is_a_line(whole):
    def spoil(tables, manifest):
        path = schema.folder(whole) / "panel.parquet"
        path.write_bytes(b"PAR1 not really PAR1")
        manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        del tables["panel"]

    sealed(whole, spoil)
    assert refused(whole) == f"panel.parquet: it is no table in Parquet{RESTORE}"


def test_rows_are_counted_from_none_whatever_index_they_have(whole):
    def spoil(tables, manifest):
        tables["samples"].index = range(100, 124)
        tables["samples"].loc[103, "latency_us"] = -1.0

    sealed(whole, spoil)
    assert refused(whole).startswith("samples.parquet, row 3: latency_us is -1.0 and has to be")


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ({"replicates": 2, "shapes": 3, "planned": 4}, "cases.parquet: replicate: 1 replicates are here, and"),
        ({"replicates": 1, "shapes": 4, "planned": 4}, "cases.parquet: replicate: 3 shapes are here, and closed_early"),
    ],
)
def test_a_run_that_was_closed_early_holds_what_it_says(data, closed, said):
    cut(*(part for part in PARTS if not part[1].startswith("r01-s001") and part[0] != "stream"))
    write.close_early("one")
    assert read.load("one").manifest["closed_early"] == {"replicates": 1, "shapes": 3, "planned": 4}
    sealed("one", stated(closed_early=closed))
    assert refused("one").startswith(said)


# A run that is being measured


def cut(*parts: synthetic.Part) -> None:
    write.create("one", small.manifest(STUDY))
    for part in parts:
        write.add_part("one", *part)


def part_of(table: str, number: int = 0) -> Path:
    return sorted((schema.folder("one") / "parts").glob(f"{table}.*"))[number]


def rewritten(part: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Path:
    """A part with other rows, under the name that goes with them."""
    rows = change(pd.read_parquet(part))
    rows.to_parquet(part)
    table, key, _, end = part.name.split(".")
    return part.rename(part.with_name(f"{table}.{key}.{schema.short_hash(part.read_bytes())}.{end}"))


def in_its_part(spoiled: Path) -> str:
    """What is said of a run, without the path of this part and what to do about it."""
    with pytest.raises(UserError) as caught:
        read.load("one")
    said = str(caught.value)
    shape = "-".join(spoiled.name.split(".")[1].split("-")[:2])
    again = f": delete {paths.shown(spoiled.parent)}/*.{shape}*, and `make measure RUN=one` measures that again"
    assert said.startswith(paths.shown(spoiled))
    assert said.endswith(again)
    return said.removeprefix(paths.shown(spoiled)).removesuffix(again)


SHOWN = [
    (lambda rows: rows.assign(latency_us=-1.0), f", row 0: latency_us is -1.0 and has to be {POSITIVE}"),
    (lambda rows: rows.assign(latency_us="fast"), f", row 0: latency_us is 'fast' and has to be {POSITIVE}"),
    (lambda rows: rows.assign(round=[0, 0, 1, 1, 3, 2]), ", row 4: round is 3, and the study's go up to 2"),
    (lambda rows: rows.drop(columns="cache"), ", row 0: cache is NaN and has to be one of warm, cold"),
]


@pytest.mark.parametrize(("change", "said"), SHOWN)
def test_a_part_is_held_to_the_same_and_named(data, change, said):
    cut(*PARTS)
    assert in_its_part(rewritten(part_of("samples", 2), change)) == said


def test_a_part_that_was_copied_is_named_with_the_rows_that_it_repeats(data):
    cut(*PARTS[:3])
    part = part_of("samples")
    copy = part.with_name(part.name.replace("s000", "s001"))
    copy.write_bytes(part.read_bytes())
    axes = "implementation, clock, cache, replicate, round"
    assert in_its_part(copy) == f", row 0: its shape, {axes} are those of {part}, row 0"


def test_a_block_that_was_cut_off_is_whole_though_its_cases_are_not_there_yet(data):
    cut(*PARTS[:2])
    assert len(read.load("one").samples) == 6
    rewritten(part_of("samples"), lambda rows: rows[rows["round"] < 2])
    assert in_its_part(part_of("samples")) == (
        f": round: the block of {FIRST} in replicate 0 under eager warm has 2 of 3 rounds"
    )


def test_a_shape_that_is_recorded_has_all_its_samples(data):
    cut(*PARTS[:4])
    assert len(read.load("one").cases) == 2
    part_of("samples").unlink()
    with pytest.raises(UserError, match=rf"round: {AUTO} in replicate 0 under eager warm has 0 of 3 rounds"):
        read.load("one")


def test_a_shape_without_any_case_of_an_implementation_is_refused(data):
    cut(*PARTS[:4])
    part = rewritten(part_of("cases"), lambda rows: rows[rows["implementation"] == "sdpa.auto"])
    assert in_its_part(part) == f": implementation: sdpa.math is missing at {FIRST} in replicate 0"


def test_there_are_more_than_thirty_kinds():
    said = [said for _, said in (*VALUES.values(), *ROWS.values(), *MANIFESTS.values())]
    assert len(set(said)) > 80


def test_the_shape_of_the_runs_here_is_the_study_s_own():
    assert Shape(**{axis: value for axis, value in SHAPE.items() if axis != "implementation"}) in STUDY.shapes


def test_a_run_is_judged_once_for_each_seal(monkeypatch, whole):
    read.load(whole)
    judged = []
    monkeypatch.setattr(agreement, "require", lambda *_: judged.append("one"))
    read.load(whole)
    assert judged == []
    read._JUDGED.clear()
    read.load(whole)
    assert judged == ["one"]
