"""The source files that a module depends on, and their hashes."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
BESIDE = (".cu", ".cuh")
"""Suffixes of sources in another language that belong to the module of the same name next to them."""


@cache
def digests(module: str) -> dict[str, str]:
    """SHA-256 of each source that `module` imports, directly or through others, by its path in the package."""
    files = {path.relative_to(PACKAGE).as_posix(): path for path in reached(module)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def reached(module: str) -> list[Path]:
    """The files of this package that importing and using `module` may read, sorted.

    Imports within functions count, and so do the ``__init__`` of the packages of modules. The ``__init__`` of attnlab
    counts only if a module imports from it, since it names every public function.
    """
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if path is not None and path not in found:
            found |= {path, *(there for suffix in BESIDE if (there := path.with_suffix(suffix)).is_file())}
            parts = name.split(".")
            waiting += [".".join(parts[:count]) for count in range(2, len(parts))]  # its packages
            waiting += _imports(path)
    return sorted(found)


def _file(module: str) -> Path | None:
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """The imports of a file from this package. They include names imported from a module: these might be modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE.name)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE.name:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
