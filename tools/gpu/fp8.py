"""Try instances of kernels/13_fp8.cu on a GPU, outside of a run: errors against float64, then times.

``PYTHONPATH=lib python tools/gpu/fp8.py --compile`` compiles all instances into .trial/fp8, on any machine;
``PYTHONPATH=lib timeout -k 5 60 python tools/gpu/fp8.py 128`` then tries those of a head_dim, and ends if a step takes
longer than `PATIENCE_S`. The reference is float64 on the dequantised inputs. Mean and largest errors are divided by
those of `accuracy.attention`, the same formula from PyTorch's operations. Times are medians of graph replays in random
order, in TFLOP/s, next to `kernel.best` in fp16 and cuDNN's FP8.
"""

import argparse
import ctypes
import faulthandler
import hashlib
import math
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attnlab.base.rules import GATE_FACTOR
from attnlab.measuring.fp8 import accuracy, cudnn
from attnlab.measuring.fp8.quantize import Quantized, quantize
from attnlab.measuring.gate.check import Error
from attnlab.measuring.kernels import maps
from attnlab.measuring.kernels.launch import Maps
from attnlab.measuring.kernels.problem import Problem, shares
from attnlab.measuring.subjects import inputs, oracle, registry
from attnlab.study.shapes import Shape

DEVICE = torch.device("cuda")
ROOT = Path(__file__).parents[2]
KERNELS, CUBINS = ROOT / "kernels", ROOT / ".trial/fp8"
SOURCES = [KERNELS / name for name in ("13_fp8.cu", "e4m3.cuh", "jobs.cuh", "hopper.cuh", "mma.cuh", "element.cuh")]
PATIENCE_S = 30


@dataclass(frozen=True)
class Instance:
    """Template arguments of the kernel, without the element type and the mask."""

    head_dim: int
    keys: int
    stages: int
    consumers: int
    ping_pong: int
    split: int

    @property
    def name(self) -> str:
        words = {"turns": self.ping_pong, "split": self.split}
        return " ".join([f"k{self.keys} s{self.stages} c{self.consumers}", *(word for word, on in words.items() if on)])

    def expression(self, causal: bool) -> str:
        numbers = f"{self.keys},{self.stages},{self.consumers},{self.ping_pong},{self.split}"
        return f"fp8<__half,{self.head_dim},{'true' if causal else 'false'},{numbers}>"

    @property
    def shared_bytes(self) -> int:
        """An upper bound of the size of `Shared8`, in bytes."""
        transposed = -(-self.keys // 64) * 64 * self.head_dim
        tiles = self.stages * (2 * self.keys * self.head_dim + transposed)
        rest = 512 + self.consumers * (32 + 256 + 80) + 48 * self.stages
        return -(-(self.consumers * 256 * self.head_dim + tiles + rest) // 1024) * 1024


# keys, stages, consumers, turns, split.
INSTANCES = {
    128: [(128, 2, 3, 1, 1), (128, 2, 3, 0, 1), (128, 2, 3, 1, 0)],
    64: [(192, 3, 3, 1, 0), (96, 4, 4, 1, 0)],
}
OTHER_KINDS = ("outliers", "rising 24")
CHECKED = [  # batch, heads, seq_len, kv_heads, kv_len, causal, layout, values
    (1, 2, 192, 2, 192, True, "heads first", "normal"),
    (2, 4, 333, 2, 333, False, "tokens first", "normal"),
    (1, 3, 1000, 3, 1000, True, "heads first", "normal"),
    (2, 2, 70, 1, 517, True, "heads first", "normal"),
    (8, 8, 512, 8, 512, False, "heads first", "normal"),
    *((2, 8, 2048, 4, 2048, True, "tokens first", kind) for kind in ("normal", "sd 6", "sink 13", "offset 1")),
    *(
        (2, 8, 2048, 8, 2048, False, "heads first", kind)
        for kind in ("normal", "rising 24", "outliers", "zeros", "offset 1")
    ),
    *((2, 8, 2048, 8, 2048, False, "heads first", kind) for kind in ("minus 1", "captured middle")),
    (1, 4, 16384, 4, 16384, False, "heads first", "offset 1"),
]
"""With "minus 1" all scores are below 0."""
TIMED = [
    (4, 16, 4096, 128, False),
    (4, 16, 4096, 128, True),
    (2, 16, 16384, 128, False),
    (32, 8, 2048, 64, False),
    (8, 8, 8192, 64, False),
]


class Scales(ctypes.Structure):
    """The struct of a tensor's scales and their strides of batch and head, as the kernel's source declares it."""

    _fields_ = (("at", ctypes.c_void_p), ("batch", ctypes.c_int), ("head", ctypes.c_int))

    @classmethod
    def of(cls, tensor: Quantized) -> "Scales":
        sizes, strides = tensor.scales.shape, tensor.scales.stride()
        return cls(tensor.scales.data_ptr(), *(strides[i] if sizes[i] > 1 else 0 for i in (0, 1)))


def _held(expression: str) -> Path:
    """The file for an expression and the current sources: a line with the mangled name, then the cubin."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES) + expression.encode()).hexdigest()[:16]
    return CUBINS / f"{digest}.cubin"


def compile_one(expression: str) -> str:
    """Compile into the expression's file; returns ptxas's lines on spills, or the compiler's errors."""
    from cuda.bindings import nvrtc
    from cuda.pathfinder import find_nvidia_header_directory, load_nvidia_dynamic_lib

    load_nvidia_dynamic_lib("nvrtc")
    include = find_nvidia_header_directory("cudart")
    words = ["-std=c++17", "-arch=sm_90a", f"-I{KERNELS}", f"-I{include}", "-ftz=true", "--ptxas-options=-v"]
    _, program = nvrtc.nvrtcCreateProgram((KERNELS / "13_fp8.cu").read_bytes(), b"13_fp8.cu", 0, [], [])
    nvrtc.nvrtcAddNameExpression(program, expression.encode())
    options = [word.encode() for word in (*words, "--device-as-default-execution-space")]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
    nvrtc.nvrtcGetProgramLog(program, log)
    said = log.decode(errors="replace")
    if status.value:
        return f"{expression}: {said[:1000]}"
    cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, cubin)
    name = nvrtc.nvrtcGetLoweredName(program, expression.encode())[1].decode()
    CUBINS.mkdir(parents=True, exist_ok=True)
    _held(expression).write_bytes(name.encode() + b"\n" + cubin)
    spilled = [int(size) for size in re.findall(r"(\d+) bytes spill stores", said)]
    serial = " SERIALIZED" * ("serialized" in said)
    return f"{expression}: spills {max(spilled, default=0)}{serial}"


class Fp8:
    """An instance of the kernel under a mask, to be called with quantised tensors."""

    def __init__(self, instance: Instance, causal: bool, cubin: bytes, name: str) -> None:
        self.instance, self.causal = instance, causal
        driver = maps.driver()
        self.module = _checked(driver.cuModuleLoadData(cubin))
        self.function = _checked(driver.cuModuleGetFunction(self.module, name.encode()))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(self.function, attribute, instance.shared_bytes))

    def prepare(self, q: Quantized, k: Quantized, v: Quantized) -> Callable[[], Tensor]:
        """A call without arguments, whose output is the same memory each time."""
        i, driver = self.instance, maps.driver()
        rows = 64 * i.consumers
        tile: Any = SimpleNamespace(
            rows=rows, keys=i.keys, box=64, items=lambda queries, heads: -(-queries // rows) * heads
        )
        batch, heads, queries, head_dim = q.values.shape
        properties = torch.cuda.get_device_properties(DEVICE)
        held = properties.multi_processor_count
        items = tile.items(queries, batch * heads)
        ctas = min(items * (1 if self.causal else shares(items, held, i.consumers)), held)
        output = torch.full_like(q.values, math.nan, dtype=torch.float16)
        problem = Problem.of(q.values, k.values, self.causal, head_dim**-0.5, tile, ctas, properties.L2_cache_size)
        scales = (Scales * 4)(*map(Scales.of, (q, k, v)))  # and of an O in e4m3, which this isn't
        tensors, boxes = (q.values, k.values, v.values, output), (64, i.keys, i.keys, 64)
        encoded = [maps.strided(t, t.data_ptr(), box) for t, box in zip(tensors, boxes, strict=True)]
        parameters = Maps(encoded, [problem, scales])
        parameters.point(tuple(tensor.data_ptr() for tensor in tensors))
        fixed = (self.function, ctas, 1, 1, 128 * (1 + i.consumers), 1, 1, i.shared_bytes)

        def call() -> Tensor:
            stream = torch._C._cuda_getCurrentRawStream(0)
            _checked(driver.cuLaunchKernel(*fixed, stream, parameters.address, 0))
            return output

        call.kept = (q, k, v, scales)  # type: ignore[attr-defined]
        return call


def _checked(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if status.value:
        raise RuntimeError(status.name)
    return values[0] if values else None


def check(kernels: dict[tuple[Instance, bool], Fp8], head_dim: int) -> None:
    """Print the mean and largest error of each instance at each case, divided by the formula's errors."""
    for batch, heads, seq_len, kv_heads, kv_len, causal, layout, kind in CHECKED:
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        drawn_of = "normal" if kind == "minus 1" else kind
        shape = Shape(batch, heads, seq_len, head_dim, causal, kv_heads=kv_heads, kv_len=kv_len, values=drawn_of)
        try:
            drawn_q, drawn_k, drawn_v = inputs.draw(shape, 1, DEVICE)
        except Exception as error:  # captured values that aren't here
            print(f"  {kind}: {error}")
            continue
        if kind == "minus 1":
            drawn_q.abs_(), drawn_k.abs_().neg_()
        q, k, v = quantize(drawn_q, drawn_k, drawn_v)
        if layout == "tokens first":  # quantising makes tensors contiguous
            q, k, v = (Quantized(_tokens_first(t.values), t.scales, t.rows) for t in (q, k, v))
        exact = oracle.float64(q.dequantized(), k.dequantized(), v.dequantized(), causal)
        formula = Error.between(accuracy.attention(q, k, v, causal), exact)
        print(
            f"D={head_dim} {batch},{heads},{seq_len},{kv_heads},{kv_len}{'c' * causal} {layout} {kind}: {formula}",
            flush=True,
        )
        for (instance, masked), kernel in kernels.items():
            if (instance.head_dim, masked) != (head_dim, causal):
                continue
            call = kernel.prepare(q, k, v)
            output = call().clone()
            torch.cuda.synchronize()
            found = Error.between(output, exact)
            ratios = found.mean / max(1e-12, formula.mean), found.maximum / max(1e-12, formula.maximum)
            same = "" if torch.equal(output, call()) else "  NOT THE SAME TWICE"
            bad = "  WRONG" if not max(ratios) <= GATE_FACTOR else ""
            print(f"    {instance.name:34} {ratios[0]:6.3f} {ratios[1]:6.3f}{same}{bad}", flush=True)


def _tokens_first(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def measure(
    kernels: dict[tuple[Instance, bool], Fp8], shape: tuple[int, int, int, int, bool], kind: str, rounds: int
) -> None:
    """Print the TFLOP/s and µs of each instance at a shape, and of `kernel.best` and cuDNN."""
    batch, heads, length, head_dim, causal = shape
    asked = Shape(batch, heads, length, head_dim, causal=causal, values=kind)
    given = drawn_q, drawn_k, drawn_v = inputs.draw(asked, 1, DEVICE)
    q, k, v = quantize(drawn_q, drawn_k, drawn_v)
    timed = [i for i, c in kernels if i.head_dim == head_dim and c == causal]
    calls = {i.name: kernels[i, causal].prepare(q, k, v) for i in timed}
    try:
        best = registry.find("kernel.best").bound(given, asked)
        best()
        calls["kernel.best fp16"] = best
    except Exception as error:  # a peer that is missing is no reason to stop
        print(f"  kernel.best: {error}")
    try:
        of_tensors = quantize(drawn_q, drawn_k, drawn_v, scales="tensor")
        calls["cudnn to e4m3"] = partial(cudnn.attention, *of_tensors, causal, drawn_q.dtype)
        calls["cudnn to e4m3"]()
    except Exception as error:
        calls.pop("cudnn to e4m3")
        print(f"  cudnn: {error}")
    flops = 4 * batch * heads * length**2 * head_dim / (2 if causal else 1)
    count = max(1, round(2e-3 / (flops / 8e14)))
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    took: dict[str, list[float]] = {}
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        graphs[name], took[name] = graph, []
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(rounds):
        for name in random.sample(list(graphs), len(graphs)):
            graphs[name].replay()
            start.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            took[name].append(start.elapsed_time(end) / count)
    print(f"{shape} {kind}: TFLOP/s, us", flush=True)
    for name, each in sorted(took.items(), key=lambda item: median(item[1])):
        print(f"    {name:34} {flops / median(each) / 1e9:7.1f} {1e3 * median(each):9.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("head_dims", nargs="*", type=int, default=list(INSTANCES), metavar="head_dim")
    parser.add_argument("--compile", action="store_true", help="compile only")
    parser.add_argument("--only", default="", help="instances whose names have this in them")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--unchecked", action="store_true", help="time only")
    options = parser.parse_args()
    began = time.perf_counter()
    instances = [Instance(head_dim, *numbers) for head_dim in options.head_dims for numbers in INSTANCES[head_dim]]
    wanted = [instance for instance in instances if options.only in instance.name]
    expressions = {instance.expression(causal): (instance, causal) for instance in wanted for causal in (False, True)}
    built = _built(list(expressions))
    if options.compile:
        return
    torch.zeros(1, device=DEVICE)
    kernels = {expressions[e]: Fp8(*expressions[e], cubin, name) for e, (cubin, name) in built.items()}
    print(torch.cuda.get_device_name(), f"ready after {time.perf_counter() - began:.0f} s", flush=True)
    for head_dim in options.head_dims:
        if not options.unchecked:
            check(kernels, head_dim)
            print(f"checked after {time.perf_counter() - began:.0f} s", flush=True)
        for shape in (shape for shape in TIMED if shape[3] == head_dim):
            for kind in ("normal", *OTHER_KINDS):
                faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
                measure(kernels, shape, kind, options.rounds)
                print(f"timed after {time.perf_counter() - began:.0f} s", flush=True)


def _built(expressions: list[str]) -> dict[str, tuple[bytes, str]]:
    """The cubins and mangled names of expressions that compile. A process for each core compiles missing ones."""
    missing = [expression for expression in expressions if not _held(expression).exists()]
    if missing:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            for said in pool.map(compile_one, missing):
                print(said, flush=True)
    found = {}
    for expression in filter(lambda expression: _held(expression).exists(), expressions):
        name, _, cubin = _held(expression).read_bytes().partition(b"\n")
        found[expression] = cubin, name.decode()
    return found


if __name__ == "__main__":
    main()
