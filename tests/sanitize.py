"""Every kernel of the ladder under compute-sanitizer's memcheck and racecheck; docs/development.md says how.

Each kernel runs under each tool in a separate process, which is ended after `LIMIT_S`. Every tile runs once for each
mask, at lengths that are no multiple of a tile. Only the kernels run on the GPU: inputs are drawn, and outputs checked,
on the CPU. PyTorch must not cache memory; otherwise, an access beyond the end of a tensor can hit memory that is still
allocated.

Racecheck reports a false race where 128 threads meet at a named barrier and one of them then arrives for all at another
barrier. A kernel of 30 lines with only these barriers has the same report, and none if each thread arrives for itself.
Racecheck therefore gets the files of `CONSUMING` with an arrival of each thread.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import torch

from attnlab.base import paths
from attnlab.measuring.fp8.kernel import ScaledKernel
from attnlab.measuring.fp8.quantize import E4M3, quantize
from attnlab.measuring.kernels import rungs
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study import ladder
from attnlab.study.ladder import Rung
from attnlab.study.shapes import Shape

TOOLS = ("memcheck", "racecheck")
LIMIT_S = 180
# 1 row more than a tile, 1 row less than 2 tiles, and several tiles with a remainder.
LENGTHS = (65, 127, 300)
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
EACH_ARRIVES = {
    "init_barrier(shared_address(smem.query_full) + 8 * i, 1);": (
        "init_barrier(shared_address(smem.query_full) + 8 * i, i < 2 * P::CONSUMERS ? 1 : 128);"
    ),
    "if (storing && threadIdx.x % 128 == 0) {\n            wait_for_stores();": (
        "if (storing) {\n            if (threadIdx.x % 128 == 0) wait_for_stores();"
    ),
}
"""Lines of the files of `CONSUMING`, and their replacements for racecheck."""
CONSUMING = ("jobs.cuh", "13_fp8.cu")


def main(names: list[str]) -> int:
    """Run the named kernel, or every kernel under each tool; returns the number of runs with findings."""
    if not torch.cuda.is_available():
        print("sanitize: torch sees no NVIDIA GPU here", file=sys.stderr)
        return 1
    if names:
        return run(ladder.rung(names[0]))
    with tempfile.TemporaryDirectory() as folder:
        kernels = {"memcheck": paths.kernels(), "racecheck": each_arriving(Path(folder) / "kernels")}
        return sum(not clean(tool, rung, kernels[tool]) for tool, rung in product(TOOLS, ladder.load()))


def each_arriving(folder: Path) -> Path:
    """Copy the kernels, with an arrival of each thread; returns the folder."""
    shutil.copytree(paths.kernels(), folder)
    for source in (folder / name for name in CONSUMING):
        text = source.read_text()
        for said, says in EACH_ARRIVES.items():
            assert text.count(said) == 1, f"{source.name} no longer says {said!r}"
            text = text.replace(said, says)
        source.write_text(text)
    return folder


def clean(tool: str, rung: Rung, kernels: Path) -> bool:
    """Whether a tool finds nothing in any tile of a kernel within the time; prints its findings."""
    options = ["--report-api-errors", "no", "--error-exitcode", "1", "--print-limit", "20"]
    command = ["compute-sanitizer", "--tool", tool, *options, sys.executable, __file__, rung.implementation]
    print(f"{tool}, {rung.implementation}", flush=True)
    env = os.environ | UNCACHED | {"ATTNLAB_KERNELS": os.fspath(kernels)}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        return process.wait(LIMIT_S) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        print(f"{tool}, {rung.implementation}: not done after {LIMIT_S} s", file=sys.stderr, flush=True)
        return False


def run(rung: Rung) -> int:
    """Run every tile of a kernel; returns the number of outputs that are not finite."""
    wrong = 0
    for tile in rung.tiles:
        kernel = rungs.pinned(rung, tile)
        for mask, length in product(tile.masks, LENGTHS):
            causal, seq_len = mask == ladder.MASKS[True], max(tile.shortest, min(length, tile.longest or length))
            queries = min(seq_len, rung.most_queries or seq_len)
            if not rung.serves_rows(tile, queries):  # 1 more tile makes the rows even
                queries += tile.rows
            shape = Shape(1, 2, queries, tile.head_dim, causal, rung.dtypes[0], kv_len=max(seq_len, queries))
            given = inputs.draw(shape, seq_len, torch.device("cpu"))
            print(f"{kernel.name} at {shape}", flush=True)
            try:
                if rung.scaled:
                    output = of_scales(ScaledKernel(rung.model_copy(update={"tiles": [tile]})), given, causal).cpu()
                else:
                    output = kernel.call(*(x.cuda() for x in given), causal).cpu()
            except Unsupported as error:
                print(f"{kernel.name}: skipped: {error}")
                break
            if not output.isfinite().all():
                wrong += 1
                print(f"{kernel.name} at {shape}: not finite", file=sys.stderr)
    return wrong


def of_scales(kernel: ScaledKernel, given: inputs.Inputs, causal: bool) -> torch.Tensor:
    """The outputs of a kernel for e4m3, in the inputs' dtype and in e4m3; the inputs are quantized on the CPU."""
    tensors, scales = zip(*((one.values.cuda(), one.scales.cuda()) for one in quantize(*given)), strict=True)
    wide = kernel.of_scales(*tensors, scales, causal, None, given[0].dtype)
    narrow = kernel.of_scales(*tensors, (*scales, torch.ones(1, 1, 1).cuda()), causal, None, E4M3)
    return torch.stack([wide.float(), narrow.float()])


if __name__ == "__main__":
    os.environ["PATH"] += f"{os.pathsep}/usr/local/cuda/bin"
    if not shutil.which("compute-sanitizer"):
        sys.exit("compute-sanitizer is not here: it comes with the CUDA toolkit")
    sys.exit(min(main(sys.argv[1:]), 1))
