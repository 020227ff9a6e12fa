"""Every rung compiled for each of its architectures without a GPU: registers, spills, occupancy, and problems."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import pandas as pd
from tqdm import tqdm

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.compile import nvrtc, occupancy
from attnlab.compile.nvrtc import Build
from attnlab.study import ladder
from attnlab.study.ladder import MASKS, Rung, Tile

TARGET = {"batch": 32, "heads": 8, "seq_len": 512}
"""The shape at which CTAs and waves are counted."""


def check(name: str = "") -> None:
    """Compile every rung, or the one of this name, print the table and all problems.

    Raises:
        UserError: the ladder has no such rung; or a rung doesn't compile, spills more than it declares, or loses
            performance according to ptxas. The message is the last problem; those before it have been printed.
    """
    rungs = (ladder.rung(ladder.PREFIX + name),) if name else ladder.load()
    if not rungs:
        where = paths.shown(paths.kernels() / "ladder.toml")
        raise UserError(f"there is no kernel to compile: {where} is missing or has no [[rungs]]")
    jobs = [(rung, architecture) for rung in rungs for architecture in rung.architectures]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        compiled = pool.map(build, *zip(*jobs, strict=True))
        built = list(tqdm(compiled, total=len(jobs), desc="compiling", disable=None, leave=False))
    lines = [row for job, build in zip(jobs, built, strict=True) for row in rows(*job, build)]
    if lines:
        print(table(lines))
    problems = [line for job, build in zip(jobs, built, strict=True) for line in wrong(*job, build)]
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
        f"{rung.source} for {architecture}: {expression} spills {instance.spill_bytes} bytes, and the ladder declares "
        f"{rung.spill_bytes} (`spill_bytes`)"
        for expression, instance in build.instances.items()
        if instance.spill_bytes > rung.spill_bytes
    ]
    return found + [f"{rung.source} for {architecture}: {warning}" for warning in build.warnings]


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
    """Every instance of a rung, compiled for one architecture."""
    # Tiles that differ only in where they are used share an instance.
    return nvrtc.build(rung, architecture, list(dict.fromkeys(expression for *_, expression in _instances(rung))))


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
