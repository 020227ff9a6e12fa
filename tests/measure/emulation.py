"""Kernels for Hopper, compiled for this machine's CPU: emulated/emulated.h replaces what only a GPU has."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attnlab.base import paths

EMULATED = Path(__file__).parent / "emulated"
MEMORY = "    extern __shared__ __align__(1024) unsigned char memory[];"
OF_CTA = "    unsigned char* const memory = emu::current->cta->memory;"
WAITS = ("if (stage != state.index()) wait(full, phase);", "wait(full + 8, phase);")  # of begin_pass()
STORE = 'asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(both) : "memory");'
# PTX in jobs.cuh that emulated.h replaces: from one text to the next.
CUT = ("#define OPERANDS_68", "// How one instance works")
BODIES = {  # of functions that are PTX
    "arrive_times": "for (int i = 0; i < count; ++i) arrive(barrier);",
    "multiplied": "const T *x = (const T*)&pair, *y = (const T*)&by;"
    " return pack<T>(to_float(x[0]) * to_float(y[0]), to_float(x[1]) * to_float(y[1]));",
    "wait_until_above": "const int* const number = (const int*)emu::at(address);"
    " emu::wait_for([=] { return *number > least; });",
    "reload_thread": "return threadIdx.x % 128;",
    "reciprocal": "return 1 / x;",
    "load_rows_for_warp": "__syncwarp();"
    " if (threadIdx.x % 32 == 0) load_row_box(to, map, column, row, head, end, MAP_ROWS, barrier);",
    "expect_for_warp": "__syncwarp(); if (threadIdx.x % 32 == 0) arrive_expecting(barrier, bytes);",
    "store_rows": "store_row_box(o, column, job.row, job.head, job.end, MAP_ROWS, from);",
}
SPECIALISED = re.compile(r"template <> __device__ __forceinline__ unsigned multiplied<.*?^\}\n", re.M | re.S)
ASSEMBLY = re.compile(r'asm volatile\((?:"[^"]*"|[^";])*\);')


def program(folder, name, *options):
    """A program of `EMULATED`, compiled with the sources in a folder; skips the test where there is no g++."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("there is no g++")
    stated = ("-O1", "-std=c++17", "-w", f"-I{folder}", f"-I{EMULATED}", *options)
    subprocess.run([compiler, *stated, EMULATED / f"{name}.cpp", "-o", folder / name], check=True, timeout=300)
    return folder / name


def printed(program, *given, **environment):
    """The words of each line that a program prints if it is given these."""
    command, env = [program, *map(str, given)], os.environ | environment
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=env).stdout
    return [line.split() for line in said.splitlines()]


def emulated(text):
    """A source in which functions of `BODIES` have those, and other PTX is left out."""
    text = SPECIALISED.sub("", text).replace(
        "unsigned multiplied(unsigned pair, unsigned by);", "unsigned multiplied(unsigned pair, unsigned by) { asm }"
    )
    for name, body in BODIES.items():
        for found in reversed(list(re.finditer(rf"__forceinline__ \w+ {name}\([^)]*\) \{{", text))):
            end, depth = found.end(), 1
            while depth:
                depth += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            if "asm" in text[found.end() : end]:
                text = f"{text[: found.end()]} {body} }}{text[end:]}"
    return ASSEMBLY.sub(";", text.replace(MEMORY, OF_CTA))


def jobs_program(folder, name, *kernels, narrow=False):
    """A program of `EMULATED` with kernels on jobs.cuh. With `narrow`, bf16 has fp16's window: fp16 isn't emulated."""
    source = {file: (paths.kernels() / file).read_text() for file in ("hopper.cuh", "jobs.cuh", "lazy.cuh", *kernels)}
    hopper = source.pop("hopper.cuh")
    structs = (r"struct Problem \{", r"template[^\n]* struct Stage \{")
    taken = [re.search(rf"^{begin}.*?^\}};", hopper, re.M | re.S)[0] for begin in structs]
    jobs = source["jobs.cuh"]
    assert all(text in jobs for text in (STORE, *WAITS))
    for text in WAITS:
        jobs = jobs.replace(text, f"if (!begins_early) {text}")
    jobs = jobs[: jobs.index(CUT[0])] + jobs[jobs.index(CUT[1]) :]
    jobs = jobs.replace('#include "hopper.cuh"', "\n".join(taken)).replace(STORE, "store_word(to, both);")
    source["jobs.cuh"] = jobs
    if narrow:
        of_fp16, of_bf16 = re.findall(r"constexpr int BEGIN = .*;", source["lazy.cuh"])
        source["lazy.cuh"] = source["lazy.cuh"].replace(of_bf16, of_fp16)
    for file, text in source.items():
        (folder / file).write_text(emulated(text))
    return program(folder, name, *["-DNARROW"] * narrow)
