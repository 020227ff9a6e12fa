"""Ladders for tests: one kernel that is correct and short, entries with changes that make them wrong, and tunings."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from attnlab.study import ladder
from attnlab.study.tuning import TileChoice, Tuning

HEADER = """\
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__device__ float widen(__half x) { return __half2float(x); }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
"""
SOURCE = """\
#include "widen.cuh"
// A thread for each query, 64 of them in a CTA, which takes one work item after the other.
template <typename T, int D, bool CAUSAL>
__global__ void plain(const T* q, const T* k, const T* v, T* o, int heads, int seq_len, float scale) {
    const int tiles = (seq_len + 63) / 64;
    for (int item = blockIdx.x; item < heads * tiles; item += gridDim.x) {
        const int row = item % tiles * 64 + threadIdx.x;
        if (row >= seq_len) continue;
        const long long head = static_cast<long long>(item / tiles) * seq_len * D;
        float out[D] = {}, most = -1e30f, sum = 0.f;
        for (int key = 0; key < (CAUSAL ? row + 1 : seq_len); ++key) {
            float score = 0.f;
            for (int d = 0; d < D; ++d) score += widen(q[head + row * D + d]) * widen(k[head + key * D + d]);
            const float larger = fmaxf(most, score * scale);
            const float keep = expf(most - larger), p = expf(score * scale - larger);
            for (int d = 0; d < D; ++d) out[d] = out[d] * keep + p * widen(v[head + key * D + d]);
            sum = sum * keep + p;
            most = larger;
        }
        for (int d = 0; d < D; ++d) o[head + row * D + d] = T(out[d] / sum);
    }
}
"""
TILE: dict[str, Any] = {"head_dim": 64, "rows": 64, "keys": 1, "threads": 64, "shared_bytes": 0, "template": {}}
RUNG: dict[str, Any] = {
    "name": "plain",
    "title": "a thread for each query",
    "source": "plain.cu",
    "function": "plain",
    "after": "",
    "hypothesis": "nothing is faster than nothing",
    "expected_speedup": 1.0,
    "dtypes": ["float16", "bfloat16"],
    "architectures": ["sm_80", "sm_90a"],
    "arguments": "pointers",
}


def rung(*tiles: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A correct entry with some fields replaced; a field with the value ``...`` is left out."""
    stated = RUNG | {"tiles": list(tiles) or [TILE]} | changes
    return {key: value for key, value in stated.items() if value is not ...}


def write(folder: Path, *entries: dict[str, Any], source: str = SOURCE) -> Path:
    """Write ladder.toml, the kernel and its header into a folder; returns the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "ladder.toml").write_text("".join(map(_entry, entries or (rung(),))))
    (folder / "plain.cu").write_text(source)
    (folder / "widen.cuh").write_text(HEADER)
    return folder


WRONG = Path(__file__).parent / "measure" / "saboteurs"
SABOTEURS = re.findall(r"^KERNEL\((\w+)\)", (WRONG / "saboteurs.cu").read_text(), re.MULTILINE)
"""The names of wrong kernels, after that of the honest one."""


def write_saboteurs(folder: Path) -> Path:
    """Write a ladder of the kernels in `WRONG` into a new folder; returns the folder."""
    tile = {"head_dim": 64, "rows": 128, "keys": 64, "threads": 128, "shared_bytes": 16896, "template": {}}
    about = {"source": "saboteurs.cu", "architectures": ["sm_80", "sm_89", "sm_90a"]}
    shutil.copytree(WRONG, folder)
    entries = (_entry(rung(tile, name=name, function=name, **about)) for name in SABOTEURS)
    (folder / "ladder.toml").write_text("".join(entries))
    return folder


def choice(tile: str = "long", **changes: Any) -> TileChoice:
    """A choice of the kernel `plain` in its present state, with some fields replaced."""
    stated = {"heads": 8, "seq_len": 512, "head_dim": 64, "causal": False, "rung": "plain", "latency_us": 2.5}
    return TileChoice(**stated | {"tile": tile} | changes)


def tuned(*choices: TileChoice, device: str = "NVIDIA H200") -> Tuning:
    """A tuning with these choices, for the present ladder."""
    about = {"torch": "2.11.0", "command": "make tune", "clock": "device clock"}
    return Tuning(device=device, multiprocessors=16, sources=ladder.hashes(), choices=list(choices), **about)


def _entry(entry: dict[str, Any]) -> str:
    return "\n".join(["[[rungs]]", *(f"{key} = {_value(value)}" for key, value in entry.items())]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_value(item)}' for key, item in value.items())}}}"
    return "nan" if value != value else json.dumps(value)
