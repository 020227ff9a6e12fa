"""The sources of Python's standard library with the help topics of pydoc: a text that every machine has."""

import sysconfig
from pathlib import Path

# Distributions of Python often leave its tests out; what others installed isn't the standard library.
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


def folder() -> Path:
    """Where the standard library lies."""
    return Path(sysconfig.get_paths()["stdlib"])


def sources(within: Path) -> dict[str, bytes]:
    """The sources below a folder, by their paths relative to it and in the order of these."""
    found = sorted(path.relative_to(within).as_posix() for path in within.rglob("*.py") if path.is_file())
    return {name: (within / name).read_bytes() for name in found if LEFT_OUT.isdisjoint(name.split("/"))}
