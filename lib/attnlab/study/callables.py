"""Users' Python functions, which a study calls ``python.<module>.<function>``: their files, and hashes of these.

A module is found as Python finds it: on PYTHONPATH, installed, or next to the file of the study. The search
imports nothing, not even the packages of the module: a name may come from a run that a stranger recorded.

Only a study and modules next to it find these modules: the folder isn't on `sys.path`, where PyTorch would take a
`triton.py` for Triton.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from attnlab.base.errors import UserError

PREFIX = "python."
BESIDE = "BESIDE_STUDY"
"""The environment variable that gives measuring processes the folder of their study."""
_NAME = re.compile(r"python\.(\w+(?:\.\w+)*)\.(\w+)", re.ASCII)


def among(names: Iterable[str]) -> list[str]:
    """The names of users' functions among these."""
    return [name for name in names if name.startswith(PREFIX)]


def parts(name: str) -> tuple[str, str]:
    """The module and the function that a name states; raises UserError unless it states both."""
    if found := _NAME.fullmatch(name):
        return found[1], found[2]
    raise UserError(f"{name!r} names no function: state python.<module>.<function>, such as python.mine.attention")


def file(name: str) -> Path:
    """The file of a function's module; nothing is imported. Raises UserError if there is none."""
    module, _ = parts(name)
    *packages, last = module.split(".")
    folders = [Path(entry) for entry in (*sys.path, *filter(None, [_folder()]))]
    for package in packages:
        within = [there for folder in folders if os.path.isdir(there := folder / package)]
        regular = [folder for folder in within if os.path.isfile(folder / "__init__.py")]
        folders = regular[:1] or within
    stated = (path for folder in folders for path in (folder / last / "__init__.py", folder / f"{last}.py"))
    if found := next(filter(os.path.isfile, stated), None):
        return found.absolute()
    path = f"{module.replace('.', '/')}.py"
    where = "next to the study's file, which STUDY names, or on PYTHONPATH"
    raise UserError(f"{name}: there is no module {module!r}: put {path} {where}")


def imported(name: str) -> ModuleType:
    """The module of a function; raises UserError if it has no file, and the errors of its import."""
    module, _ = parts(name)
    found = file(name)
    folder = _folder()
    if not (folder and found.is_relative_to(folder)):
        return import_module(module)
    if not any(isinstance(finder, _Beside) for finder in sys.meta_path):
        sys.meta_path.append(_Beside())
    package = f"beside_{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    sys.modules.setdefault(package, ModuleType(package)).__path__ = [folder]
    return import_module(f"{package}.{module}")


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """A context in which functions are also found in this folder, in this process and its children."""
    before = _folder()
    os.environ[BESIDE] = str(folder)
    try:
        yield
    finally:
        os.environ[BESIDE] = before


def _folder() -> str:
    return os.environ.get(BESIDE, "")


class _Beside:
    """Finds the modules that a file next to a study imports from there; finds nothing for other files."""

    def find_spec(self, module: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module of this name next to the file that imports it, after a search of all other places."""
        importing = sys._getframe(1)
        while importing.f_back and "importlib" in importing.f_code.co_filename:
            importing = importing.f_back
        folder = _folder()
        within = folder and path is None and Path(importing.f_code.co_filename).is_relative_to(folder)
        return PathFinder.find_spec(module, [folder]) if within else None


def hashes(names: Iterable[str]) -> dict[str, str]:
    """By name, the SHA-256 of the file of each user's function; raises UserError if one has no file."""
    return {name: hashlib.sha256(file(name).read_bytes()).hexdigest() for name in among(names)}
