"""The command line: a mistake is one line and an exit status."""

import os
import subprocess
import sys
import tomllib
from io import BytesIO, TextIOWrapper

import pytest
import synthetic
from conftest import tiny_study

from attnlab import __main__, commands, select_run
from attnlab.base import paths
from attnlab.runs import read


def said(capsys, *arguments: str) -> str:
    """Run a command that fails; its one line on stderr, without the prefix."""
    assert __main__.main(list(arguments)) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("attnlab: ")
    assert error.count("\n") == 1
    assert error.endswith("\n")
    return error.removeprefix("attnlab: ").rstrip("\n")


# Commands


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["messure"], "invalid choice: 'messure'"),
        (["measure", "--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
        (["measure", "--device", "none"], "argument --device: invalid choice: 'none'"),
        (["report", "--what"], "unrecognized arguments: --what"),
        (["notebook"], "the following arguments are required: name"),
        (["readme"], "the following arguments are required: --run"),
        (["notebook", "01_environment", "-p"], "argument -p: expected one argument"),
        (["notebook", "01_environment", "-p", "a=it's"], "argument -p: takes NAME=VALUE pairs, and a quote in "),
    ],
)
def test_what_is_no_command_is_told_by_the_parser(capsys, data, arguments, problem):
    with pytest.raises(SystemExit) as caught:
        __main__.main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("attnlab: ")
    assert problem in line
    assert line.endswith("--help` lists what there is")
    assert not data.exists()


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as caught:
        __main__.main(["--version"])
    assert caught.value.code == 0
    stated = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"attnlab {stated}\n"


def test_a_run_that_is_not_there(capsys, begin):
    begin(tiny_study(), "there")
    assert said(capsys, "report", "--run", "nope") == "there is no run 'nope'; those that are: there"
    assert said(capsys, "report", "--run", "../x").startswith("'../x' can't be the name of a run")
    assert said(capsys, "measure", "--run", "a/b").startswith("'a/b' can't be the name of a run")


@pytest.mark.parametrize("name", ["reference", "dispatch", "models"])
@pytest.mark.parametrize("command", ["measure", "report", "export", "close"])
def test_a_run_is_not_called_what_lies_beside_the_runs(capsys, data, command, name):
    expected = f"{name!r} can't be the name of a run: data/{name}/ holds no run; choose another name"
    assert said(capsys, command, "--run", name) == expected
    assert not data.exists()


def test_reports_that_can_not_be_written_are_told_before_anything_is_measured_or_inferred(capsys, data):
    synthetic.write("there", synthetic.LONELY)
    reports = data.parent / "reports"
    for command in (["report"], ["report", "--run", "there"], ["notebook", "01_environment"]):
        reports.write_text("")
        said_of = f"{reports}: File exists: have it take files, or name another folder by ATTNLAB_REPORTS"
        assert said(capsys, *command) == said_of
        reports.unlink()


@pytest.mark.parametrize("more", [["--study", "quick"], ["--device", "cpu"], ["--long"]])
def test_rendering_a_run_takes_nothing_that_measuring_takes(capsys, begin, more):
    begin(tiny_study(), "there")
    expected = "RUN renders what was recorded and measures nothing: leave STUDY, DEVICE, GPUS, SCHEDULER and LONG out"
    assert said(capsys, "report", "--run", "there", *more) == expected


def test_measuring_another_study_into_a_run(capsys, begin):
    begin(tiny_study(), "there")
    expected = "the run 'there' is of the study 'tiny': leave STUDY out, or name a new run"
    assert said(capsys, "measure", "--run", "there", "--study", "quick") == expected


def test_measuring_into_a_complete_run(capsys, recorded):
    expected = "the run 'recorded' is complete: `make report RUN=recorded` renders it"
    assert said(capsys, "measure", "--run", recorded) == expected
    assert said(capsys, "measure", "--run", recorded, "--device", "cuda") == expected  # whatever is here


def test_a_study_that_is_not_there(capsys, data):
    expected = (
        "there is no study 'nope'; studies/ has backends, cpu, dispatch, gpu, ladder, peers, quick, scaling, values"
    )
    assert said(capsys, "measure", "--study", "nope") == expected
    for near in ("quick.yaml", "quik"):
        assert said(capsys, "measure", "--study", near).endswith("values; did you mean 'quick'?")
    assert not data.exists()


def test_a_path_to_a_study_ends_with_yaml(capsys, data, write_study):
    path = write_study()
    path.rename(path.with_suffix(""))
    expected = "ladder, peers, quick, scaling, values; a path to a study ends with .yaml or .yml"
    assert said(capsys, "measure", "--study", str(path.with_suffix(""))).endswith(expected)


def test_a_study_that_is_wrong(capsys, data, write_study):
    path = write_study(samples="many")
    expected = f"{path}: samples: input should be a valid integer, not 'many'"
    assert said(capsys, "measure", "--study", str(path)) == expected
    assert not data.exists()


def test_cuda_without_a_gpu(capsys, data, write_study, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = "device: cuda was asked for, but torch sees no NVIDIA GPU here: use device=cpu, or RUN=<name>"
    assert said(capsys, "measure", "--device", "cuda") == expected
    assert said(capsys, "measure", "--study", str(write_study()), "--device", "cuda") == expected
    assert said(capsys, "measure", "--study", str(write_study(device="cuda"))) == expected
    assert not data.exists()


def test_tuning_without_a_gpu(capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = "tuning needs an NVIDIA GPU, and torch sees none here: run `make tune` where there is one"
    assert said(capsys, "tune") == expected


def test_a_tampered_run(capsys, data, begin):
    begin(tiny_study(), "there")
    manifest = data / "there" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"samples": 5', '"samples": 500'))
    expected = f"{manifest} was changed after it was recorded, so the run is refused: restore it"
    assert said(capsys, "report", "--run", "there") == expected
    assert said(capsys, "measure", "--run", "there") == expected


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["00_nothing"], "there is no notebook '00_nothing'; there are 01_environment, 02_baseline,"),
        (["baseline"], "report; did you mean '02_baseline'?"),
        (["01_environment", "-p", "run"], "-p takes NAME=VALUE, not 'run'"),
        (["01_environment", "-p", "runn=x"], "01_environment has no parameter 'runn'; it has run, study, device"),
        (["01_environment", "-p", "runn=x"], "; did you mean 'run'?"),
        (["01_environment", "-p", "run='a b' runn=x"], "01_environment has no parameter 'runn'"),
        (["01_environment", "-p", "run=7"], "01_environment: run must be str, not 7 (int)"),
        (["01_environment", "-p", "run=[a]"], "01_environment: run must be str, not ['a'] (list)"),
        (["01_environment", "-p", "run=["], "-p"),
        (["01_environment", "-p", "run=2026-13-45"], "-p"),
    ],
)
def test_a_notebook_is_told_only_what_it_knows(capsys, data, arguments, problem):
    assert problem in said(capsys, "notebook", *arguments)
    assert not (data.parent / "reports").exists()


def test_quotes_hold_a_value_together():
    text = """ run='a b'  title="it's" n=[1,2] x= """
    assert commands._pairs(text) == ["run='a b'", """title="it's\"""", "n=[1,2]", "x="]
    assert commands._assignment("run='a b'") == ("run", "a b")


def test_a_value_is_what_yaml_makes_of_it():
    assert commands._assignment("n=3") == ("n", 3)
    assert commands._assignment("name=a=b") == ("name", "a=b")
    assert commands._assignment("empty=") == ("empty", "")
    assert commands._assignment("yes=true") == ("yes", True)


def test_measure_goes_on_with_a_run_and_names_its_folder(capsys, begin, monkeypatch, data):
    asked = []

    def measured(*arguments, stated):
        asked.append(arguments)
        return arguments[0]

    monkeypatch.setattr(select_run, "measured", measured)
    begin(tiny_study(), "there")
    assert __main__.main(["measure", "--run", "there", "--device", "cpu"]) == 0
    assert __main__.main(["measure", "--run", "there", "--device", "cpu", "--long"]) == 0
    assert __main__.main(["report", "--gpus", "2", "--scheduler", "tcp://here:1", "--run", "there"]) == 1
    assert __main__.main(["measure", "--run", "there", "--gpus", "2", "--scheduler", "tcp://here:1"]) == 0
    assert asked[:2] == [("there", tiny_study(), "cpu", long, "", "") for long in (False, True)]
    assert asked[2:] == [("there", tiny_study(), "auto", False, "2", "tcp://here:1")]
    assert capsys.readouterr().out == 3 * f"recorded {data}/there/\n"


def test_what_ctrl_c_and_a_full_disk_say(capsys, data, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(select_run, "measured", interrupted)
    assert __main__.main(["measure", "--study", "quick"]) == 130
    assert capsys.readouterr().err == "attnlab: interrupted; what was recorded is kept\n"

    def full(*_, **__):
        raise OSError(28, "No space left on device", "/data/x")

    elsewhere = "ATTNLAB_DATA, ATTNLAB_REPORTS and ATTNLAB_EXPORTS name other folders"
    monkeypatch.setattr(select_run, "measured", full)
    assert (
        said(capsys, "measure", "--study", "quick")
        == f"No space left on device: /data/x; what was recorded is kept; {elsewhere}"
    )
    monkeypatch.setattr(select_run, "measured", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    assert said(capsys, "measure", "--study", "quick") == f"No space left; what was recorded is kept; {elsewhere}"


def test_ctrl_c_while_a_command_is_imported():
    program = """
import signal, sys
from attnlab import __main__

class Interrupting:
    def find_spec(self, name, *_):
        if name == "attnlab.commands":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background ignores it
sys.meta_path.insert(0, Interrupting())
sys.exit(__main__.main(["measure"]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "attnlab: interrupted; what was recorded is kept\n")


def test_what_a_terminal_of_ascii_lacks_is_escaped(monkeypatch):
    terminal = TextIOWrapper(BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(commands, "_calibrate", lambda options: print("µ", flush=True))
    assert __main__.main(["calibrate"]) == 0
    assert terminal.buffer.getvalue() == b"\\xb5\n"


def test_too_little_memory(capsys, monkeypatch):
    monkeypatch.setattr(commands, "_calibrate", lambda options: bytes(2**60))
    assert said(capsys, "calibrate") == "this takes more memory than there is; what was recorded is kept"


def test_a_variable_that_is_empty_names_no_folder(monkeypatch):
    for folder in (paths.data, paths.reports, paths.exports, paths.kernels):
        monkeypatch.setenv(f"ATTNLAB_{folder.__name__.upper()}", "")
        assert folder() == paths.ROOT / folder.__name__


def test_as_a_program(data):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "attnlab", "measure", "--study", "quick", "--device", "cuda"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        "attnlab: device: cuda was asked for, but torch sees no NVIDIA GPU here: use device=cpu, or RUN=<name>\n"
    )
    assert read.names() == []


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_without_torch_measuring_says_what_is_missing(capsys, data, monkeypatch, name):
    for module in [module for module in sys.modules if module.startswith("attnlab.measure")]:
        monkeypatch.delitem(sys.modules, module)
    import attnlab

    monkeypatch.delattr(attnlab, "measure", raising=False)

    class Missing:
        def find_spec(self, wanted, path=None, target=None):
            if wanted == "attnlab.measure":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    expected = f"measuring needs {name}, which is not installed: `make measure` sets it up"
    assert said(capsys, "measure", "--study", "quick") == expected
    assert said(capsys, "measure") == expected
    assert said(capsys, "tune") == expected
    assert not data.exists()
