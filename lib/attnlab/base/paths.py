"""The paths of all files and folders.

In a checkout they are all inside it. An installed package holds the project's own folders (kernels, studies, notebooks,
reference data, dispatch tables) in ``attnlab/project/``. Its runs, reports and exports are kept in the working folder.
An empty variable counts as not set.
"""

import os
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "project"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parents[1]
NOTEBOOKS = ROOT / "notebooks"
STUDIES = ROOT / "studies"
REFERENCE = ROOT / "data" / "reference"


def working() -> Path:
    """The folder that holds runs, reports and exports: the checkout, or the current folder if attnlab is installed."""
    return Path.cwd() if ROOT == _INSTALLED else ROOT


def kernels() -> Path:
    """The folder of the hand-written kernels: ``kernels/``, or the value of ATTNLAB_KERNELS."""
    return Path(os.environ.get("ATTNLAB_KERNELS") or ROOT / "kernels")


def data() -> Path:
    """The folder of the runs: ``data/``, or the value of ATTNLAB_DATA."""
    return Path(os.environ.get("ATTNLAB_DATA") or working() / "data")


def dispatch() -> Path:
    """The folder of the dispatch tables: ``dispatch/`` in the project's ``data/``, or in the value of ATTNLAB_DATA."""
    return Path(os.environ.get("ATTNLAB_DATA") or ROOT / "data") / "dispatch"


def reports() -> Path:
    """The folder of the reports: ``reports/``, or the value of ATTNLAB_REPORTS."""
    return Path(os.environ.get("ATTNLAB_REPORTS") or working() / "reports")


def exports() -> Path:
    """The folder of the exports: ``exports/``, or the value of ATTNLAB_EXPORTS."""
    return Path(os.environ.get("ATTNLAB_EXPORTS") or working() / "exports")


def cache() -> Path:
    """The user's cache folder: the value of ATTNLAB_CACHE, or ``attnlab/`` in $XDG_CACHE_HOME or ``~/.cache/``."""
    above = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ATTNLAB_CACHE") or Path(above) / "attnlab")


def users(path: Path) -> Path:
    """The path of the user's version of a file: in a checkout the path itself, for an installed file one in `cache`."""
    return cache() / path.relative_to(_INSTALLED) if path.is_relative_to(_INSTALLED) else path


def preferred(path: Path) -> Path:
    """The file to read: the user's own version where there is one, else the path itself."""
    own = users(path)
    return own if own.is_file() else path


def of_device(name: str) -> str:
    """The name of a device in file names, such as ``nvidia-h200``; of a longer name, the first 60 letters."""
    return re.sub(r"[\s/\\]+", "-", name.strip().lower())[:60]


def shown(path: Path) -> str:
    """A path as messages show it: relative to the folder of the runs and reports if it is inside."""
    path, folder = Path(os.path.abspath(path)), working()  # a link keeps its own name
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
