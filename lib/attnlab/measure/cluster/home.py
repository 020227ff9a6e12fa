"""What the run folder, which only the client sees, holds for a worker, and what it still lacks."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attnlab.base import paths
from attnlab.measure.session.subject import Job
from attnlab.runs import dispatch, read, schema, write
from attnlab.study.shapes import Shape

LEAST_S = 1e-3
"""What a shape counts for at least in sharing out: what no memory holds takes no time."""


def lacking(job: Job) -> Job | None:
    """The shapes of a job of which not all blocks are at home, and its stream; None if nothing is lacking."""
    done = write.recorded(job.run, "cases")
    shapes = tuple(s for s in job.shapes if schema.shape_key(job.study, s, job.replicate) not in done)
    stream = job.stream and schema.replicate_key(job.replicate) not in write.recorded(job.run, "stream")
    return replace(job, shapes=shapes, stream=stream) if shapes or stream else None


def files(about: Any) -> dict[str, bytes]:
    """What a process finds in its data folder: the manifest, the dispatch table, and blocks that it builds on.

    Those are a replicate's own, for a `Job`, and else all of the run. What is about no run finds nothing.
    """
    if not hasattr(about, "run"):
        return {}
    folder = schema.folder(about.run)
    table = dispatch.path(read.read_manifest(about.run)["device"]["name"])
    start = f"{schema.replicate_key(about.replicate)}-" if isinstance(about, Job) else ""
    parts = [
        path for path in (folder / schema.PARTS).glob("[!.]*.parquet") if path.name.split(".")[1].startswith(start)
    ]
    found = [folder / "manifest.json", *parts, *([table] if table.is_file() else [])]
    return {str(path.relative_to(paths.data())): path.read_bytes() for path in found}


def seconds(job: Job) -> Callable[[Shape], float]:
    """About how long a replicate of each shape takes, as it was estimated when the run began."""
    planned_s = read.read_manifest(job.run).get("planned_s") or [1.0] * len(job.study.shapes)
    return {shape: max(one, LEAST_S) for shape, one in zip(job.study.shapes, planned_s, strict=True)}.__getitem__


def measured_by_card(run: str) -> Counter[tuple[str, Shape]]:
    """In how many replicates each card has measured each shape, by the run's blocks."""
    processes = [read.part(run, "processes", key) for key in write.recorded(run, "processes")]
    cards = {row["process"]: row["card"] for rows in processes for row in rows.to_dict("records")}
    counted: Counter[tuple[str, Shape]] = Counter()
    for key in write.recorded(run, "cases") if any(cards.values()) else ():
        axes = read.part(run, "cases", key)[["process", *Shape.AXES]].head(1).to_dict("records")[0]
        counted[cards[axes.pop("process")], Shape(**axes)] += 1
    return counted
