"""Is your attention kernel really faster? Two halves, ``measure`` and ``analyse``, that meet in the run folder."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `attnlab.attend` needs torch, which what renders a recorded run doesn't have.
    if name == "attend":
        from attnlab.measure.attend import attend

        return attend
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
