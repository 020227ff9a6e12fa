"""The hand-written pages, and `make` run as a user runs it."""

import os
import subprocess
from pathlib import Path

from attnlab.base import paths

READMES = ("README.md", "CONTRIBUTING.md", *(f"{of}/README.md" for of in ("kernels", "data", "figures", "reports")))
PAGES = [*(paths.ROOT / name for name in READMES), *sorted((paths.ROOT / "docs").glob("*.md"))]
"""The hand-written pages, without the notebooks."""


def make(*words: str, cwd: Path = paths.ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run make as a user does: independent of a make that started these tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    for name in ("PYTHON", "RUN", "STUDY", "RUNG", "DEVICE", "GPUS", "SCHEDULER", "PYTHONPATH"):
        inherited.pop(name, None)
    return subprocess.run(
        ["make", *words], cwd=cwd, capture_output=True, text=True, env=inherited | environment, timeout=600
    )
