"""Nsight Compute's counters of one call at the study's target, for each implementation that was measured there.

At other shapes of the study, implementations that are far slower than the fastest are left out. This module runs under
ncu in a separate process. For each case, it warms the implementation up and opens ncu's window for a single call. The
tool repeats each kernel of that call many times, for a few counters each: its durations are no latencies.
"""

import json
import math
import re
import shlex
import sys
from collections.abc import Callable

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
"""The time limit for the cases of one implementation."""
# At shapes other than the target, implementations slower than the fastest by more than this factor are not counted.
FAR_SLOWER = 2.0
Cases = list[tuple[str, Shape]]
"""Implementations, each at a shape."""


def take(name: str, study: Study, device: str) -> dict[str, str]:
    """Take the counters that the run lacks, and return its manifest's entry on the profile.

    If ncu fails, the run lacks only its counters.
    """
    untaken = {"tool": "", "why": "", "command": ""}
    if device != "cuda":
        return untaken | {"why": "Nsight Compute profiles NVIDIA GPUs, which this device is not"}
    try:
        ncu = tool.find_ncu()
        version = re.search(r"Version (\S+)", tool.output([ncu, "--version"], timeout_s=30))
    except Refused as refused:
        return untaken | {"why": str(refused)}
    there = write.recorded(name, "profile")
    wanted = [case for case in _counted(name, study) if implementation_key(case[0]) not in there]
    # A process each for SDPA's backends, the peers and the kernels: if one hangs, the counters of the others are kept.
    families = _apart(wanted, lambda implementation: implementation.partition(".")[0])
    problems = dict.fromkeys(problem for family in families for problem in _taken(name, ncu, family))
    words = ["python" if word == sys.executable else word for word in command([("IMPLEMENTATION", study.target_shape)])]
    return {
        "tool": f"ncu {version[1]}" if version else "ncu",
        "why": "; ".join(problems),
        "command": shlex.join(words),
    }


def _apart(cases: Cases, key: Callable[[str], str]) -> list[Cases]:
    """Cases in groups by a key of their implementations."""
    groups: dict[str, Cases] = {}
    for case in cases:
        groups.setdefault(key(case[0]), []).append(case)
    return list(groups.values())


def _taken(name: str, ncu: str, wanted: Cases) -> list[str]:
    """Record the counters of these cases, by 1 process or, if it fails, by 1 per implementation; return problems."""
    names = list(dict.fromkeys(implementation for implementation, _ in wanted))
    print(f"{name}: counters of {', '.join(names)}", file=sys.stderr, flush=True)
    try:
        rows = counters(ncu, wanted)
    except Refused as refused:
        if "ERR_NVGPUCTRPERM" in str(refused):  # this user may not read counters
            return [str(refused)]
        if len(names) > 1:
            return [problem for one in _apart(wanted, str) for problem in _taken(name, ncu, one)]
        return [f"{names[0]}: {refused}"]
    for implementation, own in rows.groupby("implementation", sort=False):
        write.add_part(name, "profile", implementation_key(str(implementation)), own.reset_index(drop=True))
    return []


def counters(ncu: str, cases: Cases) -> pd.DataFrame:
    """The counters of one call of each case, a row per launch and metric.

    Raises:
        Refused: ncu gave no counters, or not for every call.
    """
    timeout_s = TIMEOUT_S * len({implementation for implementation, _ in cases})
    calls = parse(tool.output([ncu, *command(cases)[1:]], timeout_s))
    if len(calls) != len(cases):
        raise Refused(f"{len(calls)} of {len(cases)} calls were counted")
    rows = [call.assign(implementation=one, **shape.axes) for call, (one, shape) in zip(calls, cases, strict=True)]
    return pd.concat(rows, ignore_index=True)[PROFILE.names]


def command(cases: Cases) -> list[str]:
    """The command that profiles cases, with the caches as the previous call left them and the clocks as they are."""
    stated = [word for one, shape in cases for word in (one, json.dumps(shape.axes))]
    return ["ncu", *tool.ncu_options(metrics.COUNTERS), sys.executable, "-m", __spec__.name, *stated]


def parse(printed: str) -> list[pd.DataFrame]:
    """ncu's output on each call, as rows of function, launch, metric, unit and value.

    Metrics that ncu couldn't count are left out.

    Raises:
        Refused: nothing was counted; the message is ncu's reason.
    """
    units, calls = tool.ncu_calls(printed)
    counted = [
        [
            (launch.get("Kernel Name", ""), number, metric, units.get(metric, ""), value)
            for number, launch in enumerate(launches)
            for metric in metrics.COUNTERS
            if not math.isnan(value := tool.to_number(launch.get(metric, "")))
        ]
        for launches in calls
    ]
    if not counted or not all(counted):
        raise Refused(tool.reason(printed))
    return [pd.DataFrame(rows, columns=["function", "launch", "metric", "unit", "value"]) for rows in counted]


def call_once(implementation: str, shape: Shape) -> None:
    """Warm up, then make one call inside ncu's window."""
    environment.lock()
    chosen = registry.find(implementation)
    call = chosen.bound(inputs.draw(shape, rules.SEED, torch.device("cuda")), shape)
    with chosen.selected():
        for _ in range(WARMUP_CALLS):
            call()
        tool.window(call)


def _counted(name: str, study: Study) -> Cases:
    """The cases that every replicate measured at the target, and at the study's other shapes if not far slower."""
    run = read.load(name)
    found: Cases = []
    for shape in study.counted_shapes:
        cases, samples = (table[schema.is_equal(table, shape.axes)] for table in (run.cases, run.samples))
        whole = cases.groupby("implementation")["status"].agg(lambda status: (status == schema.MEASURED).all())
        measured = [implementation for implementation in study.implementations if whole.get(implementation, False)]
        if shape != study.target_shape:
            medians_us = samples.groupby("implementation")["latency_us"].median().reindex(measured)
            measured = [one for one in measured if medians_us[one] <= FAR_SLOWER * medians_us.min()]
        found += [(implementation, shape) for implementation in measured]
    return found


if __name__ == "__main__":
    for named, stated in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        call_once(named, Shape(**json.loads(stated)))
        devices.release(torch.device("cuda"))
