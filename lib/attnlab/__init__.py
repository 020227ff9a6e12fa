"""Is your attention kernel really faster? This package measures it, and shows what the samples say."""

from typing import Any

from attnlab.base.version import VERSION
from attnlab.runs.read import load
from attnlab.study.shapes import Shape

__version__ = VERSION
__all__ = ["Shape", "__version__", "attend", "attention", "load", "register"]


def __getattr__(name: str) -> Any:
    # Imported on first use: they need torch, and `register` transformers, rendering a recorded run doesn't.
    if name == "attend":
        from attnlab.measure.subjects.attend import attend

        return attend
    if name == "attention":
        from attnlab.measure.attention import attention

        return attention
    if name == "register":
        from attnlab.measure.subjects.model import register

        return register
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
