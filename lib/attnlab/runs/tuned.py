"""Tuned layouts: the fastest implementation for each, as `attnlab.tune` found it, in the user's cache folder."""

import warnings
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, field_validator

from attnlab.base import documents, files, paths
from attnlab.base.errors import UserError
from attnlab.study import implementations, ladder, tuning

CANDIDATES = (*implementations.SDPA, ladder.BEST)
counted = True
"""Whether `attend` uses tuned layouts: not while a run is measured, since it records only the dispatch table."""


class Entry(BaseModel, extra="forbid", frozen=True, strict=True):
    """The fastest implementation at a layout; if it is a kernel, with its hash from `tuning.hashes`."""

    implementation: str
    source: str = ""

    @field_validator("implementation")
    @classmethod
    def _is_a_candidate(cls, name: str) -> str:
        return implementations.require(name, CANDIDATES)


class Tuned(BaseModel, extra="forbid", frozen=True, strict=True):
    """The layouts that were tuned on one device under one PyTorch, by `serving.calls.layout_words`."""

    version: Literal[1] = 1
    device: str
    torch: str
    layouts: dict[str, Entry]


def path(device_name: str, torch: str) -> Path:
    """The file for a device of this name and a version of PyTorch."""
    return paths.cache() / "layouts" / f"{paths.of_device(device_name)}-torch-{torch}.json"


def load(device_name: str, torch: str) -> dict[str, str]:
    """The implementation for each layout, without kernels that changed since; a warning reports a damaged file."""
    if not counted:
        return {}
    try:
        layouts = _read(device_name, torch)
        now = tuning.hashes({entry.implementation for entry in layouts.values()}, device_name)
    except (UserError, OSError, RuntimeError) as error:  # RuntimeError: there is no home
        warnings.warn(f"attend goes by no tuned layouts: {error}", stacklevel=2)
        return {}
    return {words: e.implementation for words, e in layouts.items() if e.source == now.get(e.implementation, "")}


def keep(device_name: str, torch: str, words: str, entry: Entry) -> Path:
    """Add the choice for a layout to the file, which processes share; a damaged file is replaced.

    Raises OSError: the folder isn't writable. RuntimeError: there is no home folder.
    """
    file = path(device_name, torch)
    with files.held(file.with_suffix(".lock")):
        try:
            others = _read(device_name, torch)
        except UserError:
            others = {}
        return documents.write(file, Tuned(device=device_name, torch=torch, layouts=others | {words: entry}))


def _read(device_name: str, torch: str) -> dict[str, Entry]:
    """The entries of the file; none if there is no file, or it is of another device or PyTorch."""
    file = path(device_name, torch)
    if not file.is_file():
        return {}
    held = documents.read(file, Tuned, "record of tuned layouts", "", "attnlab.tune(q, k, v)")
    return held.layouts if (held.device, held.torch) == (device_name, torch) else {}
