"""Functions of a user: their names, the search for them, and the detection of changes."""

import hashlib
import sys

import pytest
from conftest import TINY, tiny_study, told

from attnlab.study import callables, implementations, studies, tuning

OWN = "python.own.attention"


def test_a_study_may_name_functions_beside_what_is_known():
    named = [*TINY["implementations"], OWN, "python.folder.own.attention_2"]
    assert tiny_study(implementations=named).implementations == named
    assert tiny_study(implementations=named, baseline=OWN).subjects[-1] == implementations.control(OWN)
    assert OWN not in implementations.known()
    assert callables.parts("python.folder.own.attention_2") == ("folder.own", "attention_2")


@pytest.mark.parametrize("name", ["python.own", "python.", "python.own.", "python..attention", "python.own:attention"])
def test_a_name_states_a_module_and_a_function(name):
    assert told(lambda: tiny_study(implementations=["sdpa.auto", name])) == (
        f"tiny.yaml: {name!r} names no function: state python.<module>.<function>, such as python.mine.attention"
    )


def test_while_a_study_is_measured_a_module_is_found_beside_it(write_study, write_module):
    write_module("raise AssertionError('nobody imports it')")
    sys.path.pop()
    before, path = [*sys.path], write_study(implementations=["sdpa.auto", OWN])
    assert studies.load(path).implementations == ["sdpa.auto", OWN]
    assert "there is no module 'own': put own.py next to" in told(lambda: callables.file(OWN))
    with studies.modules_beside(str(path)):
        assert callables.file(OWN) == path.parent / "own.py"
    assert sys.path == before


def test_a_module_may_lie_in_a_package_which_is_not_imported(write_module):
    name = "python.folder.own.attention"
    path = write_module("", beside="folder")
    assert callables.file(name) == path
    (path.parent / "__init__.py").write_text("raise AssertionError('somebody imports it')")
    assert callables.file(name) == path


def test_the_hash_is_of_the_file(write_module):
    path = write_module("one")
    before = tuning.hashes(["sdpa.auto", OWN, "kernel.mma"], "no such device")
    assert set(before) == {OWN, "kernel.mma"}
    assert before[OWN] == hashlib.sha256(path.read_bytes()).hexdigest()
    write_module("another")
    assert callables.hashes(["sdpa.auto", OWN]) != {OWN: before[OWN]}
