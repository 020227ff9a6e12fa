"""Reading what is shown: its text, its cells, and the numbers in them; and what make says."""

import os
import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from bs4 import BeautifulSoup

from attnlab.base import paths
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Content, Table
from attnlab.infer.results import Results

READMES = ("README.md", "CONTRIBUTING.md", *(f"{of}/README.md" for of in ("kernels", "data", "figures", "reports")))
PAGES = [*(paths.ROOT / name for name in READMES), *sorted((paths.ROOT / "docs").glob("*.md"))]
"""What is written by hand, but for the notebooks."""
NOT_A_NUMBER = re.compile(r"\b(nan|NaN|None|inf|NA)\b")
"""What Python prints of a number that is missing."""


@cache
def exhibit(run: Callable[[], Results], id: str) -> Any:
    """An exhibit of a run that tests share, made once. Not to be changed."""
    return Show(run())(id).content


def plain(shown: Content) -> str:
    """What is shown, as plain text."""
    return shown.bundle()["text/plain"]


def html(shown: Content, anchor: str = "") -> BeautifulSoup:
    """What is shown, as the page has it."""
    bundle = shown.bundle(anchor)
    return BeautifulSoup(bundle.get("text/html", bundle["text/plain"]), "html.parser")


def column(table: Table, title: str) -> list[Any]:
    """The cells below a title; None where there is a dash."""
    return [None if pd.isna(cell) else cell for cell in table.frame[title]]


def values(table: Table) -> dict[str, Any]:
    """A table of two columns: the second by the first."""
    return dict(table.frame.itertuples(index=False, name=None))


def make(*words: str, cwd: Path = paths.ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run make as a user does: outside of the make that may have started these tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    for name in ("PYTHON", "RUN", "STUDY", "RUNG", "DEVICE", "GPUS", "SCHEDULER", "PYTHONPATH"):
        inherited.pop(name, None)
    return subprocess.run(
        ["make", *words], cwd=cwd, capture_output=True, text=True, env=inherited | environment, timeout=600
    )
