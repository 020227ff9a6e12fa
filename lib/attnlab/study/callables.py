"""Python functions of one's own, which a study calls ``python.<module>.<function>``: their files, and hashes of these.

A module is found as Python finds it: on PYTHONPATH, installed, or beside the file of the study.
"""

import hashlib
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from attnlab.base.errors import UserError

PREFIX = "python."
_NAME = re.compile(r"python\.(\w+(?:\.\w+)*)\.(\w+)", re.ASCII)


def among(names: Iterable[str]) -> list[str]:
    """Those of the names that are of functions of one's own."""
    return [name for name in names if name.startswith(PREFIX)]


def parts(name: str) -> tuple[str, str]:
    """The module and the function that a name states; raises UserError unless it states both."""
    if found := _NAME.fullmatch(name):
        return found[1], found[2]
    raise UserError(f"{name!r} names no function: state python.<module>.<function>, such as python.mine.attention")


def file(name: str) -> Path:
    """The file of a function's module, which is not imported; of a package within others, these are.

    Raises:
        UserError: there is none.
    """
    module, _ = parts(name)
    try:
        spec = find_spec(module)
    except Exception:  # whatever the packages raise that it lies in
        spec = None
    if spec is None or spec.origin is None or not spec.has_location:
        path = f"{module.replace('.', '/')}.py"
        where = "beside the study's file, which STUDY names, or on PYTHONPATH"
        raise UserError(f"{name}: there is no module {module!r}: put {path} {where}")
    return Path(spec.origin)


def hashes(names: Iterable[str]) -> dict[str, str]:
    """By name, the SHA-256 of the file of each function of one's own; raises UserError where one has no file."""
    return {name: hashlib.sha256(file(name).read_bytes()).hexdigest() for name in among(names)}
