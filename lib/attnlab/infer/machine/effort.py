"""How long measuring took, in how many replicates and processes."""

from typing import NamedTuple

from attnlab.infer.results import Results
from attnlab.runs.schema import is_of
from attnlab.study.shapes import Shape


class Effort(NamedTuple):
    """What was taken of a study.

    Attributes:
        replicates: how many were taken as a whole, of `asked`; fewer where the run was closed early.
        begun: how many were begun.
        processes: fresh processes over all replicates.
        divided: replicates that took several processes: they were continued, or shared by two cards.
        seconds: from the start of each process to its last sample, all together.
    """

    replicates: int
    begun: int
    asked: int
    processes: int
    divided: int
    seconds: float


def effort(results: Results, shape: Shape | None = None) -> Effort:
    """What was taken of the study of a run, or of one of its shapes."""
    asked, samples = results.study.replicates, results.run.samples
    if shape is not None:
        samples = samples[is_of(samples, shape)]
    closed = results.run.manifest.get("closed_early")
    processes = samples.groupby("replicate")["process"].nunique()
    seconds = float(samples.groupby("process")["started_s"].max().sum())
    taken = closed["replicates"] if closed else asked
    return Effort(taken, len(processes), asked, int(processes.sum()), int((processes > 1).sum()), seconds)
