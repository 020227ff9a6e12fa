"""The companions of a run: the newest runs on its device that hold what the pages show beside it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attnlab.base.errors import UserError
from attnlab.infer.results import Results
from attnlab.runs import read
from attnlab.runs.schema import Manifest
from attnlab.study import tuning
from attnlab.study.implementations import DISPATCH, FP8, PEERS
from attnlab.study.values import NORMAL

COMPANIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "choices": lambda study: "grid seq_len" in study["sweeps"],
    "attended": lambda study: DISPATCH in study["implementations"],
    "decoded": lambda study: (
        not set(PEERS).isdisjoint(study["implementations"])  # a run without them can't say who leads
        and any(len(_few(block)) > 2 for sweep in study["sweeps"].values() for block in sweep)
    ),
    "eight_bits": lambda study: not set(FP8).isdisjoint(study["implementations"]),
    "valued": lambda study: any(
        block.get("values", NORMAL) != NORMAL for sweep in study["sweeps"].values() for block in sweep
    ),
}
"""By the name of a companion: whether a study holds what the companion is shown for."""


def _few(block: dict[str, Any]) -> set[int]:
    """The numbers of queries in a block of a sweep that are few over more keys."""
    keys = max(_listed(block.get("kv_len", 0)))
    return {queries for queries in _listed(block["seq_len"]) if tuning.are_few(queries, keys)}


def _listed(sizes: int | list[int]) -> list[int]:
    return sizes if isinstance(sizes, list) else [sizes]


def companion_of(mine: Manifest, companion: str, load: Callable[[str], Results]) -> Results | None:
    """The newest complete run on the device of a manifest whose study fits; None if its own fits, or if none does."""
    fits = COMPANIONS[companion]
    if fits(mine["study"]):
        return None
    for name, manifest in read.manifests():
        same = manifest["device"]["name"] == mine["device"]["name"]
        if manifest["complete"] and same and fits(manifest["study"]):
            with suppress(UserError):  # a run that is refused is no companion
                return load(name)
    return None
