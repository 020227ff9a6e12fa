"""Look into a model's step of one token under a CUDA graph, as page 09 times it: half a minute for a model.

``PYTHONPATH=lib python3 tools/gpu/step.py 512 gpt2 llama-64`` takes SDPA, `attend`, `attend` whose kernels wait until
what is before them has ended, and `attend` launched without clusters and without any attribute. For each it prints what
a launch of the graph takes the host and a replay the device, in µs; and by CUPTI the kernels of a replay: how many, for
how long, and the gap before each, those that take most first. At last it prints the replays once more, in turns.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from splits import late
from torch.profiler import ProfilerActivity, profile

from attnlab.measure.clocks import cuda_events, traced
from attnlab.measure.instruments import environment, inspection
from attnlab.measure.subjects import attend, launch, model, problem
from attnlab.study.models import BASELINE, CANDIDATE, DEFAULTS, DTYPES, MODELS

DEVICE = torch.device("cuda")
REPLAYS, SHOWN = 20, 14
Replay = Callable[[], object]
_EARLY, _SPLITS = launch.early, problem.splits


def main(prompt: int, names: list[str]) -> None:
    environment.lock()
    model.register(CANDIDATE, model.attention)
    attend.use()
    print(torch.cuda.get_device_name())
    for name in names:
        made = model.build(MODELS[name], prompt + 64, DTYPES["cuda"], DEVICE)
        prompts = torch.randint(MODELS[name].vocabulary, (DEFAULTS["cuda"]["batch"][0], prompt), device=DEVICE)
        steps: dict[str, dict[str, Replay]] = {}  # which hold the caches that their graphs read
        for which, (attention, changes) in WAYS.items():
            with ExitStack() as stack:
                for module, function, other in changes:
                    stack.enter_context(patch.object(module, function, other))
                attend._split_keys.cache_clear()  # launches are prepared as they are launched
                made.set_attn_implementation(model.REGISTERED[attention])
                steps[which] = model.steps(made, prompts)
                replay = steps[which]["graph_us"]
                print(f"{name}, {prompt} keys, {which}: {_times(replay)}", flush=True)
                print("\n".join(_kernels(replay)), flush=True)
        replays = {which: taken["graph_us"] for which, taken in steps.items()}
        print(f"{name}, {prompt} keys, in turns: {_in_turns(replays)}", flush=True)


def _plain(*sizes: int) -> Any:
    config = _EARLY(*sizes)
    config.attrs, config.numAttrs = [], 0
    return config


def _without_clusters(*given: Any) -> tuple[int, int]:
    clusters, cluster = _SPLITS(*given)
    return clusters * cluster, 1


WAYS: dict[str, tuple[str, list[tuple[Any, str, Callable[..., Any]]]]] = {
    "SDPA": (BASELINE, []),
    "attend": (CANDIDATE, []),
    "attend, late": (CANDIDATE, [(launch, "early", late)]),
    "attend, plain": (CANDIDATE, [(launch, "early", _plain), (problem, "splits", _without_clusters)]),
}
"""What takes a step: an attention, and what is changed of the project for it."""


def _in_turns(replays: dict[str, Replay]) -> str:
    """What a replay takes behind one of the same graph, where the others' run before that."""
    us: dict[str, list[float]] = {which: [] for which in replays}
    for _ in range(REPLAYS):
        for which, replay in replays.items():
            replay()
            us[which].append(cuda_events.timed(DEVICE, replay)[0])
    return ", ".join(f"{which} {median(found):.0f}" for which, found in us.items())


def _times(replay: Replay) -> str:
    host_us, alone_us, queued_us = [], [], []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        replay()
        host_us.append((time.perf_counter() - begin) * 1e6)
        queued_us.append(cuda_events.timed(DEVICE, replay)[0])
        torch.cuda.synchronize()
        alone_us.append(cuda_events.timed(DEVICE, replay)[0])
    host, alone, queued = map(median, (host_us, alone_us, queued_us))
    return f"launched in {host:.0f} us of the host; on the device {queued:.0f} behind a replay, {alone:.0f} behind none"


def _kernels(replay: Replay) -> list[str]:
    with inspection.quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        replay()
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
