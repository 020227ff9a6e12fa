"""Where everything is on disk."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOKS = ROOT / "notebooks"
STUDIES = ROOT / "studies"
REFERENCE = ROOT / "data" / "reference"


def kernels() -> Path:
    """The folder of the hand-written kernels: ``kernels/``, or the value of ATTNLAB_KERNELS."""
    return Path(os.environ.get("ATTNLAB_KERNELS", ROOT / "kernels"))


def data() -> Path:
    """The folder of the runs: ``data/``, or the value of ATTNLAB_DATA."""
    return Path(os.environ.get("ATTNLAB_DATA", ROOT / "data"))


def reports() -> Path:
    """The folder of the reports: ``reports/``, or the value of ATTNLAB_REPORTS."""
    return Path(os.environ.get("ATTNLAB_REPORTS", ROOT / "reports"))


def exports() -> Path:
    """The folder of the exports: ``exports/``, or the value of ATTNLAB_EXPORTS."""
    return Path(os.environ.get("ATTNLAB_EXPORTS", ROOT / "exports"))


def shown(path: Path) -> str:
    """A path as messages show it: relative to the project if it lies inside."""
    path = Path(path).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
