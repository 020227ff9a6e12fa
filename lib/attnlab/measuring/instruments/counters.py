"""Nsight Compute's counters of one call at the study's target, for each implementation that was measured there.

Where the study asks for other shapes too, they are of those implementations that are not far slower than the fastest.
ncu runs this module in a process of its own, which for each case warms the implementation up and opens ncu's window for
a single call; a kernel that only waits separates the calls. ncu runs each kernel of that call many times over, a few
counters at a time. Its durations are therefore no latencies: they belong beside other counters and never beside
samples.
"""

import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch

from attnlab.base import rules
from attnlab.measuring.instruments import devices, environment, tool
from attnlab.measuring.instruments.tool import Refused
from attnlab.measuring.subjects import inputs, registry
from attnlab.runs import metrics, read, schema, write
from attnlab.runs.schema import implementation_key
from attnlab.runs.tables import PROFILE
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

WARMUP_CALLS = 20
TIMEOUT_S = 60
"""For the cases of one implementation."""
# Beyond the target, what takes more than this many times as long as the fastest is not counted.
FAR_SLOWER = 2.0
Shapes = dict[str, list[Shape]]
"""Shapes by implementation."""


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
    there = write.recorded(name, "profile")
    wanted = {one: shapes for one, shapes in _counted(name, study).items() if implementation_key(one) not in there}
    problems = dict.fromkeys(problem for family in _families(wanted) for problem in _taken(name, ncu, family))
    words = ["python" if word == sys.executable else word for word in command({"IMPLEMENTATION": [study.target_shape]})]
    return _stated(found, "; ".join(problems), shlex.join(words))


def _families(wanted: Shapes) -> list[Shapes]:
    """SDPA's backends, the peers and the kernels apart: what there is of one is kept if another doesn't end."""
    families: dict[str, Shapes] = {}
    for implementation, shapes in wanted.items():
        families.setdefault(implementation.partition(".")[0], {})[implementation] = shapes
    return list(families.values())


def _taken(name: str, ncu: str, wanted: Shapes) -> list[str]:
    """Keep the counters of these cases, and return what went wrong.

    A process takes seconds to begin, so these cases share one. If it fails, each implementation gets one of its own.
    """
    print(f"{name}: counters of {', '.join(wanted)}", file=sys.stderr, flush=True)
    try:
        rows = counters(ncu, wanted)
    except Refused as refused:
        if "ERR_NVGPUCTRPERM" in str(refused):  # this user may read no counters at all
            return [str(refused)]
        if len(wanted) > 1:
            return [problem for one, shapes in wanted.items() for problem in _taken(name, ncu, {one: shapes})]
        return [f"{one}: {refused}" for one in wanted]
    for implementation, own in rows.groupby("implementation", sort=False):
        write.add_part(name, "profile", implementation_key(str(implementation)), own.reset_index(drop=True))
    return []


def version(ncu: str) -> str:
    """The name and version of Nsight Compute.

    Raises:
        Refused: it doesn't run.
    """
    found = re.search(r"Version (\S+)", tool.output([ncu, "--version"], timeout_s=30))
    return f"ncu {found[1]}" if found else "ncu"


def counters(ncu: str, wanted: Shapes) -> pd.DataFrame:
    """The counters of one call of each implementation at each of its shapes, a row per launch and metric.

    Raises:
        Refused: ncu gave no counters, or not for every call.
    """
    calls = parse(tool.output([ncu, *command(wanted)[1:]], TIMEOUT_S * len(wanted)))
    cases = _cases(wanted)
    if len(calls) != len(cases):
        raise Refused(f"{len(calls)} of {len(cases)} calls were counted")
    rows = [call.assign(implementation=one, **shape.axes) for call, (one, shape) in zip(calls, cases, strict=True)]
    return pd.concat(rows, ignore_index=True)[PROFILE.names]


def command(wanted: Shapes) -> list[str]:
    """The command that profiles cases, with the caches as the previous call left them and the clocks as they are."""
    stated = [word for one, shape in _cases(wanted) for word in (one, json.dumps(shape.axes))]
    return ["ncu", *tool.ncu_options(metrics.COUNTERS), sys.executable, "-m", __spec__.name, *stated]


def _cases(wanted: Shapes) -> list[tuple[str, Shape]]:
    return [(implementation, shape) for implementation, shapes in wanted.items() for shape in shapes]


def parse(printed: str) -> list[pd.DataFrame]:
    """The lines that ncu printed of each call, as rows of function, launch, metric, unit and value.

    What it couldn't count is left out.

    Raises:
        Refused: nothing was counted; the message is what ncu said instead.
    """
    units, calls = tool.ncu_calls(printed)
    counted = [list(_rows(call, units)) for call in calls]
    if not counted or not all(counted):
        raise Refused(tool.reason(printed))
    return [pd.DataFrame(rows) for rows in counted]


def _rows(launches: list[dict[str, str]], units: dict[str, str]) -> Iterator[dict[str, Any]]:
    for number, launch in enumerate(launches):
        where = {"function": launch.get("Kernel Name", ""), "launch": number}
        for metric in metrics.COUNTERS:
            value = tool.to_number(launch.get(metric, ""))
            if not math.isnan(value):
                yield where | {"metric": metric, "unit": units.get(metric, ""), "value": value}


def call_once(implementation: str, shape: Shape) -> None:
    """Warm up, then make one call inside ncu's window."""
    environment.lock()
    chosen = registry.find(implementation)
    drawn = inputs.draw(shape, rules.SEED, torch.device("cuda"))
    call = chosen.bound(drawn, shape)
    with chosen.selected():
        for _ in range(WARMUP_CALLS):
            call()
        tool.window(call)


def _counted(name: str, study: Study) -> Shapes:
    run = read.load(name)
    found: Shapes = {}
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


def _stated(tool: str = "", why: str = "", command: str = "") -> dict[str, str]:
    return {"tool": tool, "why": why, "command": command}


if __name__ == "__main__":
    for named, stated in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        call_once(named, Shape(**json.loads(stated)))
        devices.release(torch.device("cuda"))
