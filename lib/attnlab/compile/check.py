"""Compile every kernel for each of its architectures without a GPU: registers, spills, occupancy, and problems."""

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
from attnlab.compile import nvrtc
from attnlab.compile.nvrtc import Build, Instance
from attnlab.study import ladder
from attnlab.study.ladder import MASKS, Rung, Tile

TARGET = {"batch": 32, "heads": 8, "seq_len": 512}
"""The shape at which CTAs and waves are counted."""
PASSED = {
    ("tensor maps", "packing"): (8,) * 6 + (136, 128, 128),
    ("pointers", "caches"): (8,) * 7,
    ("pointers", "packing"): (8,) * 6,
    ("pointers", "plain"): (8,) * 4,
    ("tensor maps", "plain"): (128,) * 4 + (4,),
    ("tensor maps", "scaled problem"): (128,) * 4 + (140, 64),
    ("tensor maps", "ragged"): (128,) * 4 + (32,),
    ("tensor maps", "problem"): (128,) * 4,
}
"""The sizes in bytes of a kernel's first parameters, by `arguments` and `parameters` of its entry. The first match
counts."""
CACHE = ".compiled_cache"
"""The folder next to the kernels that caches the results of compilation."""
_KEPT = TypeAdapter(tuple[str, Build])


def check(name: str = "") -> None:
    """Compile every kernel, or the one of this name. Print the table and all problems.

    Raises:
        UserError: the ladder has no such kernel. A kernel doesn't compile, spills more than its entry declares, loses
            performance according to ptxas, or contradicts its entry in arguments or threads. The message is the last
            problem; earlier problems have been printed.
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
    """The resources of each instance of a kernel on one architecture, by the names of the table's columns."""
    return [
        {"rung": rung.name, "architecture": architecture, "D": f"{tile.head_dim} {tile.name}".rstrip()}
        | {"mask": MASKS[causal], "dtype": dtype}
        | build.instances[expression].needs(
            architecture,
            tile.threads,
            tile.shared_bytes,
            tile.items(TARGET["seq_len"], TARGET["batch"] * TARGET["heads"]),
            rung.persistent,
        )
        for tile, causal, dtype, expression in _instances(rung)
        if expression in build.instances
    ]


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
    """The contradictions between a kernel's source and its entry: in arguments, and in a tile's threads."""
    if taken := instance.parameters:
        passed = next((known for known, sizes in PASSED.items() if taken[: len(sizes)] == sizes), ("others", "others"))
        if passed != (rung.arguments, rung.parameters):
            says = f'`arguments = "{rung.arguments}"` and `parameters = "{rung.parameters}"`'
            yield f"`{rung.function}` takes {' and '.join(dict.fromkeys(passed))}, and the ladder says {says}"
    if instance.most_threads not in (0, tile.threads):
        yield (
            f"`{rung.function}` is written for {instance.most_threads} threads (`__launch_bounds__`), and "
            f"{tile.title}, which has `rows = {tile.rows}`, says `threads = {tile.threads}`"
        )


def once(problems: Iterable[tuple[str, str]]) -> list[str]:
    """Problems, a line each. A problem that several architectures have is one line that names them all."""
    found: dict[str, dict[str, str]] = {}
    for architecture, line in problems:
        found.setdefault(line.replace(architecture, ""), {}).setdefault(line, architecture)
    others = {next(iter(lines)): ", ".join(list(lines.values())[1:]) for lines in found.values()}
    return ["; likewise for ".join(filter(None, (line, named))) for line, named in others.items()]


def table(lines: list[dict[str, Any]]) -> str:
    """The rows as text in columns, with a heading. Rows that differ only in dtype, then only in mask, are merged."""
    found = pd.DataFrame(lines)
    columns = list(found.columns)
    for merged in ("dtype", "mask"):
        rest = [column for column in columns if column != merged]
        found = found.groupby(rest, sort=False, as_index=False, dropna=False)[merged].agg(", ".join)
    shape = f"B={TARGET['batch']} H={TARGET['heads']} S={TARGET['seq_len']}"
    text = found[columns].to_string(index=False, float_format="{:.4g}".format)
    return (
        f"{text}\nspill_bytes are of a thread, shared_bytes of a CTA; occupancy is the theoretical one; ctas at {shape}"
    )


def build(rung: Rung, architecture: str) -> Build:
    """Compile every instance of a kernel for one architecture, or read the cached result if nothing has changed."""
    named = expressions(rung)
    asked = (nvrtc.program(rung), nvrtc.flags(architecture), nvrtc.version(), named)
    key = hashlib.sha256(Path(nvrtc.__file__).read_bytes() + repr(asked).encode()).hexdigest()
    path = paths.kernels() / CACHE / f"{rung.name}-{architecture}.json"
    with suppress(OSError, ValidationError):
        of, kept = _KEPT.validate_json(path.read_bytes())
        if of == key:
            return kept
    built = nvrtc.build(rung, architecture, named)
    if not built.error:
        with suppress(OSError):  # without the cache, the kernel is compiled again
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, _KEPT.dump_json((key, built)))
    return built


def expressions(rung: Rung) -> list[str]:
    """The name expressions of a kernel's instances and of its merge and deal kernels, without duplicates.

    Tiles that differ only in the shapes for which they are used share an instance.
    """
    merges = (rung.merge_expression(dtype, tile) for dtype, tile in product(rung.dtypes, rung.tiles))
    named = (*(expression for *_, expression in _instances(rung)), *merges, *map(rung.deal_expression, MASKS))
    return list(dict.fromkeys(filter(None, named)))


def _instances(rung: Rung) -> list[tuple[Tile, bool, str, str]]:
    return [
        (tile, causal, dtype, rung.expression(dtype, tile, causal))
        for tile, causal, dtype in product(rung.tiles, MASKS, rung.dtypes)
        if MASKS[causal] in tile.masks
    ]
