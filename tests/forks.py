"""A server process that has imported everything, and forks a measuring process on request.

Starting Python and importing torch takes most of the time of a test that measures briefly and is killed; a fork takes
milliseconds. Each fork is a separate process group. It takes a list of steps: names of functions in this module with
their arguments. It runs them one after the other, and exits with the last one's result.
"""

import errno
import fcntl
import importlib
import io
import itertools
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import conftest
import pytest
import small
from conftest import wait_until

from attnlab import __main__
from attnlab.base import files
from attnlab.measuring import processes
from attnlab.measuring.instruments import environment
from attnlab.runs import read, schema, write

TESTS = Path(__file__).parent


class Forks:
    """The server as a context manager, which ends all forks at its exit."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._forked = folder, []
        # Forking a process with several threads is unsafe, and tiny shapes need only one.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen([sys.executable, __file__], env=environment, **pipes)
        assert self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *exception: object) -> None:
        for fork in self._forked:
            fork.kill()
        self._process.stdin.close()
        self._process.wait()

    def start(self, *steps: tuple[Any, ...]) -> "Fork":
        """Start a fork that runs these steps in this test's folders; each is a function's name and its arguments."""
        log = self._folder / f"fork-{len(self._forked)}.log"
        log.touch()  # the fork may be killed before it writes anything
        places = {name: os.environ[name] for name in ("ATTNLAB_DATA", "ATTNLAB_REPORTS")}
        fork = Fork(self, int(self.ask({"steps": steps, "log": os.fspath(log), "places": places})), log)
        self._forked.append(fork)
        return fork

    def run(self, *steps: tuple[Any, ...]) -> tuple[int, list[str]]:
        """Start a fork and wait for it; returns its exit status, negative for a signal, and its lines on stderr."""
        return self.start(*steps).end()

    def ask(self, question: Any) -> str:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@dataclass
class Fork:
    """The process group of one fork."""

    forks: Forks
    pid: int
    log: Path

    def kill(self, how: int = signal.SIGKILL) -> None:
        """Send a signal to the whole group, if it still exists."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, how)

    def end(self) -> tuple[int, list[str]]:
        """Wait for the fork; returns its exit status, negative for a signal, and its lines on stderr."""
        status = os.waitstatus_to_exitcode(int(self.forks.ask(self.pid)))
        said = self.log.read_text()
        assert "Traceback" not in said, said
        return status, said.splitlines()

    def wait_for(self, there: Callable[[], object]) -> None:
        """Wait until `there` returns something true."""
        wait_until(there, self.log)

    def wait_till_gone(self) -> None:
        """Wait until every process of the group has ended by itself; some may still clean up."""
        with self.log.open() as log:

            def unlocked() -> bool:
                with suppress(BlockingIOError):
                    return fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB) is None

            wait_until(unlocked, self.log)


# The steps of a fork


def command(*arguments: str) -> int:
    """Run a command of attnlab that forks its measuring processes instead of starting new ones."""
    forking = {"mp_context": multiprocessing.get_context("fork"), "initializer": processes.begin, "initargs": ({},)}
    processes.fresh_processes = lambda: conftest.Quickly(ProcessPoolExecutor(1, **forking))
    return __main__.main(list(arguments))


def call(module: str, name: str, *arguments: Any) -> Any:
    """Call a function of another module."""
    return getattr(importlib.import_module(module), name)(*arguments)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, as under nohup and in a shell's background jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def limit_files(most_bytes: int) -> None:
    """Let no file grow beyond this many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def die_at_block(number: int) -> None:
    """Make a process die, as if killed, when it is about to record the block with this number."""
    _at_block(number, lambda: os._exit(9))


def wait_at_block(number: int, lock: str) -> None:
    """Make a process wait for a lock, which the test holds, when it is about to record the block with this number."""
    _at_block(number, lambda: files.held(Path(lock)).__enter__())


def kill_at(step: int) -> None:
    """Kill the group at this disk operation, counted from 1."""
    watch(pytest.MonkeyPatch(), step, lambda: os.killpg(0, signal.SIGKILL))


def kill_at_survey() -> None:
    """Kill the group when it is about to survey the machine."""
    conftest.quick_survey = lambda *_: os.killpg(0, signal.SIGKILL)


def live(name: str) -> int:
    """All disk operations of a run, from its beginning or its interruption to its end, without measuring."""
    manifest = small.manifest()
    with write.lock(name, {"study": manifest["study"]}):
        if not (schema.folder(name) / "manifest.json").is_file():
            write.create(name, manifest)
        if not read.read_manifest(name)["complete"]:
            for table, key, rows in BLOCKS:
                write.add_part(name, table, key, rows)
        write.finish(name)
    return 0


def _at_block(number: int, act: Callable[[], object]) -> None:
    add, numbers = write.add_part, itertools.count(1)

    def counted(*arguments: Any) -> None:
        if next(numbers) == number:
            act()
        add(*arguments)

    write.add_part = counted


BLOCKS = small.blocks(small.study())


# Disk operations


def watch(patch: pytest.MonkeyPatch, at: int, act: Callable[[], object], only: tuple[str, ...] = ()) -> list[str]:
    """Count disk operations, and call `act` at the one with number `at`, counted from 1.

    Writing a file is 2 operations: one when half is written, and fsync, which is not executed.

    Args:
        only: which of write, fsync, replace, mkdir, unlink and rmdir count; default all.

    Returns:
        A list to which the name of each operation is appended.
    """
    done: list[str] = []

    def step(name: str) -> None:
        if only and name not in only:
            return
        done.append(name)
        if len(done) == at:
            act()

    class Watched(io.FileIO):
        """A file that puts the first half of its content on the disk before it writes the second."""

        def write(self, content: bytes) -> int:
            half = super().write(content[: len(content) // 2])
            step("write")
            return half + super().write(content[half:])

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def stepping(*arguments: Any, **named: Any) -> Any:
            step(name)
            return None if name == "fsync" else real(*arguments, **named)

        return stepping

    patch.setattr(files, "open", Watched, raising=False)
    for name in ("fsync", "replace", "mkdir", "unlink", "rmdir"):
        patch.setattr(os, name, watched(name))
    return done


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# In the server


def _serve() -> None:
    import pyarrow.parquet  # noqa: F401

    environment.lock()  # loads more of torch; nothing here may start a thread, which a fork would lack
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            print(os.waitpid(asked, 0)[1], flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _follow(**asked)
        os.setpgid(pid, pid)
        print(pid, flush=True)


def _follow(steps: list[list[Any]], log: str, places: dict[str, str]) -> None:
    os.setpgid(0, 0)
    os.environ.update(places)
    handle = os.open(log, os.O_WRONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # held as long as a process has the handle
    for descriptor, new in enumerate((os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY), handle)):
        os.dup2(new, descriptor)
    # In a shell's background jobs, SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for name, *arguments in steps:
            status = globals()[name](*arguments)
    except BaseException:
        traceback.print_exc()
        status = 70
    finally:
        sys.stderr.flush()
        os._exit(status or 0)


if __name__ == "__main__":
    _serve()
