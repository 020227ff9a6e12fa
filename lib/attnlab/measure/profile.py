"""Nsight Compute's counters of one call at the study's target, for each implementation that was measured there.

ncu runs this module in a process of its own, which warms an implementation up and opens ncu's window for a single call.
Each kernel of that call is run again and again, a few counters at a time, so nothing here is a latency: durations from
here belong beside other counters and never beside samples.
"""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from typing import Any

import pandas as pd
import torch

from attnlab import runs
from attnlab.measure import environment, inputs, registry
from attnlab.shapes import Shape
from attnlab.studies import Study

WARMUP_CALLS = 20
TIMEOUT_S = 120
STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
ELAPSED = "avg.pct_of_peak_sustained_elapsed"
METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "sm__cycles_active.avg",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    f"smsp__issue_active.{ELAPSED}",
    f"sm__pipe_tensor_cycles_active.{ELAPSED}",
    f"sm__inst_executed_pipe_xu.{ELAPSED}",
    f"sm__pipe_fma_cycles_active.{ELAPSED}",
    f"sm__pipe_alu_cycles_active.{ELAPSED}",
    f"sm__inst_executed_pipe_lsu.{ELAPSED}",
    f"l1tex__throughput.{ELAPSED}",
    f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{ELAPSED}",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__t_sector_hit_rate.pct",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    f"lts__throughput.{ELAPSED}",
    "lts__t_sector_hit_rate.pct",
    f"dram__throughput.{ELAPSED}",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__inst_executed.sum",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_dynamic",
    "launch__shared_mem_per_block_static",
    "launch__block_size",
    "launch__grid_size",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__occupancy_limit_blocks",
    *(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in STALLS),
)
"""What is counted, by Nsight Compute's names from compute capability 7.0 on; a chip that lacks one leaves it out."""
COLUMNS = [*runs.CASE, "function", "launch", "metric", "unit", "value"]


class Refused(Exception):
    """ncu profiled nothing; the message says why."""


def take(name: str, study: Study, device: str) -> dict[str, str]:
    """Profile what the run lacks of its target, and return what its manifest says of the profile.

    Whatever ncu can't do costs the run its counters and nothing else.
    """
    if device != "cuda":
        return _told(why="Nsight Compute profiles NVIDIA GPUs, which this device is not")
    ncu = os.environ.get("ATTNLAB_NCU") or shutil.which("ncu")
    if not ncu:
        return _told(why="ncu, of Nsight Compute, was not there: put it on PATH, or name it in ATTNLAB_NCU")
    try:
        tool = version(ncu)
    except Refused as refused:
        return _told(why=str(refused))
    shape, problems = study.target_shape, []
    for implementation in _measured(name, study):
        if _key(implementation) in runs.recorded(name, "profile"):
            continue
        print(f"{name}: counters of {implementation}", file=sys.stderr, flush=True)
        try:
            rows = counters(ncu, implementation, shape)
        except Refused as refused:
            problems.append(f"{implementation}: {refused}")
            if "ERR_NVGPUCTRPERM" in str(refused):
                problems = [str(refused)]  # what one process may not read, none may
                break
        else:
            runs.add_part(name, "profile", _key(implementation), rows)
    words = ["python" if word == sys.executable else word for word in command("IMPLEMENTATION", shape)]
    return _told(tool, "; ".join(problems), shlex.join(words))


def version(ncu: str) -> str:
    """Which Nsight Compute it is.

    Raises:
        Refused: it doesn't run.
    """
    said = _output([ncu, "--version"], timeout_s=30)
    found = re.search(r"Version (\S+)", said)
    return f"ncu {found[1]}" if found else "ncu"


def counters(ncu: str, implementation: str, shape: Shape) -> pd.DataFrame:
    """A row per launch and metric of one call.

    Raises:
        Refused: ncu gave no counters.
    """
    rows = parse(_output([ncu, *command(implementation, shape)[1:]], TIMEOUT_S))
    case = {"implementation": implementation, **shape.axes}
    return rows.assign(**case)[COLUMNS]


def command(implementation: str, shape: Shape) -> list[str]:
    """The command that profiles a case: caches as the call before left them, clocks as they are."""
    options = "--clock-control none --cache-control none --profile-from-start off --csv --page raw --print-units base"
    profiled = [sys.executable, "-m", "attnlab.measure.profile", implementation, json.dumps(shape.axes)]
    return ["ncu", *options.split(), "--metrics", ",".join(METRICS), *profiled]


def parse(output: str) -> pd.DataFrame:
    """What ncu printed as raw CSV, tidy: function, launch, metric, unit and value; what it couldn't count is left out.

    Raises:
        Refused: there is no launch in it; the message is what ncu said instead.
    """
    said, found, table = output.partition('"ID",')
    if not found:
        raise Refused(_reason(output))
    # What the profiled process says stands between the rows.
    lines = [line for line in (found + table).splitlines() if line.startswith('"')]
    header, *rest = csv.reader(lines)
    units, *launches = [dict(zip(header, row, strict=False)) for row in rest] or [{}]
    rows: list[dict[str, Any]] = []
    for number, launch in enumerate(launches):
        where = {"function": launch.get("Kernel Name", ""), "launch": number}
        for metric in METRICS:
            if (amount := _number(launch.get(metric, ""))) is not None:
                rows.append(where | {"metric": metric, "unit": units.get(metric, ""), "value": amount})
    if not rows:
        raise Refused(_reason(said))
    return pd.DataFrame(rows)


def call_once(implementation: str, shape: Shape) -> None:
    """What ncu runs: warm up, then one call inside its window."""
    environment.lock()
    chosen = registry.find(implementation)
    drawn = inputs.draw(shape, environment.SEED, torch.device("cuda"))
    call = chosen.bound(drawn, shape)
    with chosen.selected():
        for _ in range(WARMUP_CALLS):
            call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def _measured(name: str, study: Study) -> list[str]:
    """The implementations of the study that every replicate measured at its target."""
    cases = runs.load(name).cases
    statuses = cases[runs.is_of(cases, study.target_shape)].groupby("implementation")["status"]
    measured = statuses.agg(lambda status: (status == "measured").all())
    return [implementation for implementation in study.implementations if measured.get(implementation, False)]


def _key(implementation: str) -> str:
    # A key holds no dot: it ends at the first.
    return implementation.replace(".", "-")


def _told(tool: str = "", why: str = "", command: str = "") -> dict[str, str]:
    return {"tool": tool, "why": why, "command": command}


def _output(command: list[str], timeout_s: float) -> str:
    """What a command prints.

    Raises:
        Refused: it can't be run, or takes too long.
    """
    # The modules that this process finds, and a session of its own, so that nothing that ncu started outlives it.
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


def _reason(output: str) -> str:
    """Why ncu gave nothing: its own first error, or the last thing that was said."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")]
    said = errors[0] if errors else lines[-1] if lines else "ncu said nothing"
    return said if len(said) <= 200 else f"{said[:199]}…"


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


if __name__ == "__main__":
    call_once(sys.argv[1], Shape(**json.loads(sys.argv[2])))
