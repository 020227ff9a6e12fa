"""Is your attention kernel really faster? This package measures it, and shows the evidence."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnlab.base.version import VERSION

if TYPE_CHECKING:
    from attnlab import plot, stats
    from attnlab.base import paths
    from attnlab.explorer import explore
    from attnlab.frames import compare, compare_errors, compare_runs, control, load, summarize, target, where, worst
    from attnlab.measurement import check, measure
    from attnlab.measuring.fp8.quantize import quantize
    from attnlab.measuring.subjects.handles import kernel, peer, sdpa
    from attnlab.profile import clocks, counters
    from attnlab.roofline import add_floor, add_work
    from attnlab.serving.attend import attend, attend_ragged
    from attnlab.serving.attention import attention
    from attnlab.serving.huggingface import register
    from attnlab.serving.tune import tune
    from attnlab.study.shapes import Shape
    from attnlab.study.studies import sweep
    from attnlab.tables import holds, statement, table, with_interval

__version__ = VERSION
_HOMES = {
    "base.paths": ["paths"],
    "plot": ["plot"],
    "stats": ["stats"],
    "serving.tune": ["tune"],
    "explorer": ["explore"],
    "measurement": ["check", "measure"],
    "measuring.subjects.handles": ["kernel", "peer", "sdpa"],
    "study.studies": ["sweep"],
    "frames": ["compare", "compare_errors", "compare_runs", "control", "load", "summarize", "target", "where", "worst"],
    "serving.attention": ["attention"],
    "measuring.fp8.quantize": ["quantize"],
    "serving.attend": ["attend", "attend_ragged"],
    "serving.huggingface": ["register"],
    "profile": ["clocks", "counters"],
    "roofline": ["add_floor", "add_work"],
    "study.shapes": ["Shape"],
    "tables": ["holds", "statement", "table", "with_interval"],
}
MODULES = {"paths", "plot", "stats"}
"""Names that are modules."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}
__all__ = ["Shape", "__version__"]
__all__ += ["add_floor", "add_work", "attend", "attend_ragged", "attention", "check", "clocks", "compare"]
__all__ += [
    "compare_errors",
    "compare_runs",
    "control",
    "counters",
    "explore",
    "holds",
    "kernel",
    "load",
    "measure",
    "paths",
    "peer",
]
__all__ += ["plot", "quantize", "register", "sdpa", "statement", "stats", "summarize", "sweep", "table", "target"]
__all__ += ["tune", "where", "with_interval", "worst"]


def __getattr__(name: str) -> Any:
    # Imported on first use: every process begins with this module, and reading a recorded run needs no torch.
    if name not in _HOME:
        raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
    try:
        module = import_module(f"attnlab.{_HOME[name]}")
    except ModuleNotFoundError as error:
        extra = "[model]" if error.name == "transformers" else "[cuda], or [cpu]"
        said = f"attnlab.{name} needs {error.name}, which is not installed: install attnlab with its extra {extra}"
        raise ModuleNotFoundError(said, name=error.name) from None
    found = globals()[name] = module if name in MODULES else getattr(module, name)
    return found
