"""The sources that a module depends on: all files that its import loads, and no others."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from attnlab.base import sources
from attnlab.measuring.session import record

RECORD = record.__name__
LOADED = """
import importlib, sys
importlib.import_module(sys.argv[1])
for name, module in sys.modules.items():
    if name.startswith("attnlab."):
        print(module.__file__)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that writes a package in place of attnlab: files by their paths, each with its content."""
    root = tmp_path / "attnlab"

    def write(files: dict[str, str]) -> Path:
        for name, content in {"__init__.py": "", **files}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return root

    monkeypatch.setattr(sources, "PACKAGE", root)
    sources.digests.cache_clear()
    yield write
    sources.digests.cache_clear()


def named(module: str) -> list[str]:
    return [path.relative_to(sources.PACKAGE).as_posix() for path in sources.reached(module)]


def test_all_that_recording_loads_is_covered_with_what_it_runs_in_other_processes_and_nothing_that_infers():
    ended = subprocess.run([sys.executable, "-c", LOADED, RECORD], capture_output=True, text=True, check=True)
    loaded = {Path(line).relative_to(sources.PACKAGE).as_posix() for line in ended.stdout.splitlines()}
    assert len(loaded) > 40
    started = {"clocks/external_tools.py", "instruments/counters.py", "gate/poison.cu"}
    reached = set(sources.digests(RECORD))
    assert loaded | {f"measuring/{name}" for name in started} <= reached
    assert {name.split("/")[0] for name in reached} == {"base", "compile", "measuring", "runs", "study"}


def test_imports_are_followed_wherever_they_stand(package):
    late = "def late():\n    from attnlab import d\n"
    imports = {"a.py": f"import attnlab.b\nfrom attnlab.c import thing\n{late}", "b.py": "from attnlab import e\n"}
    package(imports | {"e.py": "from attnlab.a import late\n"} | dict.fromkeys(("c.py", "d.py", "f.py"), ""))
    assert named("attnlab.a") == ["__init__.py", "a.py", "b.py", "c.py", "d.py", "e.py"]
    assert named("attnlab.f") == ["f.py"]


def test_packages_on_the_way_and_sources_beside_a_module_count(package):
    beside = dict.fromkeys(("part/module.py", "part/module.cu", "part/another.cu", "other.py", "alone.py"), "")
    package(beside | {"part/__init__.py": "import attnlab.other\n"})
    assert named("attnlab.part.module") == ["other.py", "part/__init__.py", "part/module.cu", "part/module.py"]


def test_another_content_is_another_digest(package):
    root = package({"a.py": "import attnlab.b\n", "b.py": ""})
    before = sources.digests("attnlab.a")
    (root / "b.py").write_text("# changed\n")
    sources.digests.cache_clear()
    after = sources.digests("attnlab.a")
    assert before.keys() == after.keys() == {"a.py", "b.py"}
    assert [name for name in before if before[name] != after[name]] == ["b.py"]
    assert after["b.py"] == hashlib.sha256(b"# changed\n").hexdigest()
