"""Install extras of pyproject.toml into `.venv`; after an interrupted installation, the next call makes `.venv` again.

The Makefile calls `environment.py EXTRA-EXTRA cpu|cuda` in the repository's folder. `render` stands for no extras; the
last word is the build of PyTorch that this machine's driver can run.
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
LOG = VENV / "pip.log"
LOCK = Path(".venv.lock")
"""Locked by the installing process; not empty while `.venv` changes."""
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
AT_ONCE = ("--retries", "0", "--timeout", "5")


def main(extras: str, build: str) -> None:
    """Install the extras, unless another process installed them while this one waited for the lock."""
    with open(LOCK, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another make is installing into .venv: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = VENV / f".ready-{extras}"
        if not _works(lock):
            _make(lock)
        elif _is_newer(stamp, "pyproject.toml", "requirements.lock"):
            return
        _install([] if extras == "render" else extras.split("-"), build, lock)
        stamp.touch()


def _works(lock: TextIO) -> bool:
    if not VENV.exists():
        return False
    if os.fstat(lock.fileno()).st_size:
        _say("an installation was cut off: .venv is made again")
        return False
    check = "import sys, pip; sys.exit(sys.version_info < (3, 11))"
    try:
        works = subprocess.run([PYTHON, "-Ic", check], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        works = False
    if not works:
        _say(".venv has no pip for Python 3.11 or newer: it is made again")
    return works


def _is_newer(stamp: Path, *names: str) -> bool:
    return stamp.exists() and all(stamp.stat().st_mtime >= Path(name).stat().st_mtime for name in names)


def _make(lock: TextIO) -> None:
    _say(f"making .venv with Python {sys.version.split()[0]}")
    if _run([sys.executable, "-m", "venv", "--clear", str(VENV)], lock):
        sys.exit(1)  # venv printed the reason


def _install(extras: list[str], build: str, lock: TextIO) -> None:
    _say(f"installing attnlab [{', '.join(extras) or 'render'}] as requirements.lock pins it; {LOG} says how far it is")
    torch = re.findall(r"^torch==(\S+)", Path("requirements.lock").read_text(), re.MULTILINE)[0]
    requirements = [f"-e.[{','.join(extras)}]" if extras else "-e."]
    if "cuda" in extras or ("cpu" in extras and build == "cuda"):
        requirements.append(f"torch!={torch}+cpu")  # makes pip replace the CPU build as well
    elif "cpu" in extras and sys.platform == "linux":
        _take_cpu_build(torch, lock)
    failure = _pip(requirements, lock)
    if "Retry(total=0" in failure:
        sys.exit("the package index does not answer: connect this machine, or name a mirror by PIP_INDEX_URL")
    if failure:
        lines = [line for line in failure.splitlines() if line and not line.startswith("WARNING")]
        sys.exit("\n".join(lines[-5:]))


def _take_cpu_build(version: str, lock: TextIO) -> None:
    """Install a PyTorch build without CUDA's libraries, if any index has one; on Linux, PyPI's wheels include them."""
    if any(VENV.glob(f"lib/python*/site-packages/torch-{version}[.+]*")):
        return
    index = os.environ.get("ATTNLAB_TORCH_INDEX") or CPU_BUILDS
    for source in ([], ["--index-url", index]):
        wanted = ["--no-deps", *source, f"torch=={version}+cpu"]
        failure = _pip([*AT_ONCE, *wanted], lock)
        if failure and "No matching distribution" not in failure:
            failure = _pip(wanted, lock)  # the build exists; retry with more patience
        if not failure:
            return
    _say(
        f"found no CPU build of torch {version} in pip's index or in {index}: downloading the CUDA build, several GB; "
        "ATTNLAB_TORCH_INDEX=<address> names another index of CPU builds"
    )


def _pip(words: list[str], lock: TextIO) -> str:
    """Run pip; return "" on success, else pip's output."""
    with open(LOG, "w") as log:
        status = _run([PYTHON, "-m", "pip", "install", "--no-input", "-c", "requirements.lock", *words], lock, log)
    ended = [f"pip was ended by signal {-status}"] if status < 0 else []
    return "\n".join([LOG.read_text(errors="replace"), *ended]) if status else ""


def _run(command: list[str | Path], lock: TextIO, log: TextIO | None = None) -> int:
    """Run a command that changes `.venv`. It inherits the lock, since it may outlive this process."""
    print("installing", file=lock, flush=True)
    process = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=[lock.fileno()])
    try:
        process.wait()
    except KeyboardInterrupt:
        process.wait()  # Ctrl-C interrupted it, too
        raise
    except SystemExit:
        process.terminate()
        process.wait()
        raise
    finally:
        failed = log is not None and (process.returncode or 0) > 0
        if process.returncode == 0 or (
            failed and "Installing collected packages" not in LOG.read_text(errors="replace")
        ):
            lock.truncate(0)
    return process.returncode


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
