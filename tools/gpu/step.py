"""Look into a model's step of one token under a CUDA graph, as page 09 times it: half a minute for a model.

``PYTHONPATH=lib python3 tools/gpu/step.py 512 gpt2 llama-64`` captures the step with SDPA, with `attend`, and with less
and less of `attend` in place of attention, to tell what decides how the driver launches a graph. For each it prints the
graph's nodes by their kinds, and what a launch takes the host and a replay the device, in µs; then the replays in
turns. The page's steps are captured after generations, and some run between their replays: so the same for SDPA and
`attend` once they generated, with the graphs from before, with new ones, and with a generation before each pair of
replays. At last, as CUPTI may change how graphs are launched, the kernels of a replay with SDPA and with `attend`: how
many, for how long, and the gap before each, those that take most first.
"""

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import cupy
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from attnlab.measure.clocks import cuda_events, traced
from attnlab.measure.instruments import environment, inspection
from attnlab.measure.subjects import attend, maps, model
from attnlab.study.models import BASELINE, CANDIDATE, DEFAULTS, DTYPES, MODELS

DEVICE = torch.device("cuda")
REPLAYS, SHOWN = 20, 14
SHARED_BYTES = 200 * 1024
SOURCE = """
extern "C" __global__ void nothing(float* x) { if (x[0] > 1) x[1] = 0; }
extern "C" __global__ void much_shared(float* x) { extern __shared__ float s[]; if (x[0] > 1) x[1] = s[0]; }
extern "C" __global__ void waits(float* x) {
    asm volatile("griddepcontrol.launch_dependents;\\n griddepcontrol.wait;" ::: "memory");
    if (x[0] > 1) x[1] = 0;
}
"""
Steps = dict[str, Callable[[], object]]


def main(prompt: int, names: list[str]) -> None:
    environment.lock()
    model.register(CANDIDATE, model.attention)
    attend.use()
    others = ways()
    for way, attention in others.items():
        model.register(way, attention)
    registered = {"SDPA": model.REGISTERED[BASELINE], "attend": model.REGISTERED[CANDIDATE]}
    registered |= {way: way for way in others} | {"SDPA again": model.REGISTERED[BASELINE]}
    print(torch.cuda.get_device_name())
    for name in names:
        made = model.build(MODELS[name], prompt + 64, DTYPES["cuda"], DEVICE)
        prompts = torch.randint(MODELS[name].vocabulary, (DEFAULTS["cuda"]["batch"][0], prompt), device=DEVICE)
        # They hold the caches that their graphs read.
        steps = {way: _step(made, implementation, prompts) for way, implementation in registered.items()}
        for way, step in steps.items():
            print(f"{name}, {prompt} keys, {way}: {_nodes(step)}; {_times(step)}", flush=True)
        print(f"{name}, {prompt} keys, in turns: {_in_turns(steps)}", flush=True)

        def generate(way: str, made: Any = made, prompts: Tensor = prompts) -> None:
            made.set_attn_implementation(registered[way])
            model.generate(made, prompts, DEFAULTS["cuda"]["tokens"])

        two = {way: steps[way] for way in ("SDPA", "attend")}
        for way in 2 * list(two):
            generate(way)
        print(f"{name}, {prompt} keys, generated since: {_in_turns(two)}", flush=True)
        anew = {way: _step(made, registered[way], prompts) for way in two}
        print(f"{name}, {prompt} keys, captured since: {_in_turns(anew)}", flush=True)
        print(f"{name}, {prompt} keys, generating between: {_in_turns(anew, generate)}", flush=True)
        for way in two:
            print("\n".join([f"{name}, {prompt} keys, {way}, by CUPTI:", *_kernels(steps[way])]), flush=True)


def ways() -> dict[str, model.Attention]:
    """Less and less of `attend`; what is no attention returns Q, and only its time counts."""
    module, x = cupy.RawModule(code=SOURCE, options=("-std=c++17", "-arch=sm_90")), torch.zeros(2, device=DEVICE)
    nothing, much, waits = map(module.get_function, ("nothing", "much_shared", "waits"))
    much.max_dynamic_shared_size_bytes = SHARED_BYTES

    def launch(kernel: Any, shared_bytes: int = 0) -> None:
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            kernel((8,), (128,), (x.data_ptr(),), shared_mem=shared_bytes)

    def copied(beside: Callable[[], object], *given: Any, **named: Any) -> tuple[Tensor, None]:
        beside()
        return given[1].clone().transpose(1, 2).contiguous(), None

    def once(*given: Any, **named: Any) -> tuple[Tensor, None]:
        first = getattr(given[0], "layer_idx", 0) == 0
        return model.attention(*given, **named) if first else copied(_nothing, *given, **named)

    def without_lengths(*given: Any, **named: Any) -> tuple[Tensor, None]:
        _, q, k, v, *_ = given
        return attend.attend(q, k, v).transpose(1, 2).contiguous(), None

    return {
        "attend without lengths": without_lengths,
        "attend in the first layer": once,
        "a copy of Q": partial(copied, _nothing),
        "and a kernel of CuPy": partial(copied, partial(launch, nothing)),
        "and one of much shared memory": partial(copied, partial(launch, much, SHARED_BYTES)),
        "and one that waits for what is before": partial(copied, partial(launch, waits)),
    }


def _nothing() -> None:
    pass


def _step(made: Any, implementation: str, prompts: Tensor) -> Steps:
    made.set_attn_implementation(implementation)
    with patch.object(torch.cuda, "CUDAGraph", partial(torch.cuda.CUDAGraph, keep_graph=True)):
        return model.steps(made, prompts)


def _nodes(steps: Steps) -> str:
    graph, driver = steps["graph_us"].__self__, maps.driver()  # type: ignore[attr-defined]
    raw = driver.CUgraph(graph.raw_cuda_graph())
    _, _, count = driver.cuGraphGetNodes(raw, 0)
    _, nodes, _ = driver.cuGraphGetNodes(raw, count)
    kinds = Counter(driver.cuGraphNodeGetType(node)[1].name.rpartition("TYPE_")[2].lower() for node in nodes)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _in_turns(steps: dict[str, Steps], between: Callable[[str], None] = lambda way: None) -> str:
    """What a replay takes behind one of the same graph, where the others' run before that, and what is `between`."""
    us: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(REPLAYS):
        for way, step in steps.items():
            between(way)
            step["graph_us"]()
            us[way].append(cuda_events.timed(DEVICE, step["graph_us"])[0])
    return ", ".join(f"{way} {median(found):.0f}" for way, found in us.items())


def _times(steps: Steps) -> str:
    replay = steps["graph_us"]
    replay()  # a graph that is kept is made ready for launches by its first replay
    host_us, queued_us = [], []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        replay()
        host_us.append((time.perf_counter() - begin) * 1e6)
        queued_us.append(cuda_events.timed(DEVICE, replay)[0])
    return f"launched in {median(host_us):.0f} us of the host; on the device {median(queued_us):.0f} behind a replay"


def _kernels(steps: Steps) -> list[str]:
    with inspection.quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        steps["graph_us"]()
        torch.cuda.synchronize()
    found = filter(traced._ran_on_device, profiler.profiler.kineto_results.events())
    events = sorted((event.start_ns() / 1e3, event.end_ns() / 1e3, event.name()) for event in found)
    took, gaps, before = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list), events[0][0]
    for start, end, name in events:
        took[name].append(end - start)
        gaps[name].append(start - before)
        before = max(before, end)
    listed = sorted(took, key=lambda name: -sum(took[name]) - sum(gaps[name]))[:SHOWN]
    return [
        f"  {len(took[name]):4} x {median(took[name]):6.2f} us after {median(gaps[name]):6.2f}  {name[:90]}"
        for name in listed
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
