"""The hand-written pages, `make` run as a user runs it, and programs to put in place of others."""

import os
import subprocess
from pathlib import Path

from attnlab.base import paths

READMES = ("README.md", "CONTRIBUTING.md", *(f"{of}/README.md" for of in ("kernels", "data", "figures", "reports")))
PAGES = [*(paths.ROOT / name for name in READMES), *sorted((paths.ROOT / "docs").glob("*.md"))]
"""The hand-written pages, without the notebooks."""


def program(file: Path, script: str) -> Path:
    """Write a shell script that may be executed; returns its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def make(*words: str, cwd: Path = paths.ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run make as a user does: independent of a make that started these tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    for name in ("PYTHON", "RUN", "STUDY", "RUNG", "DEVICE", "GPUS", "SCHEDULER", "PYTHONPATH"):
        inherited.pop(name, None)
    return subprocess.run(
        ["make", *words], cwd=cwd, capture_output=True, text=True, env=inherited | environment, timeout=600
    )
