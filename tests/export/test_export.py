"""A run as plain files: what they hold is what the run and its results hold, and nothing of the user's is lost."""

import hashlib
import io
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from synthetic import CONSTANT, EIGHT_HEADS, LONG, ROUNDS, SHORT, TARGET, Recipe, climbed, inferred, lonely

from attnlab import __main__, export
from attnlab.base.errors import UserError
from attnlab.export import explained, records
from attnlab.infer import cases, results
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import schema
from attnlab.study.studies import Timing

SMALL = {"implementations": ["sdpa.auto", "sdpa.flash"], "sweeps": {"seq_len": synthetic.STUDY["sweeps"]["seq_len"]}}
EDGES = {"Infinity": np.inf, "-Infinity": -np.inf}


@cache
def controlled() -> Results:
    return synthetic.infer(Recipe(study=SMALL, control_pace=1.0))


@cache
def alone() -> Results:
    """One replicate."""
    return synthetic.infer(Recipe(study=SMALL | {"replicates": 1}))


@cache
def cut() -> Results:
    """A run that was cut off after the second of four shapes of its first replicate."""
    return synthetic.infer(Recipe(study=SMALL, shapes=2, control_pace=1.0))


@cache
def empty() -> Results:
    return synthetic.infer(Recipe(study=SMALL, shapes=0))


@cache
def files(run) -> dict[str, bytes]:
    return export.contents(run())


def refused(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def parsed(content: bytes):
    return json.loads(content.decode("utf-8"), parse_constant=refused)


def read(run, name: str):
    return parsed(files(run)[name])


def configs(run) -> list[dict]:
    return [parsed(content) for name, content in files(run).items() if name.startswith("config_")]


def same(told, held) -> bool:
    """Whether JSON tells exactly this value."""
    if told is None:
        return held is None or held == "" or pd.isna(held)
    return EDGES.get(told, told) == held


EVERY = pytest.mark.parametrize("run", [inferred, climbed, lonely, controlled, alone, cut, empty])


# ------------------------------------------------------------------------------------------------------------- arrays


@EVERY
def test_arrays_are_the_samples_of_the_run_in_the_order_taken(run):
    of, there = run(), 0
    names = {f"config_{number:02}": shape for number, shape in enumerate(of.study.shapes, 1)}
    taken = dict(iter(of.run.samples.groupby([*schema.CASE, "clock", "cache", "replicate"], sort=False)))
    for name, content in files(run).items():
        if not name.endswith(".npy"):
            continue
        there += 1
        config, *implementation, clock, cache_, replicate = Path(name).stem.split(".")
        axes = names[config].axes.values()
        mine = taken[".".join(implementation), *axes, clock, cache_, int(replicate[1:])]
        array = np.load(io.BytesIO(content), allow_pickle=False)
        assert array.dtype == np.float64
        assert array.ndim == 1
        assert array.tolist() == mine["latency_us"].tolist()
        assert mine["round"].tolist() == list(range(len(array)))
        assert mine["started_s"].is_monotonic_increasing
    assert there == len(of.passed.groupby([*schema.CASE, "clock", "cache", "replicate"]))


def test_what_failed_a_check_is_counted_and_not_given():
    (config,) = (one for one in configs(inferred) if one["shape"] == EIGHT_HEADS.axes)
    (math,) = (one for one in config["implementations"] if one["implementation"] == "sdpa.math")
    assert math["timings"] == []
    assert math["why_no_latency"] == "failed, after timing, graph: error against float64: max 5.00e-03"
    assert math["samples_withheld"] == 2 * 2 * ROUNDS  # two replicates, two timings
    assert [outcome["status"] for outcome in math["outcomes"]] == ["failed", "measured"]
    assert not any(name.startswith(f"latencies/{config['config']}.sdpa.math.") for name in files(inferred))


@EVERY
def test_every_array_is_named_where_it_belongs(run):
    named = [
        array["file"]
        for config in configs(run)
        for one in [*config["implementations"], config["control"] or {"timings": []}]
        for timing in one["timings"]
        for array in timing["arrays"]
    ]
    assert sorted(named) == sorted(name for name in files(run) if name.endswith(".npy"))
    rows = [file for row in read(run, "summary.json")["rows"] for file in row["files"]]
    assert set(rows) == {name for name in named if ".control." not in name}
    assert len(rows) == len(set(rows))


# --------------------------------------------------------------------------------------------------------------- JSON


@EVERY
def test_every_number_of_the_results_is_told_as_it_is(run):
    of, told = run(), 0
    for shape, config in zip(of.study.shapes, configs(run), strict=True):
        assert config["shape"] == shape.axes
        assert [config[key] for key in ("flops", "bytes", "scores")] == [shape.flops, shape.bytes, shape.scores]
        for one in config["implementations"]:
            for timing in one["timings"]:
                when = Timing(clock=timing["clock"], cache=timing["cache"])
                row = of.row(one["implementation"], shape, when)
                for column in set(cases.COLUMNS) - {*cases.CASE, *cases.TIMING, "throughput_mark", "bandwidth_mark"}:
                    assert same(timing[records.RENAMED.get(column, column)], row[column]), column
                assert [array["samples"] for array in timing["arrays"]] == [
                    replicate.size for replicate in of.samples(one["implementation"], shape, when)
                ]
                told += 1
    assert told == len(of.table) == len(read(run, "summary.json")["rows"])


@EVERY
def test_every_verdict_is_told_as_it_is(run):
    of, told = run(), 0
    for shape, config in zip(of.study.shapes, configs(run), strict=True):
        for one in config["implementations"]:
            for timing in one["timings"]:
                when = Timing(clock=timing["clock"], cache=timing["cache"])
                if one["implementation"] == of.study.baseline:
                    assert timing["verdict"] is None
                    continue
                verdict, said = of.compare(one["implementation"], shape, when), timing["verdict"]
                family = of.family(shape, when)
                assert (said["decision"], said["claimable"]) == (verdict.decision, verdict.claimable)
                ends = ("speedup", "speedup_low", "speedup_high")
                assert Interval(*(said[key] for key in ends)) == verdict.speedup
                assert same(said["cliffs_delta"], verdict.delta)
                assert same(said["hedges_g"], verdict.g)
                unadjusted = family.unadjusted[one["implementation"]]
                assert (said["p_holm"], said["p_unadjusted"]) == (verdict.pvalue, unadjusted)
                assert (said["smallest_effect_pct"] is None) == (family.control is None)
                told += 1
    assert told == sum(len(family.verdicts) for family in of.families.values())


def test_the_summary_says_of_each_row_what_its_shape_says():
    for row in read(inferred, "summary.json")["rows"]:
        config = read(inferred, f"{row['config']}.json")
        (one,) = (one for one in config["implementations"] if one["implementation"] == row["implementation"])
        (timing,) = (t for t in one["timings"] if (t["clock"], t["cache"]) == (row["clock"], row["cache"]))
        assert {key: row[key] for key in records.HEADLINE} == {key: timing[key] for key in records.HEADLINE}
        verdict = timing["verdict"] or dict.fromkeys(records.JUDGED)
        assert {key: row[key] for key in records.JUDGED} == {key: verdict[key] for key in records.JUDGED}
        assert {key: row[key] for key in config["shape"]} == config["shape"]


def test_cases_without_latency_are_told_with_the_reason():
    without = read(inferred, "summary.json")["without_latency"]
    shapes = inferred().study.shapes
    expected = {
        (f"config_{1 + shapes.index(shape):02}", name): f"{fate[0].removesuffix(' after timing')}, {fate[1]}"
        for (name, shape), fate in synthetic.FATES.items()
    }
    assert {(one["config"], one["implementation"]): one["why"] for one in without} == expected
    assert {SHORT, LONG, CONSTANT, EIGHT_HEADS} == {shape for _, shape in synthetic.FATES}


@pytest.mark.parametrize(("run", "method"), [(inferred, records.OVER_REPLICATES), (alone, records.BOOTSTRAPPED)])
def test_intervals_name_their_method(run, method):
    rows = read(run, "summary.json")["rows"]
    assert {row["median_interval"] for row in rows} == {method}
    assert method in read(run, "summary.json")["conventions"]["interval"]


def test_samples_that_resemble_their_neighbours_are_cut_into_stretches():
    drifting = [np.linspace(1.0, 2.0, 100)]
    assert records._method([drifting], paired=False) == records.OVER_STRETCHES
    assert records._method([drifting, drifting], paired=True) == records.OVER_STRETCHES


def test_the_baseline_against_itself():
    summary = read(controlled, "summary.json")["baseline_against_itself"]
    found = controlled().false_positives
    assert (summary["comparisons"], summary["called_faster_or_slower"]) == (found.comparisons, len(found.wrong))
    for shape, config in zip(controlled().study.shapes, configs(controlled), strict=True):
        assert config["control"]["implementation"] == "control.sdpa.auto"
        for timing, when in zip(config["control"]["timings"], controlled().timings, strict=True):
            assert timing["verdict"]["speedup"] == controlled().control(shape, when).speedup.estimate
            smallest = 100 * controlled().smallest_effect(shape, when)
            assert same(timing["verdict"]["smallest_effect_pct"], smallest)
    without = read(inferred, "summary.json")["baseline_against_itself"]
    assert without == {"comparisons": 0, "why": results.NO_CONTROL}
    assert all(config["control"] is None for config in configs(inferred))


def test_an_incomplete_run_says_so():
    summary = read(cut, "summary.json")
    assert summary["run"]["complete"] is False
    assert {row["config"] for row in summary["rows"]} == {"config_01", "config_02"}
    assert {one["why"] for one in summary["without_latency"]} == {"not reached yet"}
    assert [bool(config["implementations"][0]["timings"]) for config in configs(cut)] == [True, True, False, False]
    assert "`make measure RUN=synthetic` continues it" in files(cut)["comparison.md"].decode()
    assert read(empty, "summary.json")["rows"] == []


def test_the_environment_is_the_manifests():
    environment, manifest = read(inferred, "env.json"), inferred().run.manifest
    for key in ("environment", "device", "clocks", "sources", "kernels", "files", "study"):
        assert environment[key] == manifest[key]
    assert environment["rules"] == manifest.get("rules")
    assert environment["run"]["seal"] == manifest["seal"]
    copy = environment["ceilings"]["copy"]
    assert (copy["measured"], copy["unit"], copy["samples"]) == (100.0, "GB/s", [100.0] * 3)
    assert read(lonely, "env.json")["ceilings"]["l2"]["measured"] is None


def test_strict_json_has_no_number_that_is_none():
    held = {"a": [np.nan, np.inf, -np.inf, pd.NA, np.float64(0.1), np.int64(3), np.True_, None, "x"]}
    assert export.strict(held) == {"a": [None, "Infinity", "-Infinity", None, 0.1, 3, True, None, "x"]}


@EVERY
def test_json_is_strict(run):
    for name, content in files(run).items():
        if name.endswith(".json"):
            assert content.endswith(b"\n")
            assert parsed(content)


# ------------------------------------------------------------------------------------------------------------ Markdown


@EVERY
def test_the_report_leads_nowhere_and_prints_no_nan(run):
    report = files(run)["comparison.md"].decode()
    assert report.startswith("# Is anything faster than `sdpa.auto`? ")
    assert "](#" not in report
    assert not re.search(r"\bnan\b|\bNone\b", report)
    headings = re.findall("^## (.+)$", report, re.MULTILINE)
    assert len(headings) == len(set(headings)) == 10


def test_the_report_holds_the_verdicts_and_the_statement():
    report = files(inferred)["comparison.md"].decode()
    flash = inferred().compare("sdpa.flash", TARGET)
    assert flash.claimable
    assert "**`sdpa.flash` is faster than `sdpa.auto`, and claimable. Under other timings: faster by `eager`" in report
    rows = [line for line in report.split("## Appendix")[1].splitlines() if line.startswith("| sdpa.")]
    assert len(rows) == sum(len(family.verdicts) for family in inferred().families.values())
    for line in report.splitlines():
        if line.startswith("|"):
            assert line.endswith(" |")


@EVERY
def test_every_field_is_explained(run):
    def fields(held) -> set[str]:
        if isinstance(held, dict):
            return set(held).union(*map(fields, held.values()))
        return set().union(*map(fields, held)) if isinstance(held, list) else set()

    summary = read(run, "summary.json") | {"conventions": None}
    used = fields(summary) | fields([config | {"least_us_by_ceiling": None} for config in configs(run)])
    listed = {name for group in explained.FIELDS.values() for names in group for name in names.split(", ")}
    assert used <= listed
    readme = files(run)["README.md"].decode()
    assert all(f"`{name}`" in readme for name in used)


def test_no_field_is_explained_that_is_not_there():
    text = b"".join(content for name, content in [*files(controlled).items(), *files(cut).items()] if "json" in name)
    listed = {name for group in explained.FIELDS.values() for names in group for name in names.split(", ")}
    assert {name for name in listed if f'"{name}":'.encode() not in text} == set()


# -------------------------------------------------------------------------------------------------------------- folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_exports_are_the_same_bytes(tmp_path):
    run = inferred().run
    for name in ("one", "other"):
        export.write(Results(run, cases.infer(run)), tmp_path / name)
    one = tree(tmp_path / "one")
    assert one == tree(tmp_path / "other")
    assert len(one) == 5 + len(run_shapes := inferred().study.shapes) + sum(".npy" in name for name in one)
    assert {f"config_{number:02}.json" for number in range(1, 1 + len(run_shapes))} < set(one)


def test_its_sums_are_what_sha256sum_checks(tmp_path):
    export.write(controlled(), tmp_path / "run")
    held = tree(tmp_path / "run")
    sums = dict(reversed(line.split("  ")) for line in held.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in held.items()}


def test_the_readmes_example_prints_the_median(tmp_path):
    export.write(controlled(), tmp_path / "run")
    code = re.search(r"```python\n(.*?)```", (tmp_path / "run" / "README.md").read_text(), re.DOTALL)[1]
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "run", capture_output=True, text=True)
    assert float(said.stdout) == read(controlled, "summary.json")["rows"][0]["median_us"]


def test_an_export_of_the_same_run_is_replaced(tmp_path):
    target = tmp_path / "run"
    export.write(cut(), target)
    assert len(list(target.glob("latencies/*"))) < len(list(files(inferred)))
    export.write(inferred(), target)
    assert tree(target) == files(inferred)
    (target / "latencies" / "config_01.sdpa.auto.device.warm.r0.npy").unlink()
    export.write(inferred(), target)
    assert tree(target) == files(inferred)
    assert {path.name for path in tmp_path.iterdir()} == {"run", ".run.lock"}


def foreign_folder(target: Path) -> None:
    (target / "latencies" / "mine").mkdir()
    (target / "latencies" / "mine" / "notes.txt").write_text("mine")


def other_run(target: Path) -> None:
    summary = target / "summary.json"
    summary.write_text(summary.read_text().replace('"name": "synthetic"', '"name": "other"'))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda target: (target / "notes.txt").write_text("mine"), "run/ holds 'notes.txt', "),
        (foreign_folder, "run/ holds 'latencies/mine/notes.txt', which the export didn't write: move it away"),
        (other_run, "run/ is an export of the run 'other': move it away"),
        (lambda target: (target / "summary.json").write_text("[1]"), "run/ is there and is no export: move it away"),
        (lambda target: (target / "summary.json").unlink(), "run/ is there and is no export: move it away"),
    ],
)
def test_what_the_export_did_not_write_stays(tmp_path, spoil, said):
    target = tmp_path / "run"
    export.write(controlled(), target)
    spoil(target)
    before = tree(target)
    with pytest.raises(UserError, match=re.escape(said)):
        export.write(controlled(), target)
    assert tree(target) == before


def test_a_link_is_no_folder_of_an_export(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="run is no folder of an export: move it away"):
        export.write(controlled(), tmp_path / "run")
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(("name", "of"), [("write_bytes", "SHA256SUMS"), ("rename", ".run.new")])
def test_an_export_that_can_not_be_written_leaves_the_one_before(tmp_path, monkeypatch, name, of):
    target, done = tmp_path / "run", getattr(Path, name)
    export.write(controlled(), target)
    before = tree(target)

    def failing(path: Path, *arguments: object) -> object:
        if path.name == of:
            raise OSError(28, "No space left on device", str(path))
        return done(path, *arguments)

    monkeypatch.setattr(Path, name, failing)
    with pytest.raises(OSError, match="No space left on device"):
        export.write(controlled(), target)
    assert tree(target) == before
    assert {path.name for path in tmp_path.iterdir()} == {"run", ".run.lock"}


def test_the_command_says_where_it_wrote(data, capsys):
    synthetic.write("mine", Recipe(study=SMALL | {"replicates": 1}))
    assert __main__.main(["export", "--run", "mine"]) == 0
    exported = data.parent / "exports" / "mine"
    assert capsys.readouterr().out == f"exported {exported}/\n"
    assert parsed((exported / "summary.json").read_bytes())["run"]["name"] == "mine"
    before = tree(exported)
    assert __main__.main(["export", "--run", "mine"]) == 0  # from what was kept
    assert tree(exported) == before
