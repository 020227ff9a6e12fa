"""The import rules: layers of the package, no cycles, and rendering without the packages for measuring."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import synthetic

from attnlab.base import paths

PACKAGE = paths.ROOT / "lib" / "attnlab"
LAYERS = (
    ("base",),
    ("stats", "study"),
    ("compile", "runs", "simulate"),
    ("cache", "measuring", "roofline"),
    ("frames", "profile"),
    ("export", "serving", "tables"),
    ("explorer", "plot"),
    ("measurement", "readme", "report"),
    ("commands",),
    ("__main__",),
)
"""A room may import rooms of earlier layers; rooms of one layer don't import each other."""
LEVELS = {room: level for level, layer in enumerate(LAYERS) for room in layer}
LAZY = {"measurement", "serving", "(names)"}
"""Rooms that import the measuring half, only within functions: a laptop may lack torch."""
MOST_MODULES = 18


def name_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
TREES = {module: ast.parse(file.read_text()) for module, file in MODULES.items()}


@cache
def imported(module: str, everywhere: bool = True) -> frozenset[str]:
    """Our modules, and the names of other packages, that a module imports: everywhere in it, or only at top level."""
    found: set[str] = set()
    for node in ast.walk(TREES[module]) if everywhere else TREES[module].body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            whole = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in MODULES else str(node.module) for name in whole}
    return frozenset(found - {module})


def room(module: str) -> str:
    """The folder or module directly below the package. The package itself only names objects for users."""
    return module.split(".")[1] if "." in module else "(names)"


ARROWS = [(module, other) for module in MODULES for other in sorted(imported(module)) if other in MODULES]


def test_every_room_has_its_layer():
    assert {room(module) for module in MODULES} == set(LEVELS) | {"(names)"}


@pytest.mark.parametrize("of", LEVELS)
def test_nothing_imports_upward_or_sideways(of):
    others = [(module, other) for module, other in ARROWS if room(module) == of != room(other)]
    assert [arrow for arrow in others if LEVELS[room(arrow[1])] >= LEVELS[of]] == []


def test_the_package_itself_imports_little_at_once_and_nothing_imports_names_from_it():
    # The import of any module runs the package's `__init__` first.
    at_once = imported("attnlab", everywhere=False) | imported("attnlab.__main__", everywhere=False)
    assert at_once == {"importlib", "sys", "typing", "attnlab.base.parent", "attnlab.base.version"}
    assert [module for module, other in ARROWS if other == "attnlab"] == []


def test_nothing_imports_what_serves_but_the_names_and_the_command():
    importers = {room(module) for module, other in ARROWS if room(other) == "serving" != room(module)}
    assert importers == {"(names)", "commands"}


def test_no_modules_import_each_other_in_a_circle():
    graph = {module: {other for one, other in ARROWS if one == module} for module in MODULES}
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)  # a cycle raises CycleError


def reached(*modules: str, everywhere: bool = True) -> set[str]:
    """These modules, and all of ours that they import, directly or not."""
    found, waiting = set(), [*modules]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += [other for other in imported(module, everywhere) if other in MODULES]
    return found


def of_room(of: str) -> list[str]:
    return [module for module in MODULES if room(module) == of and module != "attnlab.runs.write"]


@pytest.mark.parametrize("of", [room for room in LEVELS if room not in LAZY | {"measuring", "commands", "__main__"}])
def test_what_reads_a_run_imports_nothing_that_measures_or_writes(of):
    barred = re.compile(r"(torch|cupy|triton|pynvml|attnlab\.measuring)(\.|$)" + r"|attnlab\.runs\.write$")
    assert {name for module in reached(*of_room(of)) for name in imported(module) if barred.match(name)} == set()


def test_attend_begins_without_what_reads_runs_and_infers():
    at_once = reached("attnlab.serving.attend", everywhere=False)
    assert "attnlab.measuring.kernels.rungs" in at_once
    barred = re.compile(r"(pandas|pyarrow|scipy|yaml)(\.|$)")
    assert {name for module in at_once for name in imported(module, False) if barred.match(name)} == set()


def test_only_functions_import_the_half_that_measures():
    for module, other in ARROWS:
        if room(other) == "measuring" and room(module) not in ("measuring", "serving"):
            assert room(module) in LAZY
            assert other not in imported(module, everywhere=False)


def test_the_walk_sees_what_there_is_to_see():
    assert "torch" in imported("attnlab.measuring.session.worker", everywhere=False)
    assert "attnlab.measuring.session.record" in imported("attnlab.measurement")
    assert {"attnlab.stats", "attnlab.runs.read"} < reached("attnlab.report", "attnlab.frames")
    assert ("attnlab.commands", "attnlab.report") in ARROWS


def test_no_folder_holds_more_than_can_be_taken_in():
    folders = {file.parent for file in MODULES.values()}
    full = {folder: len(list(folder.glob("*.py"))) for folder in folders}
    assert {str(folder): count for folder, count in full.items() if count > MOST_MODULES} == {}


def test_a_recorded_run_is_read_and_the_command_starts_without_torch(data):
    """No other package imports torch indirectly; the tests above check our imports."""
    synthetic.write("there", synthetic.LONELY)
    program = (
        "import sys, attnlab, attnlab.commands, attnlab.plot, attnlab.profile, attnlab.tables\n"
        "print(len(attnlab.load('there').samples))\n"
        "print(sorted({'torch', 'cupy', 'pynvml', 'attnlab.measuring'} & set(sys.modules)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stderr == ""
    assert ended.stdout == f"{4 * synthetic.REPLICATES * synthetic.ROUNDS}\n[]\n"


def test_no_two_classes_have_one_name():
    nodes = [node for tree in TREES.values() for node in ast.walk(tree)]
    names = [node.name.lstrip("_") for node in nodes if isinstance(node, ast.ClassDef)]
    assert {name for name in names if names.count(name) > 1} == set()
