"""Nsight Compute's counters of one call at the study's target, for each implementation that was measured there.

Where the study asks for other shapes too, they are of those implementations that are not far slower than the fastest.
ncu runs this module in a process of its own, which warms an implementation up at each shape and opens ncu's window for
a single call; a kernel that only waits separates the calls. ncu runs each kernel of that call many times over, a few
counters at a time. Its durations are therefore no latencies: they belong beside other counters and never beside
samples.
"""

import json
import math
import re
import shlex
import sys
from typing import Any

import pandas as pd
import torch

from attnlab.measure.instruments import environment, tool
from attnlab.measure.instruments.tool import Refused
from attnlab.measure.subjects import inputs, registry
from attnlab.runs import metrics, read, rules, schema, write
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

WARMUP_CALLS = 20
TIMEOUT_S = 120
# Beyond the target, what takes more than this many times as long as the fastest is not counted.
FAR_SLOWER = 2.0


def take(name: str, study: Study, device: str) -> dict[str, str]:
    """Profile what the run lacks of its target, and return what its manifest says of the profile.

    A failure of ncu costs the run its counters and nothing else.
    """
    if device != "cuda":
        return _stated(why="Nsight Compute profiles NVIDIA GPUs, which this device is not")
    try:
        ncu = tool.find_ncu()
        found = version(ncu)
    except Refused as refused:
        return _stated(why=str(refused))
    problems = []
    for implementation, shapes in _counted(name, study).items():
        if _key(implementation) in write.recorded(name, "profile"):
            continue
        print(f"{name}: counters of {implementation}", file=sys.stderr, flush=True)
        try:
            rows = counters(ncu, implementation, shapes)
        except Refused as refused:
            problems.append(f"{implementation}: {refused}")
            if "ERR_NVGPUCTRPERM" in str(refused):
                problems = [str(refused)]  # this user may read no counters at all
                break
        else:
            write.add_part(name, "profile", _key(implementation), rows)
    words = ["python" if word == sys.executable else word for word in command("IMPLEMENTATION", [study.target_shape])]
    return _stated(found, "; ".join(problems), shlex.join(words))


def version(ncu: str) -> str:
    """The name and version of Nsight Compute.

    Raises:
        Refused: it doesn't run.
    """
    found = re.search(r"Version (\S+)", tool.output([ncu, "--version"], timeout_s=30))
    return f"ncu {found[1]}" if found else "ncu"


def counters(ncu: str, implementation: str, shapes: list[Shape]) -> pd.DataFrame:
    """The counters of one call at each shape, a row per launch and metric.

    Raises:
        Refused: ncu gave no counters, or not for every call.
    """
    calls = parse(tool.output([ncu, *command(implementation, shapes)[1:]], TIMEOUT_S))
    if len(calls) != len(shapes):
        raise Refused(f"{len(calls)} of {len(shapes)} calls were counted")
    rows = [call.assign(implementation=implementation, **shape.axes) for call, shape in zip(calls, shapes, strict=True)]
    return pd.concat(rows, ignore_index=True)[list(schema.COLUMNS["profile"])]


def command(implementation: str, shapes: list[Shape]) -> list[str]:
    """The command that profiles cases, with the caches as the previous call left them and the clocks as they are."""
    profiled = [sys.executable, "-m", __spec__.name, implementation, *(json.dumps(shape.axes) for shape in shapes)]
    return ["ncu", *tool.ncu_options(metrics.COUNTERS), *profiled]


def parse(printed: str) -> list[pd.DataFrame]:
    """What ncu printed of each call, as rows of function, launch, metric, unit and value.

    What it couldn't count is left out.

    Raises:
        Refused: nothing was counted; the message is what ncu said instead.
    """
    units, calls = tool.ncu_calls(printed)
    counted = [_rows(call, units) for call in calls]
    if not counted or not all(counted):
        raise Refused(tool.reason(printed))
    return [pd.DataFrame(rows) for rows in counted]


def _rows(launches: list[dict[str, str]], units: dict[str, str]) -> list[dict[str, Any]]:
    """The rows of one call."""
    rows = []
    for number, launch in enumerate(launches):
        where = {"function": launch.get("Kernel Name", ""), "launch": number}
        for metric in metrics.COUNTERS:
            value = tool.to_number(launch.get(metric, ""))
            if not math.isnan(value):
                rows.append(where | {"metric": metric, "unit": units.get(metric, ""), "value": value})
    return rows


def call_once(implementation: str, shape: Shape) -> None:
    """Warm up, then make one call inside ncu's window, and what separates it from the next: what ncu runs."""
    environment.lock()
    chosen = registry.find(implementation)
    drawn = inputs.draw(shape, rules.SEED, torch.device("cuda"))
    call = chosen.bound(drawn, shape)
    with chosen.selected():
        for _ in range(WARMUP_CALLS):
            call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def _counted(name: str, study: Study) -> dict[str, list[Shape]]:
    """By implementation, the shapes at which a call is counted."""
    run = read.load(name)
    found: dict[str, list[Shape]] = {}
    for shape in study.counted_shapes:
        measured = _measured(run, study, shape)
        if shape != study.target_shape:
            samples = run.samples[schema.is_of(run.samples, shape)]
            medians_us = samples.groupby("implementation")["latency_us"].median().reindex(measured)
            measured = [one for one in measured if medians_us[one] <= FAR_SLOWER * medians_us.min()]
        for implementation in measured:
            found.setdefault(implementation, []).append(shape)
    return found


def _measured(run: schema.Run, study: Study, shape: Shape) -> list[str]:
    """The implementations of the study that every replicate measured at a shape."""
    statuses = run.cases[schema.is_of(run.cases, shape)].groupby("implementation")["status"]
    measured = statuses.agg(lambda status: (status == schema.MEASURED).all())
    return [implementation for implementation in study.implementations if measured.get(implementation, False)]


def _key(implementation: str) -> str:
    # A key ends at the first dot, so it holds none.
    return implementation.replace(".", "-")


def _stated(tool: str = "", why: str = "", command: str = "") -> dict[str, str]:
    return {"tool": tool, "why": why, "command": command}


if __name__ == "__main__":
    for stated in sys.argv[2:]:
        call_once(sys.argv[1], Shape(**json.loads(stated)))
