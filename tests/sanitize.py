"""Every kernel of the ladder once for each head_dim and mask, at lengths that leave a rest, for compute-sanitizer.

`make sanitize` runs this under its memcheck and its racecheck. Nothing but the kernels runs on the GPU: inputs are
drawn, and outputs looked at, on the CPU. torch must not cache memory (PYTORCH_NO_CUDA_MEMORY_CACHING=1), or what a
kernel does beyond the end of a tensor falls into memory that is someone's.
"""

import os
import sys

import torch

from attnlab import ladder
from attnlab.measure import inputs, kernels
from attnlab.measure.attention import Unsupported
from attnlab.shapes import Shape

# A rest of one row past a tile, one row short of two, and several tiles with a rest.
LENGTHS = (65, 127, 300)


def main() -> int:
    """Run every kernel; returns how many outputs were not finite."""
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        print("sanitize: set PYTORCH_NO_CUDA_MEMORY_CACHING=1, or overruns are hidden", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("sanitize: torch sees no NVIDIA GPU here", file=sys.stderr)
        return 1
    wrong, ran = 0, 0
    for rung in ladder.load():
        kernel = kernels.implementation(rung.implementation).call
        for head_dim in (tile.head_dim for tile in rung.tiles):
            for causal in (False, True):
                for seq_len in LENGTHS if not rung.longest else (n for n in LENGTHS if n <= rung.longest):
                    shape = Shape(1, 2, seq_len, head_dim, causal, rung.dtypes[0])
                    q, k, v = (x.cuda() for x in inputs.draw(shape, seq_len, torch.device("cpu")))
                    print(f"{rung.name} at {shape}", flush=True)
                    try:
                        output = kernel(q, k, v, causal).cpu()
                    except Unsupported as error:
                        print(f"{rung.name}: skipped: {error}")
                        continue
                    ran += 1
                    if not output.isfinite().all():
                        wrong += 1
                        print(f"{rung.name} at {shape}: not finite", file=sys.stderr)
    print(f"{ran} launches, {wrong} of them with outputs that are not finite")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
