"""Is your attention kernel really faster? This package measures it, and shows what the samples say."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnlab.base.version import VERSION

if TYPE_CHECKING:
    from attnlab.autotune import tune
    from attnlab.measure.attention import attention
    from attnlab.measure.fp8.quantize import quantize
    from attnlab.measure.subjects.attend import attend
    from attnlab.measure.subjects.model import register
    from attnlab.runs.read import load
    from attnlab.study.shapes import Shape

__version__ = VERSION
__all__ = ["Shape", "__version__", "attend", "attention", "load", "quantize", "register", "tune"]
_HOMES = {
    "Shape": "attnlab.study.shapes",
    "attend": "attnlab.measure.subjects.attend",
    "attention": "attnlab.measure.attention",
    "load": "attnlab.runs.read",
    "quantize": "attnlab.measure.fp8.quantize",
    "register": "attnlab.measure.subjects.model",
    "tune": "attnlab.autotune",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: every process begins with this module, and rendering a recorded run needs no torch.
    if name in _HOMES:
        try:
            found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            extra = "[model]" if error.name == "transformers" else "[cuda], or [cpu]"
            said = f"attnlab.{name} needs {error.name}, which is not installed: install attnlab with its extra {extra}"
            raise ModuleNotFoundError(said, name=error.name) from None
        return found
    raise AttributeError(f"module 'attnlab' has no attribute {name!r}")
