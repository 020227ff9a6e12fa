"""Times the README's 2 commands on a fresh clone of the last commit, including installation.

    python benchmarks/commands.py    # writes benchmarks/commands.toml

Run it on an idle machine. It keeps no run and no page.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from attnlab.base import paths

COMMANDS = ("make report", "make test")
WRITTEN = Path(__file__).with_suffix(".toml")


def main() -> None:
    """Time both commands, one after the other, and write the result."""
    commit = _git("rev-parse", "--short", "HEAD")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "attnlab"
        _git("clone", "--quiet", str(paths.ROOT), str(clone))
        seconds = [_timed(command, clone) for command in COMMANDS]
    WRITTEN.write_text(_written(commit, seconds))
    print(WRITTEN.read_text(), end="")


def _timed(command: str, folder: Path) -> float:
    print(f"{command} ...", file=sys.stderr, flush=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ATTNLAB"))}
    started = time.monotonic()
    subprocess.run(command.split(), cwd=folder, check=True, stdout=subprocess.DEVNULL, env=kept | {"PYTHONPATH": ""})
    return time.monotonic() - started


def _written(commit: str, seconds: list[float]) -> str:
    lines = [
        "# What the README's commands take, one after the other on a fresh clone: benchmarks/commands.py writes it.",
        f'day = "{datetime.now(UTC):%Y-%m-%d}"',
        f'commit = "{commit}"',
        f'machine = "{platform.machine()}"',
        f"cores = {os.cpu_count()}",
        f"gpus = {_gpus()}",
    ]
    for command, took_s in zip(COMMANDS, seconds, strict=True):
        lines += ["", "[[commands]]", f'command = "{command}"', f"seconds = {took_s:.0f}"]
    return "\n".join(lines) + "\n"


def _gpus() -> int:
    if not shutil.which("nvidia-smi"):
        return 0
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    return len(listed.stdout.splitlines()) if listed.returncode == 0 else 0


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=paths.ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
