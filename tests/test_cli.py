"""The command line: a mistake gives one line and an exit status."""

import contextlib
import signal
import sys
import tomllib
from io import BytesIO, TextIOWrapper
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import synthetic
from conftest import refused, tiny_study

from attnlab import __main__, commands, measurement
from attnlab.base import paths


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as caught:
        __main__.main(["--version"])
    assert caught.value.code == 0
    stated = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert capsys.readouterr().out == f"attnlab {stated}\n"


@pytest.mark.parametrize("name", ["reference", "dispatch", "models"])
@pytest.mark.parametrize("command", ["measure", "report", "explore", "export", "close"])
def test_a_run_is_not_called_what_lies_beside_the_runs(capsys, data, command, name):
    expected = f"{name!r} can't be the name of a run: data/{name}/ holds no run; choose another name"
    assert refused(capsys, command, "--run", name) == expected
    assert not data.exists()


def test_reports_that_can_not_be_written_are_told_before_a_notebook_is_executed(capsys, data):
    synthetic.write("there", synthetic.LONELY)
    reports = data.parent / "reports"
    reports.write_text("")
    for command in (["report", "--run", "there"], ["notebook", "01_environment", "-p", "run=there"]):
        said_of = f"{reports}/there: Not a directory: have it take files, or name another folder by ATTNLAB_REPORTS"
        assert refused(capsys, *command) == said_of


def test_a_path_to_a_study_ends_with_yaml(capsys, data, write_study):
    path = write_study()
    path.rename(path.with_suffix(""))
    expected = "ladder, quick, ragged, scaling, training, values; a path to a study ends with .yaml or .yml"
    assert refused(capsys, "measure", "--study", str(path.with_suffix(""))).endswith(expected)


def test_without_a_gpu(capsys, data, write_study, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    expected = "cuda was asked for, but torch sees no NVIDIA GPU here: use DEVICE=cpu, or render a recorded run by "
    expected += "`make report RUN=<name>`"
    assert refused(capsys, "measure", "--device", "cuda") == expected
    assert refused(capsys, "measure", "--study", str(write_study()), "--device", "cuda") == expected
    assert refused(capsys, "measure", "--study", str(write_study(device="cuda"))) == expected
    assert not data.exists()
    tuning = "tuning needs an NVIDIA GPU, and torch sees none here: run `make tune` where there is one"
    assert refused(capsys, "tune") == tuning


def test_quotes_hold_a_value_together_which_is_what_yaml_makes_of_it():
    text = """ run='a b'  title="it's" n=[1,2] x= """
    assert commands._pairs(text) == ["run='a b'", """title="it's\"""", "n=[1,2]", "x="]
    stated = {"run='a b'": "a b", "n=3": 3, "name=a=b": "a=b", "empty=": "", "yes=true": True}
    assert [commands._assignment(text)[1] for text in stated] == list(stated.values())


def test_measure_goes_on_with_a_run_and_names_its_folder(capsys, begin, monkeypatch, data):
    asked = []

    def measured(*arguments, stated):
        asked.append(arguments)
        return arguments[0]

    monkeypatch.setattr(measurement, "measured", measured)
    begin(tiny_study(), "there")
    assert __main__.main(["measure", "--run", "there", "--device", "cpu"]) == 0
    assert __main__.main(["measure", "--run", "there", "--device", "cpu", "--long"]) == 0
    assert __main__.main(["measure", "--run", "there", "--gpus", "2", "--scheduler", "tcp://here:1"]) == 0
    assert asked[:2] == [("there", tiny_study(), "cpu", long, "", "") for long in (False, True)]
    assert asked[2:] == [("there", tiny_study(), "auto", False, "2", "tcp://here:1")]
    lacks = "sdpa.auto has no latency at the study's target, so nothing is compared there"
    assert capsys.readouterr().out == 3 * f"recorded {data}/there/\n{lacks}\n"


@pytest.mark.parametrize(
    ("error", "said_of"),
    [
        (OSError(28, "No space left", "/data/x"), "No space left: /data/x; what was recorded is kept; "),
        (OSError(28, "No space left"), "No space left; what was recorded is kept; ATTNLAB_DATA, ATTNLAB_REPORTS and "),
        (MemoryError(), "this takes more memory than there is; what was recorded is kept"),
    ],
)
def test_a_full_disk_and_too_little_memory_are_told(capsys, data, monkeypatch, error, said_of):
    monkeypatch.setattr(measurement, "measured", Mock(side_effect=error))
    assert refused(capsys, "measure", "--study", "quick").startswith(said_of)


@pytest.mark.parametrize("moment", ["imported", "run"])
def test_ctrl_c_that_a_command_swallows_or_that_comes_while_it_is_imported_is_told(capsys, monkeypatch, moment):
    def interrupted(*_):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return 0

    if moment == "run":
        monkeypatch.setattr(commands, "run", interrupted)
    else:
        monkeypatch.delitem(sys.modules, "attnlab.commands")
        monkeypatch.delattr("attnlab.commands")
        finder = SimpleNamespace(find_spec=lambda name, *_: (name == "attnlab.commands" and interrupted()) or None)
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored if tests run in the background
    try:
        assert __main__.main(["readme"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "attnlab: interrupted; what was recorded is kept\n"


def test_what_a_terminal_of_ascii_lacks_is_escaped(monkeypatch):
    terminal = TextIOWrapper(BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(commands, "_calibrate", lambda options: print("µ", flush=True))
    assert __main__.main(["calibrate"]) == 0
    assert terminal.buffer.getvalue() == b"\\xb5\n"


def test_a_variable_that_is_empty_names_no_folder(monkeypatch):
    for folder in (paths.data, paths.reports, paths.exports, paths.kernels):
        monkeypatch.setenv(f"ATTNLAB_{folder.__name__.upper()}", "")
        assert folder() == paths.ROOT / folder.__name__


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_without_torch_measuring_says_what_is_missing(capsys, data, monkeypatch, name):
    for module in [module for module in sys.modules if module.startswith("attnlab.measuring")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("attnlab.measuring", raising=False)

    def find_spec(wanted, *_):
        if wanted == "attnlab.measuring":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    for words in (["measure", "--study", "quick"], ["measure"], ["tune"]):
        assert refused(capsys, *words) == f"measuring needs {name}, which is not installed: `make measure` sets it up"
    assert not data.exists()
