"""The clocks of the panel that run in separate processes: Nsight Compute, and NVIDIA's NVBench (`cuda-bench`).

Both run this module, which makes the panel's calls. Both are optional: the rows of a missing tool say that it is
missing.
"""

import json
import sys
import tempfile
from functools import partial
from importlib import util
from itertools import product
from pathlib import Path
from typing import Any

import torch

from attnlab.measuring.clocks import canary, cuda_events, in_process
from attnlab.measuring.instruments import devices, environment, tool
from attnlab.measuring.instruments.tool import PLAN, Refused
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Broken, OutOfMemory, Unsupported, attempt
from attnlab.runs import methods, metrics
from attnlab.runs.schema import Row
from attnlab.study.shapes import Shape

ROUNDS = 3
TIMEOUT_S = 180
DEVICE = torch.device("cuda")
Cases = list[tuple[str, Shape]]


def rows(program: str, cases: Cases) -> tuple[list[Row], list[Row]]:
    """Time the cases with one of `methods.TOOLS`: rows of the panel, and rows of their reads from memory."""
    try:
        return _of_ncu(cases) if program == "ncu" else (_of_nvbench(cases), [])
    except Exception as error:  # no failure of a tool may fail the run, which is complete without it
        why = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        every = methods.TOOLS[program].values()
        return [_case(one) | {"method": method, "why": why} for one in cases for method in every], []


def _case(case: tuple[str, Shape]) -> Row:
    return {"implementation": case[0], **case[1].axes}


def _of_ncu(cases: Cases) -> tuple[list[Row], list[Row]]:
    counted = (metrics.DURATION, metrics.DRAM_READ)
    command = [tool.find_ncu(), *tool.ncu_options(counted), *_command("ncu", cases)]
    printed = tool.output(command, TIMEOUT_S)
    plan, (_, calls) = _plan(printed), tool.ncu_calls(printed)
    if len(plan) != len(calls):
        raise Refused(f"{len(plan)} calls were made and {len(calls)} profiled: {tool.reason(printed)}")
    by_cache = methods.TOOLS["ncu"]
    panel, residency = [], []
    for step, launches in zip(plan, calls, strict=True):
        case = _case(cases[step["case"]])
        if step["why"]:
            panel += [case | {"method": method, "why": step["why"]} for method in by_cache.values()]
            continue
        took_us, read = (sum(tool.to_number(launch[metric]) for launch in launches) for metric in counted)
        case |= {"round": step["round"], "why": ""}
        panel.append(case | {"method": by_cache[step["cache"]], "latency_us": took_us / 1e3})
        began = {"clock": "device", "cache": step["cache"]}
        residency.append(case | began | {"metric": metrics.DRAM_READ, "unit": "byte", "value": read})
    return panel, residency


def _plan(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(PLAN)) for line in printed.splitlines() if line.startswith(PLAN)]


def _of_nvbench(cases: Cases) -> list[Row]:
    if util.find_spec("cuda") is None or util.find_spec("cuda.bench") is None:
        raise Refused("not installed: the package cuda-bench")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "nvbench.json"
        printed = tool.output(_command("nvbench", cases, str(target)), TIMEOUT_S)
        if not target.is_file():
            raise Refused(tool.reason(printed))
        document = json.loads(target.read_text())
    calls = {(step["case"], step["cache"]): step["calls"] for step in _plan(printed)}
    found = []
    for benchmark in document["benchmarks"]:
        number = int(benchmark["name"].removeprefix("case"))
        for state in benchmark["states"]:  # one for each cache and round
            axes = {axis["name"]: int(axis["value"]) for axis in state["axis_values"]}
            cache = "warm" if axes["warm"] else "cold"
            row = _case(cases[number]) | {"method": methods.TOOLS["nvbench"][cache]}
            if state["is_skipped"]:
                if not axes["round"]:
                    found.append(row | {"why": str(state.get("skip_reason", "NVBench gave no reason"))})
                continue
            tag = f"nv/{'batch' if cache == 'warm' else 'cold'}/time/gpu/mean"
            means_s = [float(each["data"][0]["value"]) for each in state["summaries"] if each["tag"] == tag]
            if not means_s:
                raise Refused(f"NVBench gave no {tag}")
            took_us = 1e6 * means_s[0] / calls[number, cache]
            found.append(row | {"round": axes["round"], "latency_us": took_us, "why": ""})
    return found


def _command(program: str, cases: Cases, *more: str) -> list[str]:
    stated = json.dumps([[name, shape.axes] for name, shape in cases])
    return [sys.executable, "-m", __spec__.name, program, stated, *more]


# In the separate process


def _prepared(case: tuple[str, Shape]) -> Case | str:
    """A case that is warmed up, or the reason why it can't be measured."""
    devices.release(DEVICE)
    try:
        return in_process.prepared(*case, DEVICE)
    except (Unsupported, OutOfMemory, Broken) as error:
        return str(error)


def _under_ncu(cases: Cases) -> None:
    """Run our sampler under ncu, with ncu's window around the one call that the sampler would time."""
    takes = {timing: cuda_events.sampler(DEVICE, timing) for timing in (in_process.WARM, in_process.COLD)}
    for number, stated in enumerate(cases):
        case = _prepared(stated)
        if isinstance(case, str):
            _say(case=number, why=case)
            tool.window(lambda: None)
            continue
        with case.selected():
            for turn, (timing, take) in product(range(ROUNDS), takes.items()):
                _say(case=number, round=turn, cache=timing.cache, why="")
                # A call in place of a replay: ncu runs the kernels of a graph one by one anyway.
                take(canary.in_place_of_timed(case, timing, partial(tool.window, case.call)))


def _under_nvbench(cases: Cases, target: str) -> None:
    """Time graphs with NVBench: that of 1 call from a cold L2, and the device clock's of several from a warm L2."""
    from cuda import bench

    kept: dict[int, Case | str] = {}

    def graphed(number: int) -> Case | str:
        """A case with its graphs, or the reason why it can't be measured. Only 1 is held at a time."""
        if number not in kept:
            kept.clear()
            case = _prepared(cases[number])
            if isinstance(case, Case):
                with case.selected():
                    attempt(partial(cuda_events.capture, case, torch.cuda.graph_pool_handle()))
                for cache, replay in (("cold", case.one), ("warm", case.many)):
                    assert replay is not None
                    replay.graph.replay()
                    _say(case=number, cache=cache, calls=replay.calls)
            kept[number] = case
        return kept[number]

    def timed(number: int, state: Any) -> None:
        case = graphed(number)
        if isinstance(case, str):
            state.skip(case)
            return
        batched = bool(state.get_int64("warm"))
        replay = case.many if batched else case.one
        assert replay is not None

        def launch(launch: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(launch.get_stream().addressof())):
                replay.graph.replay()

        state.exec(launch, batched=batched)

    for number in range(len(cases)):

        def of_case(state: Any, number: int = number) -> None:  # a function, which NVBench registers
            timed(number, state)

        benchmark = bench.register(of_case)
        benchmark.set_name(f"case{number}")
        benchmark.add_int64_axis("warm", [0, 1])
        benchmark.add_int64_axis("round", list(range(ROUNDS)))
        benchmark.set_min_samples(10)
        benchmark.set_timeout(0.2)
        benchmark.set_batch_target_time(0.03)
        benchmark.set_criterion_param_float64("min-time", 0.02)
    bench.run_all_benchmarks(["panel", "--devices", "0", "--json", target])


def _say(**step: Any) -> None:
    print(PLAN + json.dumps(step), flush=True)


if __name__ == "__main__":
    environment.lock()
    stated = [(name, Shape(**axes)) for name, axes in json.loads(sys.argv[2])]
    if sys.argv[1] == "ncu":
        _under_ncu(stated)
    else:
        _under_nvbench(stated, sys.argv[3])
