"""Every rung compiled for each of its architectures without a GPU: registers, spills, occupancy, and problems."""

import hashlib
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.base.files import write_atomically
from attnlab.base.parent import end_with_parent
from attnlab.compile import nvrtc, occupancy
from attnlab.compile.nvrtc import Build, Instance
from attnlab.study import ladder
from attnlab.study.ladder import MASKS, Rung, Tile

TARGET = {"batch": 32, "heads": 8, "seq_len": 512}
"""The shape at which CTAs and waves are counted."""
PASSED = {
    "split keys in pairs": (8,) * 6 + (136, 128, 128),
    "split keys": (8,) * 6,
    "pointers": (8,) * 4,
    "tensor maps": (128,) * 4 + (4,),
    "scaled views": (128,) * 4 + (124, 64),
    "views": (128,) * 4,
}
"""The bytes with which a kernel's parameters begin, by the `arguments` of its entry; the first that fit count."""
CACHE = ".compiled_cache"
"""The folder beside the kernels that keeps what came of compiling them."""
_BUILD = TypeAdapter(Build)


def check(name: str = "") -> None:
    """Compile every rung, or the one of this name, print the table and all problems.

    Raises:
        UserError: the ladder has no such rung; or a rung doesn't compile, spills more than it declares, or loses
            performance according to ptxas, or takes other arguments or threads than its entry says. The message is the
            last problem; those before it have been printed.
    """
    rungs = (ladder.rung(ladder.PREFIX + name),) if name else ladder.load()
    if not rungs:
        where = paths.shown(paths.kernels() / "ladder.toml")
        raise UserError(f"there is no kernel to compile: {where} is missing or has no [[rungs]]")
    jobs = [(rung, architecture) for rung in rungs for architecture in rung.architectures]
    with ProcessPoolExecutor(os.cpu_count(), initializer=end_with_parent) as pool:
        compiled = pool.map(build, *zip(*jobs, strict=True))
        built = list(tqdm(compiled, total=len(jobs), desc="compiling", disable=None, leave=False))
    lines = [row for job, build in zip(jobs, built, strict=True) for row in rows(*job, build)]
    if lines:
        print(table(lines))
    problems = once((job[1], line) for job, build in zip(jobs, built, strict=True) for line in wrong(*job, build))
    for problem in problems[:-1]:
        print(f"attnlab: {problem}", file=sys.stderr)
    if problems:
        raise UserError(problems[-1])


def rows(rung: Rung, architecture: str, build: Build) -> list[dict[str, Any]]:
    """What each instance of one rung and architecture needs, by the heads of the table's columns."""
    found = []
    for tile, causal, dtype, expression in _instances(rung):
        if expression in build.instances:
            instance = build.instances[expression]
            shared_bytes = instance.static_shared_bytes + tile.shared_bytes
            row = {
                "rung": rung.name,
                "compiled for": architecture,
                "D": f"{tile.head_dim} {tile.name}".rstrip(),
                "mask": MASKS[causal],
                "dtype": dtype,
                "registers": instance.registers,
                "spill": instance.spill_bytes,
                "shared": shared_bytes,
            }
            found.append(row | residency(rung, architecture, tile, instance.registers, shared_bytes))
    return found


def wrong(rung: Rung, architecture: str, build: Build) -> list[str]:
    """The problems of one build, a line each."""
    if build.error:
        return [build.error]
    found = [
        f"{expression} spills {instance.spill_bytes} bytes, and the ladder declares {rung.spill_bytes} (`spill_bytes`)"
        for expression, instance in build.instances.items()
        if instance.spill_bytes > rung.spill_bytes
    ]
    built = [(tile, build.instances.get(expression)) for tile, *_, expression in _instances(rung)]
    misfits = dict.fromkeys(line for tile, one in built if one for line in _misfits(rung, tile, one))
    compiled = [f"{rung.source} for {architecture}: {line}" for line in (*found, *build.warnings)]
    return [f"{rung.source}: {line}" for line in misfits] + compiled


def _misfits(rung: Rung, tile: Tile, instance: Instance) -> Iterable[str]:
    """How the source of a rung contradicts its entry: in the arguments of the kernel, and in a tile's threads."""
    if taken := instance.parameters:
        arguments = next((known for known, sizes in PASSED.items() if taken[: len(sizes)] == sizes), "other arguments")
        if arguments != rung.arguments:
            yield f'`{rung.function}` takes {arguments}, and the ladder says `arguments = "{rung.arguments}"`'
    if instance.most_threads not in (0, tile.threads):
        yield (
            f"`{rung.function}` is written for {instance.most_threads} threads (`__launch_bounds__`), and "
            f"{tile.title}, which has `rows = {tile.rows}`, says `threads = {tile.threads}`"
        )


def once(problems: Iterable[tuple[str, str]]) -> list[str]:
    """Problems by architecture, a line each: one that names its own, and that others have too, names these as well."""
    found: dict[str, dict[str, str]] = {}
    for architecture, line in problems:
        found.setdefault(line.replace(architecture, ""), {}).setdefault(line, architecture)
    others = {next(iter(lines)): ", ".join(list(lines.values())[1:]) for lines in found.values()}
    return ["; likewise for ".join(filter(None, (line, named))) for line, named in others.items()]


def table(lines: list[dict[str, Any]]) -> str:
    """The rows as text in columns, with a heading; those that differ only in dtype, and then only in mask, are one."""
    found = pd.DataFrame(lines)
    columns = list(found.columns)
    for merged in ("dtype", "mask"):
        rest = [column for column in columns if column != merged]
        found = found.groupby(rest, sort=False, as_index=False)[merged].agg(", ".join)
    shape = f"B={TARGET['batch']} H={TARGET['heads']} S={TARGET['seq_len']}"
    note = f"spill and shared in bytes, of a thread and of a CTA; occupancy is the theoretical one; CTAs at {shape}"
    return f"{found[columns].to_string(index=False)}\n{note}"


def build(rung: Rung, architecture: str) -> Build:
    """Every instance of a rung, compiled for one architecture, or as it was when nothing has changed since."""
    # Tiles that differ only in where they are used share an instance.
    merges = (rung.merge_expression(dtype, tile) for dtype, tile in product(rung.dtypes, rung.tiles))
    expressions = list(dict.fromkeys(filter(None, (*(expression for *_, expression in _instances(rung)), *merges))))
    kept = paths.kernels() / CACHE / f"{rung.name}-{architecture}-{_key(rung, architecture, expressions)}.json"
    with suppress(OSError, ValidationError):
        return _BUILD.validate_json(kept.read_bytes())
    built = nvrtc.build(rung, architecture, expressions)
    if not built.error:
        with suppress(OSError):  # without it, it is compiled again
            kept.parent.mkdir(exist_ok=True)
            for older in kept.parent.glob(f"{rung.name}-{architecture}-*"):
                older.unlink(missing_ok=True)
            write_atomically(kept, _BUILD.dump_json(built))
    return built


def _key(rung: Rung, architecture: str, expressions: list[str]) -> str:
    """A hash of all that a build follows from."""
    asked = (nvrtc.program(rung), nvrtc.flags(architecture), nvrtc.version(), expressions)
    return hashlib.sha256(Path(nvrtc.__file__).read_bytes() + repr(asked).encode()).hexdigest()[:16]


def _instances(rung: Rung) -> list[tuple[Tile, bool, str, str]]:
    return [
        (tile, causal, dtype, rung.expression(dtype, tile, causal))
        for tile, causal, dtype in product(rung.tiles, MASKS, rung.dtypes)
        if MASKS[causal] in tile.masks
    ]


def residency(rung: Rung, architecture: str, tile: Tile, registers: int, shared_bytes: int) -> dict[str, str]:
    """CTAs that one multiprocessor holds, its occupancy, CTAs that are launched, and the number of waves, as text."""
    items = tile.items(TARGET["seq_len"], TARGET["batch"] * TARGET["heads"])
    number = occupancy.number(architecture)
    if number not in occupancy.LIMITS:
        return dict.fromkeys(("CTAs/SM", "occupancy", "CTAs", "waves on"), "n/a")
    limits, (gpu, multiprocessors) = occupancy.LIMITS[number], occupancy.GPUS[number]
    held = occupancy.ctas_per_sm(limits, tile.threads, registers, shared_bytes)
    launched = min(items, held * multiprocessors) if rung.persistent else items
    return {
        "CTAs/SM": str(held),
        "occupancy": f"{held * tile.threads / occupancy.WARP / limits.warps:.0%}",
        "CTAs": str(launched),
        "waves on": f"{launched / (held * multiprocessors):.2f} {gpu}" if held else "n/a",
    }
