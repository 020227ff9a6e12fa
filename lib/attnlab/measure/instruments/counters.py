"""Nsight Compute's counters of one call at the study's target, for each implementation that was measured there.

ncu runs this module in a process of its own, which warms an implementation up and opens ncu's window for a single call.
ncu runs each kernel of that call many times over, a few counters at a time. Its durations are therefore no latencies:
they belong beside other counters and never beside samples.
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
    shape, problems = study.target_shape, []
    for implementation in _measured(name, study):
        if _key(implementation) in write.recorded(name, "profile"):
            continue
        print(f"{name}: counters of {implementation}", file=sys.stderr, flush=True)
        try:
            rows = counters(ncu, implementation, shape)
        except Refused as refused:
            problems.append(f"{implementation}: {refused}")
            if "ERR_NVGPUCTRPERM" in str(refused):
                problems = [str(refused)]  # this user may read no counters at all
                break
        else:
            write.add_part(name, "profile", _key(implementation), rows)
    words = ["python" if word == sys.executable else word for word in command("IMPLEMENTATION", shape)]
    return _stated(found, "; ".join(problems), shlex.join(words))


def version(ncu: str) -> str:
    """The name and version of Nsight Compute.

    Raises:
        Refused: it doesn't run.
    """
    found = re.search(r"Version (\S+)", tool.output([ncu, "--version"], timeout_s=30))
    return f"ncu {found[1]}" if found else "ncu"


def counters(ncu: str, implementation: str, shape: Shape) -> pd.DataFrame:
    """The counters of one call, a row per launch and metric.

    Raises:
        Refused: ncu gave no counters.
    """
    rows = parse(tool.output([ncu, *command(implementation, shape)[1:]], TIMEOUT_S))
    return rows.assign(implementation=implementation, **shape.axes)[list(schema.COLUMNS["profile"])]


def command(implementation: str, shape: Shape) -> list[str]:
    """The command that profiles a case, with the caches as the previous call left them and the clocks as they are."""
    profiled = [sys.executable, "-m", __spec__.name, implementation, json.dumps(shape.axes)]
    return ["ncu", *tool.ncu_options(metrics.COUNTERS), *profiled]


def parse(printed: str) -> pd.DataFrame:
    """What ncu printed, as rows of function, launch, metric, unit and value, without what it couldn't count.

    Raises:
        Refused: nothing was counted; the message is what ncu said instead.
    """
    units, launches = tool.ncu_rows(printed)
    rows: list[dict[str, Any]] = []
    for number, launch in enumerate(launches):
        where = {"function": launch.get("Kernel Name", ""), "launch": number}
        for metric in metrics.COUNTERS:
            value = tool.to_number(launch.get(metric, ""))
            if not math.isnan(value):
                rows.append(where | {"metric": metric, "unit": units.get(metric, ""), "value": value})
    if not rows:
        raise Refused(tool.reason(printed))
    return pd.DataFrame(rows)


def call_once(implementation: str, shape: Shape) -> None:
    """Warm up, then make one call inside ncu's window: what ncu runs."""
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
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def _measured(name: str, study: Study) -> list[str]:
    """The implementations of the study that every replicate measured at its target."""
    cases = read.load(name).cases
    statuses = cases[schema.is_of(cases, study.target_shape)].groupby("implementation")["status"]
    measured = statuses.agg(lambda status: (status == schema.MEASURED).all())
    return [implementation for implementation in study.implementations if measured.get(implementation, False)]


def _key(implementation: str) -> str:
    # A key ends at the first dot, so it holds none.
    return implementation.replace(".", "-")


def _stated(tool: str = "", why: str = "", command: str = "") -> dict[str, str]:
    return {"tool": tool, "why": why, "command": command}


if __name__ == "__main__":
    call_once(sys.argv[1], Shape(**json.loads(sys.argv[2])))
