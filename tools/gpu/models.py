"""Measure models on all GPUs of a machine at once, as `make model` does on one.

``PYTHONPATH=lib python3 tools/gpu/models.py h200-models-5`` begins the record of that name, or goes on with it.
"""

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch

from attnlab.measure.instruments import devices
from attnlab.measure.processes import fresh_processes
from attnlab.measure.session.models import record_models
from attnlab.runs import dispatch
from attnlab.study.models import plan


class AllGpus(Executor):
    """Runs each job in a fresh process, on a GPU that runs no other."""

    def __init__(self) -> None:
        count = torch.cuda.device_count()
        self._threads, self._free = ThreadPoolExecutor(count), SimpleQueue[int]()
        for gpu in range(count):
            self._free.put(gpu)

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        return self._threads.submit(self._take, call, *arguments, **named)

    def _take(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        gpu = self._free.get()
        try:
            with fresh_processes({"CUDA_VISIBLE_DEVICES": str(gpu)}) as pool:
                return pool.submit(call, *arguments, **named).result()
        finally:
            self._free.put(gpu)


if __name__ == "__main__":
    device = devices.resolve("cuda")
    table = dispatch.identity(devices.describe(device)["name"], torch.__version__)
    record_models(sys.argv[1], plan("cuda"), device, table, AllGpus())
