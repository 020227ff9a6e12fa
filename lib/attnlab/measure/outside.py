"""The clocks of the panel that want a process of their own: Nsight Compute, and NVIDIA's NVBench (`cuda-bench`).

Both run this module, which does the panel's cases for them. Neither is needed: what isn't there says so in its rows.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

import torch

from attnlab.measure import canary, clocks, devices, environment
from attnlab.measure.attention import Broken, OutOfMemory, Unsupported, attempt
from attnlab.measure.clocks import Case
from attnlab.shapes import Shape
from attnlab.studies import Timing

TOOLS = {"ncu": ("ncu", "ncu.cold"), "nvbench": ("nvbench.batch", "nvbench.cold")}
"""The methods of each, the warm one first."""
ROUNDS = 3
TIMEOUT_S = 180
DURATION, READ = "gpu__time_duration.sum", "dram__bytes_read.sum"
SEPARATOR = "spin_kernel"
"""What `torch.cuda._sleep` launches: in ncu's window it ends what belongs to one call."""
TIMINGS = {cache: Timing(clock="device", cache=cache) for cache in ("warm", "cold")}
Cases = list[tuple[str, Shape]]
Row = dict[str, Any]


class Refused(Exception):
    """A tool timed nothing; the message says why."""


def rows(tool: str, cases: Cases) -> tuple[list[Row], list[Row]]:
    """What a tool says of the cases: rows of the panel, and rows of what they read from memory."""
    try:
        return _nsight(cases) if tool == "ncu" else (_nvbench(cases), [])
    except Exception as error:  # a tool that says what none foresaw must not cost the run, which is whole without it
        why = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        return [
            {"implementation": name, **shape.axes, "method": method, "why": why}
            for name, shape in cases
            for method in TOOLS[tool]
        ], []


def _nsight(cases: Cases) -> tuple[list[Row], list[Row]]:
    ncu = os.environ.get("ATTNLAB_NCU") or shutil.which("ncu")
    if not ncu:
        raise Refused("not installed: ncu, of Nsight Compute, is not on PATH nor named by ATTNLAB_NCU")
    options = "--clock-control none --cache-control none --profile-from-start off --csv --page raw --print-units base"
    said = _output([ncu, *options.split(), "--metrics", f"{DURATION},{READ}", *_command("ncu", cases)])
    plan, windows = _plan(said), _windows(said)
    if len(plan) != len(windows):
        raise Refused(f"{len(plan)} calls were made and {len(windows)} profiled: {_last_words(said)}")
    panel, residency = [], []
    for step, launches in zip(plan, windows, strict=True):
        name, shape = cases[step["case"]]
        case: Row = {"implementation": name, **shape.axes}
        if step["why"]:
            panel += [case | {"method": method, "why": step["why"]} for method in TOOLS["ncu"]]
            continue
        warm, cold = TOOLS["ncu"]
        method = warm if step["cache"] == "warm" else cold
        taken = sum(launch[DURATION] for launch in launches) / 1e3
        panel.append(case | {"method": method, "round": step["round"], "latency_us": taken, "why": ""})
        where = case | {"clock": "device", "cache": step["cache"], "round": step["round"], "why": ""}
        read = sum(launch[READ] for launch in launches)
        residency.append(where | {"metric": READ, "unit": "byte", "value": read})
    return panel, residency


def _plan(said: str) -> list[dict[str, Any]]:
    return [json.loads(line.partition("plan: ")[2]) for line in said.splitlines() if line.startswith("plan: ")]


def _windows(said: str) -> list[list[dict[str, float]]]:
    """The launches that ncu printed as raw CSV, a list for each window."""
    found = [line for line in said.splitlines() if line.startswith('"')]
    if len(found) < 2:
        raise Refused(_last_words(said))
    header, _, *lines = csv.reader(found)
    windows: list[list[dict[str, float]]] = []
    current: list[dict[str, float]] = []
    for line in lines:
        launch = dict(zip(header, line, strict=False))
        if SEPARATOR in launch["Kernel Name"]:
            windows.append(current)
            current = []
        else:
            current.append({metric: _number(launch[metric]) for metric in (DURATION, READ)})
    return windows


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")


def _nvbench(cases: Cases) -> list[Row]:
    if util.find_spec("cuda") is None or util.find_spec("cuda.bench") is None:
        raise Refused("not installed: the package cuda-bench")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "nvbench.json"
        said = _output(_command("nvbench", cases, str(target)))
        if not target.is_file():
            raise Refused(_last_words(said))
        return _states(json.loads(target.read_text()), cases, _plan(said))


def _states(document: dict[str, Any], cases: Cases, plan: list[dict[str, Any]]) -> list[Row]:
    """Rows from what NVBench wrote: a state for each case, cache and round."""
    calls = {(step["case"], step["cache"]): step["calls"] for step in plan}
    found = []
    for benchmark in document["benchmarks"]:
        number = int(benchmark["name"].removeprefix("case"))
        name, shape = cases[number]
        for state in benchmark["states"]:
            axes = {axis["name"]: int(axis["value"]) for axis in state["axis_values"]}
            cache = "warm" if axes["warm"] else "cold"
            row: Row = {"implementation": name, **shape.axes, "method": TOOLS["nvbench"][cache == "cold"]}
            if state["is_skipped"]:
                if not axes["round"]:
                    found.append(row | {"why": str(state.get("skip_reason", "skipped"))})
                continue
            seconds = _summary(state, f"nv/{'batch' if cache == 'warm' else 'cold'}/time/gpu/mean")
            taken = 1e6 * seconds / calls[number, cache]
            found.append(row | {"round": axes["round"], "latency_us": taken, "why": ""})
    return found


def _summary(state: dict[str, Any], tag: str) -> float:
    for summary in state["summaries"]:
        if summary["tag"] == tag:
            return float(summary["data"][0]["value"])
    raise Refused(f"NVBench gave no {tag}")


def _command(tool: str, cases: Cases, *more: str) -> list[str]:
    stated = json.dumps([[name, shape.axes] for name, shape in cases])
    return [sys.executable, "-m", "attnlab.measure.outside", tool, stated, *more]


def _output(command: list[str]) -> str:
    """What a command prints.

    Raises:
        Refused: it can't be run, or takes too long.
    """
    # The modules that this process finds, and a session of its own, so that nothing it started outlives it.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(command, text=True, env=environ, start_new_session=True, **pipes)
    except OSError as error:
        raise Refused(f"{command[0]} does not run: {error.strerror}") from None
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        raise Refused(f"not done after {TIMEOUT_S:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("plan: ")]
    errors = [line for line in lines if "rror" in line]
    said = (errors or lines or ["it said nothing"])[-1]
    return said if len(said) <= 200 else f"{said[:199]}…"


def _each(cases: Cases, device: torch.device) -> Iterator[tuple[int, Case | None, str]]:
    """The cases, warm, one after the other; where there is none, why."""
    from attnlab.measure import panel

    for number, (implementation, shape) in enumerate(cases):
        try:
            case, _ = panel.prepared(implementation, shape, device)
        except (Unsupported, OutOfMemory, Broken) as error:
            yield number, None, str(error)
        else:
            yield number, case, ""
            del case
        devices.release(device)


def _under_ncu(cases: Cases) -> None:
    """What ncu runs: our sampler, with a window of ncu around the one call that it would time."""
    device, runtime = torch.device("cuda"), torch.cuda.cudart()
    takes = {cache: clocks.sampler(device, timing) for cache, timing in TIMINGS.items()}

    def window(call: Callable[[], object]) -> None:
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        call()
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        runtime.cudaProfilerStop()

    for number, case, why in _each(cases, device):
        if case is None:
            _say(case=number, why=why)
            window(lambda: None)
            continue
        with case.selected():
            for turn in range(ROUNDS):
                for cache, take in takes.items():
                    _say(case=number, round=turn, cache=cache, why="")
                    # Called, not replayed: ncu runs the kernels of a graph one by one like any others.
                    take(canary.in_place_of_timed(case, TIMINGS[cache], partial(window, case.call)))


def _under_nvbench(cases: Cases, target: str) -> None:
    """What NVBench runs: one call's graph from a cold L2, and the graph that the device clock replays."""
    from cuda import bench

    device = torch.device("cuda")
    kept: dict[int, Case | str] = {}

    def graphed(number: int) -> Case | str:
        """A case with its graphs, or why there is none. One is held at a time."""
        if number not in kept:
            kept.clear()
            devices.release(device)
            _, case, why = next(_each([cases[number]], device))
            if case is not None:
                with case.selected():
                    attempt(lambda: clocks.capture(case, torch.cuda.graph_pool_handle()))
                for cache, replay in (("cold", case.one), ("warm", case.many)):
                    assert replay is not None
                    replay.graph.replay()
                    _say(case=number, cache=cache, calls=replay.calls)
            kept[number] = case or why
        return kept[number]

    def times(number: int, state: Any) -> None:
        case = graphed(number)
        if isinstance(case, str):
            state.skip(case)
            return
        warm = bool(state.get_int64("warm"))
        replay = case.many if warm else case.one
        assert replay is not None

        def launch(launch: Any) -> None:
            with torch.cuda.stream(torch.cuda.ExternalStream(launch.get_stream().addressof())):
                replay.graph.replay()

        state.exec(launch, batched=warm)

    for number in range(len(cases)):

        def timed(state: Any, number: int = number) -> None:
            times(number, state)

        benchmark = bench.register(timed)
        benchmark.set_name(f"case{number}")
        benchmark.add_int64_axis("warm", [0, 1])
        benchmark.add_int64_axis("round", list(range(ROUNDS)))
        benchmark.set_min_samples(10)
        benchmark.set_timeout(0.2)
        benchmark.set_batch_target_time(0.03)
        benchmark.set_criterion_param_float64("min-time", 0.02)
    bench.run_all_benchmarks(["panel", "--devices", "0", "--json", target])


def _say(**words: Any) -> None:
    print("plan: " + json.dumps(words), flush=True)


if __name__ == "__main__":
    environment.lock()
    stated = [(name, Shape(**axes)) for name, axes in json.loads(sys.argv[2])]
    if sys.argv[1] == "ncu":
        _under_ncu(stated)
    else:
        _under_nvbench(stated, sys.argv[3])
