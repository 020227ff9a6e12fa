"""Cells and notes that several tables share."""

import re
from collections.abc import Iterable
from typing import Any

from attnlab.exhibits import formats
from attnlab.infer.cases import AXES
from attnlab.infer.kernels.rungs import Changes, stale
from attnlab.infer.lookup import shape_of
from attnlab.infer.results import Absence, Results, absence
from attnlab.runs.schema import MEASURED, TOO_LONG, Run
from attnlab.study.implementations import FP8_QUANTIZING, PEERS, in_fp8
from attnlab.study.shapes import Shape

CAUSAL_NOTE = (
    "Causal FLOPs count the scores under the mask, 2·B·H·S·(S+1)·D; half of 4·B·H·S²·D would be S/(S+1) of it."
)
LETTERS = {"seq_len": "S", "batch": "B", "heads": "H", "kv_heads": "KV heads", "kv_len": "keys"}
REGIMES = {
    "burst": "in bursts",
    "sustained": "under sustained load",
    "mixed": "partly in bursts and partly under sustained load",
    "not recorded": "in a regime that was not recorded",
}
"""How a sentence names each regime."""


def without(results: Results, names: list[str], shape: Shape) -> str:
    """Sentences on the implementations that have no latency at a shape, each with the reason."""
    there = results.at(shape).index
    reasons = {name: absence(results, name, shape) for name in names if name not in there}
    return " ".join(f"`{name}` has no latency here: {formats.ended(reason, 160)}" for name, reason in reasons.items())


def absent(found: Iterable[Absence]) -> str:
    """Sentences on the implementations that have no latency at some of a table's shapes, each reason once."""
    by_reason: dict[tuple[int, str], list[str]] = {}
    for one in found:
        said = f"`{one.implementation}` at {one.missing}"
        by_reason.setdefault((one.of, alike(one.reason, one.implementation)), []).append(said)
    return " ".join(
        f"No latency of {formats.listing(names)} of {of}: {formats.ended(reason)}"
        for (of, reason), names in by_reason.items()
    )


def alike(reason: str, name: str) -> str:
    """Why an implementation has no latency: the first reason, without its name and what differs from shape to shape."""
    first = re.sub(rf"({TOO_LONG}) [^ ]+ ms, longer", r"\1 longer", reason.split("; ")[0])
    of_itself = "|".join(map(re.escape, (name, name.split(".")[-1])))
    return re.sub(rf"(?:(^|, )(?:{of_itself}) )|(?:, not \(.*)", r"\1", first)


def since(run: Run, names: Iterable[str]) -> str:
    """After the date of a run, which of these have changed since it was recorded; or nothing."""
    found = stale(run)
    changed = {name: found[name] for name in names if name in found}
    return f", since when {changes(changed)} {'has' if len(changed) == 1 else 'have'} changed" if changed else ""


def changes(found: Changes) -> str:
    """``kernel.mma and kernel.best (at 2 shapes)``: what has changed, and at how many shapes where it isn't all."""
    at = {
        name: f" (at {len(shapes)} shape{'s' * (len(shapes) > 1)})" if shapes else "" for name, shapes in found.items()
    }
    return formats.listing([f"`{name}`{where}" for name, where in at.items()])


def by_run(run: Run, names: Iterable[str]) -> str:
    """A sentence that names a run with its date, what of these names has changed since, and what has one replicate."""
    return f"By the run `{run.name}` of {run.manifest['created'][:10]}{since(run, names)}{_single(run)}."


def of_another(results: Results, found: Results, *names: str) -> str:
    """After a blank, the same of a run that is not the one that is shown, or nothing; and which peers it lacks."""
    if found.run.name == results.run.name:
        return ""
    date = found.run.manifest["created"][:10]
    said = f"{since(found.run, names)}{_single(found.run)}{lacking(results, found)}"
    return f" (Run `{found.run.name}` of {date}{said}.)"


def _single(run: Run) -> str:
    """After a semicolon, how many shapes of a run that ended before its last replicate have only one; or nothing."""
    replicates = run.cases[run.cases["status"] == MEASURED].groupby(AXES, sort=False)["replicate"].nunique()
    single = int((replicates == 1).sum()) if run.manifest["study"]["replicates"] > 1 else 0
    of = "" if single == len(replicates) else f"{single} of its {formats.count(len(replicates), 'shape')} "
    return f"; {of}in a single replicate" if single else ""


def lacking(results: Results, found: Results) -> str:
    """After a semicolon, the peers of the run that is shown which are not in another; or nothing."""
    there = found.study.implementations
    names = [name for name in PEERS if name in results.study.implementations and name not in there]
    return f"; without {formats.names(names)}" if names else ""


def given(names: Iterable[str]) -> str:
    """After a blank, what those that compute in FP8 are given, and whether quantising is timed; nothing of others."""
    fp8 = list(filter(in_fp8, names))
    stated = {
        "given e4m3; quantising isn't timed": [name for name in fp8 if name not in FP8_QUANTIZING],
        "given 16 bits; quantising is timed": [name for name in fp8 if name in FP8_QUANTIZING],
    }
    said = (f" {formats.names(of)} {'is' if len(of) == 1 else 'are'} {words}." for words, of in stated.items() if of)
    return "".join(said)


def where(results: Results, row: Any) -> str:
    """The shape of a row, as it is told from the others of its study."""
    return formats.shapes([shape_of(row)], results.study.shapes)


def explained(mark: str) -> str:
    """The meaning of a mark in brackets, within a sentence."""
    return f" ({mark[2:]})" if mark else ""
