"""Compute the errors of rounding to e4m3 for each input distribution, into data/reference/fp8_costs.csv: minutes.

``PYTHONPATH=lib python tools/fp8_costs.py``. A row is an input distribution and a rounding of Q, K and V. They are
rounded to the shape's own 16 bits, or to e4m3, with and without rotation. A scale of e4m3 is for a tensor, a head or a
block of 64 rows. The RMS and largest errors are against float64 of the values before rounding. Attention uses PyTorch
operations on a CPU, which round where an FP8 kernel does.
"""

import pandas as pd
import torch

from attnlab.base import paths
from attnlab.measuring.fp8 import accuracy
from attnlab.study import values
from attnlab.study.shapes import Shape

SHAPE = Shape(1, 4, 2048, 128, dtype="bfloat16")
CAPTURED = Shape(1, 8, 512, 64, dtype="bfloat16")
"""Captured heads have a head dimension of 64."""


def main() -> None:
    """Write the file, and print each row."""
    rows = []
    for kind in values.STANDARD:
        shape = (CAPTURED if kind.startswith(values.CAPTURED) else SHAPE).resized(values=kind)
        for rounded, deviation in accuracy.costs(shape, torch.device("cpu")).items():
            rows.append({"shape": shape.plain.label, "values": kind, "rounded": rounded} | vars(deviation))
            print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(paths.REFERENCE / "fp8_costs.csv", index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
