"""Compare the instance that `kernel.best` chooses at given shapes with all others: seconds a shape, and no run.

``PYTHONPATH=lib python3 tools/gpu/chosen.py 59,128,72,128,16,72 2,12,71,64`` takes shapes as `trial.py` does. It prints
the instance that the tuning chooses and the fastest ones, in µs on each instance's slowest input distribution.
"""

import sys

import torch
from trial import DEVICE, shape_of

from attnlab.measuring.instruments import devices, environment
from attnlab.measuring.kernels import rungs
from attnlab.measuring.session import tune
from attnlab.study import ladder, tuning
from attnlab.study.tuning import TileChoice

SHOWN = 4


def main(stated: list[str]) -> None:
    environment.lock()
    made = tuning.load(torch.cuda.get_device_name())
    print(made.device)
    finalists = tune.Finalists(ladder.drawn(), DEVICE, made.multiprocessors)
    for shape in (shape_of(each, "normal") for each in stated):
        found = {_name(choice, finalists): choice.latency_us for choice in finalists.fastest(shape)}
        chosen = _name(made.choice(shape), finalists)
        took = f"{found[chosen]:.4g}" if chosen in found else "left out"
        fastest = ", ".join(f"{name} {latency_us:.4g}" for name, latency_us in list(found.items())[:SHOWN])
        print(f"{shape}: {chosen} {took}; {fastest}", flush=True)
        devices.release(DEVICE)


def _name(choice: TileChoice, finalists: tune.Finalists) -> str:
    return rungs.pinned(*choice.instance(finalists.rungs)).name


if __name__ == "__main__":
    main(sys.argv[1:])
