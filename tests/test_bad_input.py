"""Bad input of every kind: one line that names the remedy, an exit status, and no change of a recorded run."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import ladders
import pytest
import small
import yaml
from conftest import TINY, held, refused, tiny_study
from ladders import rung
from reading import make, program

from attnlab.runs import write

MEASURE = ("measure", "--run", "new", "--study", "{study}")


@pytest.fixture(scope="module")
def runs(recorded, session_data, machine, tmp_path_factory) -> Path:
    """A data folder with both runs. Read-only."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(session_data / recorded, folder / "there")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(folder))
        stated = json.loads((folder / "there" / "manifest.json").read_text())
        write._write_manifest(folder / "there", stated | {"name": "there"})
        write.create("cut", machine | {"study": tiny_study().model_dump(mode="json"), "missing_clocks": []})
        for part in small.blocks(tiny_study())[:4]:
            write.add_part("cut", *part)
    return folder


@pytest.fixture
def place(runs, data, tmp_path, folder) -> Path:
    """A folder with a complete run ``there``, an interrupted run ``cut``, a study and a ladder."""
    shutil.copytree(runs, data)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(TINY))
    return tmp_path


# Ways to spoil an input


Spoil = Callable[[Path], object]


def text(content: str) -> Spoil:
    return lambda place: (place / "study.yaml").write_text(content)


def toml(content: bytes) -> Spoil:
    return lambda place: (place / "kernels" / "ladder.toml").write_bytes(content)


def of_a_kernel(spoil: Spoil) -> Spoil:
    study = text(yaml.safe_dump(TINY | {"implementations": ["sdpa.auto", "kernel.x"]}))
    return lambda place: (spoil(place), study(place))


def mine(path: str) -> Spoil:
    """Put a user's file where a run or an export would go."""

    def spoil(place: Path) -> None:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text("mine")

    return spoil


def part_of(place: Path) -> Path:
    """The block of samples of the interrupted run."""
    return next((place / "data" / "cut" / "parts").glob("samples.*.parquet"))


def renamed(place: Path) -> None:
    part_of(place).rename(part_of(place).with_name("samples.r00.parquet"))


def linked_to_nothing(place: Path) -> None:
    part = part_of(place)
    part.unlink()
    part.symlink_to(place / "data" / "gone")


def parts_is_a_file(place: Path) -> None:
    parts = part_of(place).parent
    parts.rename(place / "data" / "moved")
    parts.write_text("mine")


def without_manifest(place: Path) -> None:
    (place / "data" / "cut" / "manifest.json").unlink()


def nothing(place: Path) -> None:
    """Spoil nothing: only the command's arguments are bad."""


EXPORT = ("export", "--run", "there")
CUT = ("export", "--run", "cut")
KERNELS = ("kernels",)
NOTEBOOK = ("notebook", "02_baseline", "-p")

COMMANDS = [
    (nothing, (), "the following arguments are required: COMMAND"),
    (nothing, ("messure",), "invalid choice: 'messure' (choose from "),
    (nothing, ("measure", "--device", "tpu"), "argument --device: invalid choice: 'tpu' (choose from "),
    (nothing, ("measure", "--run"), "argument --run: expected one argument"),
    (nothing, ("report", "--what"), "unrecognized arguments: --what; `python -m attnlab report --help` lists what "),
    (nothing, ("measure", "a\nb"), "unrecognized arguments: a b; "),
    (nothing, ("measure", "--devic", "cpu"), "--devic cpu; did you mean '--device'?; `python -m attnlab measure --"),
    (nothing, ("notebook",), "the following arguments are required: name; `python -m attnlab notebook --help`"),
    (nothing, ("report", "--run", "their"), "those that are: there, cut; did you mean 'there'?"),
    (nothing, ("export",), "the following arguments are required: --run"),
    (nothing, ("export", "--run", ""), "attnlab: no run is named: RUN=<name> names a folder in "),
    (nothing, ("dispatch", "--run", "there,"), "attnlab: no run is named: RUN=<name> names a folder in "),
    (mine("exports/there/notes.txt"), EXPORT, "/exports/there holds more than an export of this run: move it away"),
    (mine("exports"), EXPORT, "/exports; what was recorded is kept"),
    (nothing, ("compare", "there", "there"), "two runs are compared, and both are 'there': name the one before as "),
    (nothing, ("compare", "", "there"), "two runs are compared: name the one before as A and the one that is judged "),
    (nothing, ("measure", "--run", "{a}"), "'{a}' can't be the name of a run: use letters, digits and '_', from the "),
    (nothing, ("measure", "--run", 300 * "x"), "File name too long: "),
    (nothing, ("measure", "--run", "there"), "the run 'there' is complete: `make report RUN=there` renders it"),
    (nothing, ("measure", "--run", "cut", "--study", "quick"), "the run 'cut' is of the study 'tiny': leave STUDY out"),
    (nothing, ("measure", "--study", "quik"), "values; did you mean 'quick'?"),
    (mine("data/new/notes.txt"), MEASURE, "/new/ is there and has no manifest.json: restore that, or name another run"),
    (mine("data/new"), MEASURE, "/new is a file: move it away, or name another"),
    (text(1000 * "["), MEASURE, "study.yaml is not valid YAML: maximum recursion depth exceeded"),
    (of_a_kernel(toml(b"\xff\xfe")), MEASURE, "ladder.toml is not valid TOML: 'utf-8' codec can't decode byte 0xff"),
    (nothing, ("readme", "--run", "cut"), "'cut' is no complete run of the study 'gpu' on a GPU: name another run"),
]
SOURCES = [
    (toml(b""), "there is no kernel to compile: "),
    (lambda place: ladders.write(place / "kernels", rung(architectures=["sm_30"])), "invalid value for --gpu-arch"),
    (lambda place: (place / "kernels" / "widen.cuh").unlink(), 'cannot open source file "widen.cuh"'),
    (
        lambda place: (place / "kernels" / "plain.cu").write_bytes(b"\xff\x00"),
        "plain.cu is not a text in UTF-8: save it",
    ),
]
RUNS = [
    (renamed, CUT, "samples.r00.parquet has no name of what was recorded: give it that again, or move it away"),
    (linked_to_nothing, CUT, ".parquet links to it, and it is not there: "),
    (without_manifest, CUT, "there is no run 'cut'; those that are: there"),
    (parts_is_a_file, ("measure", "--run", "cut"), "/cut/parts is a file: move it away, or name another run"),
    (without_manifest, ("measure", "--run", "cut", "--study", "{study}"), "/cut/ is there and has no manifest.json: "),
]
NOTEBOOKS = [
    (("notebook", "02_nothing", "-p", "run=there"), "there is no notebook '02_nothing'; there are 00_quickstart, 01"),
    (("notebook", "baseline", "-p", "run=there"), "report; did you mean '02_baseline'?"),
    (NOTEBOOK, "argument -p: expected one argument"),
    ((*NOTEBOOK, "a=it's"), "argument -p: takes NAME=VALUE pairs, and a quote in "),
    ((*NOTEBOOK, "run"), "-p takes NAME=VALUE, not 'run'"),
    ((*NOTEBOOK, "runn=there run=there"), "02_baseline has no parameter 'runn', but run, "),
    ((*NOTEBOOK, "run=there run=cut"), "-p states a parameter twice: leave one of run=there, run=cut out"),
    ((*NOTEBOOK, "run=["), "-p run: '[' is not a value; quote it"),
    (("explore", "--run", "nope"), "there is no run 'nope'; those that are: there, cut"),
]
ALL = {
    "command": COMMANDS,
    "source": [(spoil, KERNELS, said) for spoil, said in SOURCES],
    "run": RUNS,
    "notebook": [(nothing, command, said) for command, said in NOTEBOOKS],
}


@pytest.mark.parametrize(
    ("spoil", "command", "said"),
    [pytest.param(*row, id=f"{kind} {number}") for kind, rows in ALL.items() for number, row in enumerate(rows, 1)],
)
def test_bad_input_is_one_line_and_a_status_and_changes_no_run(place, capsys, spoil, command, said):
    if command == KERNELS:
        pytest.importorskip("cuda.bindings.nvrtc")
    spoil(place)
    before = held(place / "data")
    words = [os.fspath(place / "study.yaml") if word == "{study}" else word for word in command]
    assert said in f"attnlab: {refused(capsys, *words)}"
    assert held(place / "data") == before


# Through make


WORDS = [
    (["report", "RUN=../there"], "attnlab: '../there' can't be the name of a run: name a folder in "),
    (["measure", "STUDY=no such"], "attnlab: there is no study 'no such'; studies/ has backends, cpu, decode, dispat"),
    (["measure", "DEVICE=tpu"], "attnlab: argument --device: invalid choice: 'tpu' (choose from "),
    (["report", "RUN=-x"], "attnlab: '-x' can't be the name of a run: use letters"),
    (["report", "RUN=a 'b'"], "attnlab: \"a 'b'\" can't be the name of a run: use letters"),
]


@pytest.mark.parametrize(("words", "said"), WORDS)
def test_bad_input_to_make_reaches_the_command_as_it_was_written(tmp_path, place, capsys, words, said):
    """Make passes the words to an interpreter that saves those for the command; here the command gets them."""
    keeps = f'[ "$1" = -m ] || exec {sys.executable} "$@"\nshift 2\nprintf "%s\\n" "$@" > {tmp_path}/words'
    keeping = program(tmp_path / "python", keeps)
    before = held(place / "data")
    assert make(*words, f"PYTHON={keeping}").returncode == 0
    assert f"attnlab: {refused(capsys, *(tmp_path / 'words').read_text().splitlines())}".startswith(said)
    assert held(place / "data") == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*WORDS[0][0], f"PYTHON={sys.executable}"], WORDS[0][1]),
        (["measure", "GPUS=2", "DEVICE=cpu"], "driver from 580 on, and DEVICE says cpu: leave GPUS out"),
        (["report", "PYTHON=/no/python"], "PYTHON=/no/python is not there: name an interpreter that is, or leave"),
        (["report", "PYTHON=/bin/true"], "PYTHON=/bin/true is no Python, and attnlab needs 3.11 or newer: name one "),
        (['exec {python} -S "$@"'], "lacks pandas papermill pydantic yaml: install attnlab into it, or leave PYTHON"),
        (["echo Python 3.10.2"], "is Python 3.10.2, and attnlab needs 3.11 or newer: name one that is, or leave "),
    ],
)
def test_bad_input_to_make_is_one_line_besides_its_own(tmp_path, place, words, said):
    if len(words) == 1:  # the reply of an interpreter that is too old or lacks packages for a report
        words = ["report", "RUN=x", f"PYTHON={program(tmp_path / 'python', words[0].format(python=sys.executable))}"]
    before = held(place / "data")
    ended = make(*words)
    assert ended.returncode == 2
    first, *others = ended.stderr.splitlines()
    assert said in first
    assert [line.startswith("make: ***") for line in others] == [True]
    assert held(place / "data") == before
