"""Evidence that no longer speaks of the kernels as they are."""

from attnlab import ladder, paths
from attnlab.runs import Run


def stale(run: Run) -> list[str]:
    """The kernels of a run that changed since, or are gone; where there is no ladder at all, none is.

    A kernel is its source, the headers of ours that it includes, and its entry in the ladder.
    """
    if not (paths.kernels() / "ladder.toml").is_file():
        return []
    now = ladder.hashes()
    measured = {name: value for name, value in run.manifest["kernels"].items() if name.startswith(ladder.PREFIX)}
    return [name for name, value in measured.items() if now.get(name) != value]
