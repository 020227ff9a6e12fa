"""Tune `kernel.best` on all GPUs of a machine at once, as `make tune` does on one: each takes a part of the shapes.

``PYTHONPATH=lib python3 tools/gpu/tune.py`` writes all choices into the device's tuning file. The logs are
/tmp/tune.*.log.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from attnlab.base import paths
from attnlab.measuring.instruments import devices
from attnlab.measuring.session import tune
from attnlab.study import ladder, tuning

PART = """from attnlab.measuring.session import tune
tune.SHAPES = tune.SHAPES[{}::{}]
tune.compile_all = lambda *_: None  # `main` compiled all
tune.tune()"""


def main() -> None:
    gpus, made = range(torch.cuda.device_count()), tuning.path(torch.cuda.get_device_name())
    device = torch.device("cuda")
    finalists = tune.Finalists(ladder.drawn(), device, devices.describe(device)["multiprocessors"])
    tune.compile_all(finalists, tune.SHAPES, ("float16", "bfloat16"))  # a later run needs both dtypes
    running = [_begin(gpu, len(gpus)) for gpu in gpus]
    if failed := [gpu for gpu, process in zip(gpus, running, strict=True) if process.wait()]:
        raise SystemExit(f"it failed on GPU {', '.join(map(str, failed))}: see /tmp/tune.*.log")
    own = made.relative_to(paths.kernels())
    parts = [tuning.Tuning.model_validate_json((_folder(gpu) / own).read_bytes()) for gpu in gpus]
    order = [tuning.place(shape, parts[0].multiprocessors) for shape in tune.SHAPES]
    choices = [choice for part in parts for choice in part.choices]
    choices.sort(key=lambda choice: (order.index(choice.place), choice.latency_us))
    tuning.write(parts[0].model_copy(update={"choices": choices}))
    print(f"{made}: {len({choice.place for choice in choices})} of {len(order)} shapes")


def _begin(gpu: int, gpus: int) -> subprocess.Popen[bytes]:
    shutil.copytree(paths.kernels(), _folder(gpu), dirs_exist_ok=True)
    there = {"CUDA_VISIBLE_DEVICES": str(gpu), "ATTNLAB_KERNELS": str(_folder(gpu))}
    with open(f"/tmp/tune.{gpu}.log", "wb") as log:
        return subprocess.Popen([sys.executable, "-c", PART.format(gpu, gpus)], env=os.environ | there, stderr=log)


def _folder(gpu: int) -> Path:
    return Path(f"/tmp/kernels.{gpu}")


if __name__ == "__main__":
    main()
