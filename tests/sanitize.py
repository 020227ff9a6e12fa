"""Runs every tile of the ladder's kernels once for each mask, at lengths that are no multiple of a tile.

`make sanitize` runs this under compute-sanitizer's memcheck and racecheck. Only the kernels run on the GPU: inputs are
drawn, and outputs are checked, on the CPU. torch must not cache memory (PYTORCH_NO_CUDA_MEMORY_CACHING=1); otherwise,
an access beyond the end of a tensor can hit memory that is still allocated.
"""

import os
import sys
from itertools import product

import torch

from attnlab.measure.subjects import inputs, rungs
from attnlab.measure.subjects.implementation import Unsupported
from attnlab.study import ladder
from attnlab.study.shapes import Shape

# One row more than a tile, one row less than two tiles, and several tiles with a remainder.
LENGTHS = (65, 127, 300)


def main() -> int:
    """Run every kernel; returns the number of outputs that are not finite."""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        print("sanitize: set PYTORCH_NO_CUDA_MEMORY_CACHING=1, or overruns are hidden", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("sanitize: torch sees no NVIDIA GPU here", file=sys.stderr)
        return 1
    wrong, ran = 0, 0
    for rung in ladder.load():
        for tile in rung.tiles:
            kernel = rungs.pinned(rung, tile)
            for mask, length in product(tile.masks, LENGTHS):
                causal, seq_len = mask == ladder.MASKS[True], max(tile.shortest, min(length, tile.longest or length))
                shape = Shape(1, 2, seq_len, tile.head_dim, causal, rung.dtypes[0])
                q, k, v = (x.cuda() for x in inputs.draw(shape, seq_len, torch.device("cpu")))
                print(f"{kernel.name} at {shape}", flush=True)
                try:
                    output = kernel.call(q, k, v, causal).cpu()
                except Unsupported as error:
                    print(f"{kernel.name}: skipped: {error}")
                    continue
                ran += 1
                if not output.isfinite().all():
                    wrong += 1
                    print(f"{kernel.name} at {shape}: not finite", file=sys.stderr)
    print(f"{ran} launches, {wrong} of them with outputs that are not finite")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
