"""What the run folder, which only the client sees, holds for a worker, and the blocks that come home from one."""

from typing import Any

from attnlab.base import paths
from attnlab.measuring.session.subject import Job
from attnlab.runs import dispatch, read, schema, write


def files(about: Any) -> dict[str, bytes]:
    """The files of a process's data folder: the manifest, the dispatch table, and blocks that it builds on.

    Those are a replicate's own for a `Job`, and all of the run for anything else of a run; of no run, there are none.
    """
    if not hasattr(about, "run"):
        return {}
    folder = schema.folder(about.run)
    table = dispatch.path(read.read_manifest(about.run)["device"]["name"])
    start = f"{schema.replicate_key(about.replicate)}-" if isinstance(about, Job) else ""
    parts = [
        path for path in (folder / schema.PARTS).glob("[!.]*.parquet") if path.name.split(".")[1].startswith(start)
    ]
    found = {str(path.relative_to(paths.data())): path for path in (folder / "manifest.json", *parts)}
    if table.is_file():
        found[f"{paths.dispatch().name}/{table.name}"] = table
    return {name: path.read_bytes() for name, path in found.items()}


def take(run: str, blocks: dict[str, bytes]) -> None:
    """Record blocks of a worker, so that a client that is killed meanwhile leaves nothing half recorded.

    Raises:
        OSError: the disk is full, or a block has other content than its name says.
    """

    def turn(name: str) -> tuple[bool, str, bool]:
        table, key, *_ = name.split(".")
        return table != "processes", schema.of_shape(key), table in write.LAST

    for name in sorted(blocks, key=turn):
        write.take_part(run, name, blocks[name])
