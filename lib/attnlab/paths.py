"""Every place on disk, named once."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
PARAMS = NOTEBOOKS / "params"
REFERENCE = ROOT / "data" / "reference"


def kernels() -> Path:
    """Where the hand-written kernels are: ``kernels/``, or what ATTNLAB_KERNELS names."""
    return Path(os.environ.get("ATTNLAB_KERNELS", ROOT / "kernels"))


def data() -> Path:
    """Where runs are: ``data/``, or what ATTNLAB_DATA names."""
    return Path(os.environ.get("ATTNLAB_DATA", ROOT / "data"))


def reports() -> Path:
    """Where reports are rendered: ``reports/``, or what ATTNLAB_REPORTS names."""
    return Path(os.environ.get("ATTNLAB_REPORTS", ROOT / "reports"))


def exports() -> Path:
    """Where runs are exported to: ``exports/``, or what ATTNLAB_EXPORTS names."""
    return Path(os.environ.get("ATTNLAB_EXPORTS", ROOT / "exports"))


def shown(path: Path) -> str:
    """A path as a message shows it: relative to the project where it lies inside."""
    path = Path(path).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
