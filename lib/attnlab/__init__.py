"""Is your attention kernel really faster? This package measures it, and shows what the samples say."""

from typing import Any

from attnlab.base.version import VERSION
from attnlab.runs.read import load
from attnlab.study.shapes import Shape

__version__ = VERSION
__all__ = ["Shape", "__version__", "attend", "load"]


def __getattr__(name: str) -> Any:
    # Imported on first use: it needs torch, rendering a recorded run doesn't.
    if name == "attend":
        from attnlab.measure.subjects.attend import attend

        return attend
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
