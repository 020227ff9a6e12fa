"""`kernel.ragged` without a GPU: on an emulated multiprocessor."""

import ctypes
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.compile import nvrtc
from attnlab.measuring.kernels import ragged
from attnlab.study import ladder

EMULATED = Path(__file__).parent / "emulated"
MEMORY = "    extern __shared__ __align__(1024) unsigned char memory[];"
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
    "ping_pong_signal": "arrive_by_name(5 + (consumer + 1) % CONSUMERS, 256);",
    "arrive_at_passes": "arrive_by_name(PASS_BARRIER, 64);",
    "load_rows_for_warp": "__syncwarp();"
    " if (threadIdx.x % 32 == 0) load_row_box(to, map, column, row, head, end, MAP_ROWS, barrier);",
    "expect_for_warp": "__syncwarp(); if (threadIdx.x % 32 == 0) arrive_expecting(barrier, bytes);",
    "store_rows": "store_row_box(o, column, job.row, job.head, job.end, MAP_ROWS, from);",
}
SPECIALISED = re.compile(r"template <> __device__ __forceinline__ unsigned multiplied<.*?^\}\n", re.M | re.S)
ASSEMBLY = re.compile(r'asm volatile\((?:"[^"]*"|[^";])*\);')


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
    return ASSEMBLY.sub(";", text.replace(MEMORY, "unsigned char* const memory = emu::current->cta->memory;"))


def compiled(folder, program, *kernels, narrow=False):
    """A program of `EMULATED`, with kernels for this machine's CPU; emulated.h replaces what only a GPU has.

    With `narrow`, bf16 has the window of fp16, of which the emulator has no numbers.
    """
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("there is no g++")
    source = {name: (paths.kernels() / name).read_text() for name in ("hopper.cuh", "jobs.cuh", "lazy.cuh", *kernels)}
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
    wide, fp16s = re.findall(r"constexpr int BEGIN = .*;", source["lazy.cuh"])[::-1]
    source["lazy.cuh"] = source["lazy.cuh"].replace(*(wide, fp16s) if narrow else ("", ""))
    for name, text in source.items():
        (folder / name).write_text(emulated(text))
    options = ("-O1", "-std=c++17", "-w", f"-I{folder}", f"-I{EMULATED}", *["-DNARROW"] * narrow)
    subprocess.run([compiler, *options, EMULATED / f"{program}.cpp", "-o", folder / program], check=True, timeout=300)
    return folder / program


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("emulated"), "ragged", "15_ragged.cu")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("head_dim", "page"), [(64, 16), (64, 128), (128, 16), (128, 64)])
def test_instances_for_pages_compile(head_dim, page, causal):
    rung = ladder.rung("kernel.ragged")
    tiles = rung.tiles_for(head_dim, page, causal)
    names = [rung.expression("bfloat16", tile, causal, math.gcd(page, tile.keys)) for tile in tiles]
    try:
        build = nvrtc.build(rung, rung.architectures[0], names)
    except UserError as error:
        pytest.skip(str(error))
    assert not build.error
    assert not build.warnings
    for instance in map(build.instances.__getitem__, names):
        assert instance.spill_bytes <= 200  # of the warp that loads K and V
        assert instance.parameters[-1] == ctypes.sizeof(ragged.PagedProblem)


EXTREMES = [130, 250, 64, 300, 1, 0, 5, 17, 0, 90, 200, 200]


@pytest.mark.parametrize(
    ("head_dim", "causal", "tile_keys", "rise", "boxes", "kv_heads", "group", "keys", "grid", "lengths"),
    [
        (128, 0, 128, 0, {0: 0, 16: 16, 128: 256}, 1, 2, 512, 3, EXTREMES),
        (128, 1, 64, 60, {0: 0, 64: 64}, 2, 1, 384, 2, EXTREMES),
        (128, 1, 128, -60, {0: 0, 16: 48, 128: 128}, 2, 1, 384, 2, EXTREMES),
        (128, 1, 128, 40, {0: 0, 16: 16}, 1, 1, 512, 2, [64, 291, 200, 500]),  # a tile of P is rescaled in bf16
        (64, 0, 128, 0, {0: 0}, 2, 2, 320, 2, EXTREMES),  # incomplete passes are listed apart
        (64, 1, 128, 12, {0: 0, 16: 16, 64: 64}, 1, 1, 320, 2, EXTREMES),
        (64, 1, 128, 0, {0: 0, 64: 64}, 1, 5, 320, 1, [40, 320, 64, 1, 9, -3]),  # heads are blocks of one pass
    ],
)
def test_the_kernel_on_an_emulated_multiprocessor_in_place_of_pages_too(
    emulator, head_dim, causal, tile_keys, rise, boxes, kv_heads, group, keys, grid, lengths
):
    found = []
    for seed, (box, page) in enumerate([*boxes.items()] * 2):
        sizes = (head_dim, causal, box, page, kv_heads, group, max(lengths[::2]), keys, grid, seed, tile_keys, rise)
        command = [emulator, *map(str, (*sizes, *lengths))]
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
        found.append(dict(line.split() for line in said.splitlines()))
        problem = ragged.PagedProblem if page else ragged.RaggedProblem
        assert int(found[-1]["problem_bytes"]) == ctypes.sizeof(problem)
    assert {each["hash"] for each in found} == {found[0]["hash"]}  # for any pages, and any timing of threads and copies
    assert float(found[0]["error"]) < 0.004
    assert {each["padding"] for each in found} == {"0"}  # rows of it that were written
    assert {each["longest_first"] for each in found} == {"1"}  # so CTAs' loads differ by about one pass at most
    tiles = ladder.rung("kernel.ragged").tiles
    assert int(found[0]["shared_bytes"]) in {tile.shared_bytes for tile in tiles if tile.head_dim == head_dim}
