"""Packages with attention of their own, which may not be installed."""

from functools import cache
from importlib import import_module
from typing import Any

from attnlab.measuring.subjects.implementation import Unsupported


def installed(module: str, title: str) -> Any:
    """A module of a package that may not be installed; raises Unsupported if it isn't, or lacks what it needs."""
    found = imported(module)
    if not isinstance(found, ImportError):
        return found
    missing = found.name or str(found)
    there = not missing.startswith(module.partition(".")[0])
    raise Unsupported(f"{title} lacks {missing}" if there else f"{title} is not installed")


@cache
def imported(module: str) -> Any:
    """A module, or the ImportError that came of it."""
    try:
        return import_module(module)
    except ImportError as error:
        return error
