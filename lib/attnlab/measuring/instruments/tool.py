"""Run tools in a separate process, mostly Nsight Compute: their output, or the reason why they don't run."""

import csv
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

LONGEST_REASON = 200
SEPARATOR = "spin_kernel"
"""The kernel that `torch.cuda._sleep` launches: it separates calls where kernels are traced or counted."""
PLAN = "plan: "
"""The start of the lines in which a process reports its steps to its parent process."""


class Refused(Exception):
    """A tool failed; the message says why."""


def find_ncu() -> str:
    """The path of Nsight Compute's ``ncu``.

    Raises:
        Refused: it is not installed.
    """
    found = os.environ.get("ATTNLAB_NCU") or shutil.which("ncu")
    if not found:
        raise Refused("not installed: ncu, of Nsight Compute, is neither on PATH nor named by ATTNLAB_NCU")
    return found


def ncu_options(metrics: Iterable[str]) -> list[str]:
    """Options with which ncu counts metrics in the windows that a program opens, and prints them as raw CSV."""
    as_they_are = "--clock-control none --cache-control none"
    alone = "--profile-from-start off --target-processes application-only"  # not the compilers that it starts
    return f"{as_they_are} {alone} --csv --page raw --print-units base --metrics {','.join(metrics)}".split()


def ncu_calls(printed: str) -> tuple[dict[str, str], list[list[dict[str, str]]]]:
    """The units in ncu's raw CSV by column, and for each call its launches, each a row by column.

    A call ends with a launch of `SEPARATOR`, or with the last launch.

    Raises:
        Refused: ncu printed no such table; the message is its reason.
    """
    # The output of the profiled process stands between the rows.
    table = "".join(printed.partition('"ID",')[1:])
    lines = [line for line in table.splitlines() if line.startswith('"')]
    if len(lines) < 2:
        raise Refused(reason(printed))
    header, units, *rows = csv.reader(lines)
    calls: list[list[dict[str, str]]] = [[]]
    for launch in (dict(zip(header, row, strict=False)) for row in rows):
        if SEPARATOR in launch.get("Kernel Name", ""):
            calls.append([])
        else:
            calls[-1].append(launch)
    return dict(zip(header, units, strict=False)), calls if calls[-1] else calls[:-1]


def output(command: list[str], timeout_s: float) -> str:
    """The output of a command, on both streams.

    Raises:
        Refused: the command can't be run, or takes longer than `timeout_s`.
    """
    # It finds the modules that this process finds. In a session of its own, nothing that it starts outlives it.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(command, text=True, env=environ, start_new_session=True, **pipes)
    except OSError as error:
        raise Refused(f"{command[0]} does not run: {error.strerror}") from None
    try:
        return process.communicate(timeout=timeout_s)[0]
    except subprocess.TimeoutExpired:
        raise Refused(f"not done after {timeout_s:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def window(call: Callable[[], object]) -> None:
    """Make the call that ncu runs, inside its window, and then the launch that separates it from the next."""
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def reason(printed: str) -> str:
    """The reason why a tool failed: ncu's first error, else the last line that names an error, else the last line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith((PLAN, '"'))]
    of_ncu = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    errors = [line for line in lines if "rror" in line]
    said = of_ncu[0] if of_ncu else (errors or lines or ["it said nothing"])[-1]
    return said if len(said) <= LONGEST_REASON else f"{said[: LONGEST_REASON - 1]}…"


def to_number(text: str) -> float:
    """Parse a number as ncu prints it, with commas between groups of digits; NaN for anything else."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
