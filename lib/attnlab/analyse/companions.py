"""Runs beside the one that is shown: on the same device, of studies that answer what this one's doesn't."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from attnlab import runs
from attnlab.analyse.results import Results, of
from attnlab.errors import UserError


def with_sweep(results: Results, sweep: str) -> Results:
    """The newest run on this device whose study has a sweep: this one if its own has, or if there is none."""
    return _newest(results, lambda study: sweep in study["sweeps"])


def with_implementation(results: Results, name: str) -> Results:
    """The newest run on this device whose study names an implementation: this one if its own does, or there is none."""
    return _newest(results, lambda study: name in study["implementations"])


def beside(results: Results) -> list[Results]:
    """All whom the pages show beside this run, each once."""
    there = [
        with_sweep(results, "grid seq_len"),
        with_implementation(results, "peer.flex"),
        with_implementation(results, "dispatch.attend"),
    ]
    return list({other.run.name: other for other in there if other.run.name != results.run.name}.values())


def _newest(results: Results, answers: Callable[[dict[str, Any]], bool]) -> Results:
    if answers(results.run.manifest["study"]):
        return results
    device = results.run.manifest["device"]["name"]
    for name in reversed(runs.names()):
        with suppress(UserError):  # a run that is refused is no companion
            manifest = runs.read_manifest(name)
            if manifest["complete"] and manifest["device"]["name"] == device and answers(manifest["study"]):
                return of(runs.load(name))
    return results
