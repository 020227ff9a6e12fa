"""Every rung compiled for each of its architectures without a GPU: registers, spills, occupancy, and problems."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product

from tqdm import tqdm

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.compile import nvrtc, occupancy
from attnlab.compile.nvrtc import Build, Instance
from attnlab.study import ladder
from attnlab.study.ladder import MASKS, Rung, Tile

TARGET = {"batch": 32, "heads": 8, "seq_len": 512}
"""The shape at which CTAs and waves are counted."""
COLUMNS = ("rung", "compiled for", "D", "mask", "dtype", "registers", "spill", "shared")
RESIDENCY = ("CTAs/SM", "occupancy", "CTAs", "waves on")


@dataclass(frozen=True)
class Row:
    """One line of the table; instances that differ only in mask and dtype share it."""

    rung: str
    architecture: str
    head_dim: int
    tile: str
    masks: tuple[str, ...]
    dtypes: tuple[str, ...]
    registers: int
    spill_bytes: int
    shared_bytes: int
    residency: tuple[str, str, str, str]


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
    print(table([row for job, build in zip(jobs, built, strict=True) for row in rows(*job, build)]))
    problems = [line for job, build in zip(jobs, built, strict=True) for line in wrong(*job, build)]
    for problem in problems[:-1]:
        print(f"attnlab: {problem}", file=sys.stderr)
    if problems:
        raise UserError(problems[-1])


def rows(rung: Rung, architecture: str, build: Build) -> list[Row]:
    """The lines of one rung and architecture; dtypes, and then masks, are merged where all else agrees."""
    apart = [
        _row(rung, architecture, tile, causal, dtype, build.instances[expression])
        for tile, causal, dtype, expression in _instances(rung)
        if expression in build.instances
    ]
    by_dtype = [replace(same[0], dtypes=tuple(row.dtypes[0] for row in same)) for same in _agreeing(apart, "dtypes")]
    return [replace(same[0], masks=tuple(row.masks[0] for row in same)) for same in _agreeing(by_dtype, "masks")]


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


def table(lines: list[Row]) -> str:
    """The rows as text in columns, with a heading."""
    cells = [(*COLUMNS, *RESIDENCY), *map(_cells, lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    shape = f"B={TARGET['batch']} H={TARGET['heads']} S={TARGET['seq_len']}"
    note = f"spill and shared in bytes, of a thread and of a CTA; occupancy is the theoretical one; CTAs at {shape}"
    return "\n".join([*text, note])


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


def _row(rung: Rung, architecture: str, tile: Tile, causal: bool, dtype: str, instance: Instance) -> Row:
    shared_bytes = instance.static_shared_bytes + tile.shared_bytes
    return Row(
        rung=rung.name,
        architecture=architecture,
        head_dim=tile.head_dim,
        tile=tile.name,
        masks=(MASKS[causal],),
        dtypes=(dtype,),
        registers=instance.registers,
        spill_bytes=instance.spill_bytes,
        shared_bytes=shared_bytes,
        residency=residency(rung, architecture, tile, instance.registers, shared_bytes),
    )


def residency(
    rung: Rung, architecture: str, tile: Tile, registers: int, shared_bytes: int
) -> tuple[str, str, str, str]:
    """CTAs that one multiprocessor holds, its occupancy, CTAs that are launched, and the number of waves, as text."""
    items = tile.items(TARGET["seq_len"], TARGET["batch"] * TARGET["heads"])
    number = occupancy.number(architecture)
    if number not in occupancy.LIMITS:
        return "n/a", "n/a", "n/a" if rung.persistent else str(items), "n/a"
    limits, gpu = occupancy.LIMITS[number], occupancy.GPUS[number]
    held = occupancy.ctas_per_sm(limits, tile.threads, registers, shared_bytes)
    at_once = held * gpu.multiprocessors
    ctas = min(items, at_once) if rung.persistent else items
    share = held * tile.threads / occupancy.WARP / limits.warps
    return str(held), f"{share:.0%}", str(ctas), f"{ctas / at_once:.2f} {gpu.name}" if held else "n/a"


def _agreeing(lines: list[Row], field: str) -> list[list[Row]]:
    """Groups of rows that differ in one field only, in the order of their first rows."""
    groups: dict[str, list[Row]] = {}
    for row in lines:
        rest = {name: value for name, value in asdict(row).items() if name != field}
        groups.setdefault(repr(rest), []).append(row)
    return list(groups.values())


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (str(row.registers), str(row.spill_bytes), str(row.shared_bytes))
    return (
        row.rung,
        row.architecture,
        f"{row.head_dim} {row.tile}".rstrip(),
        ", ".join(row.masks),
        ", ".join(row.dtypes),
        *numbers,
        *row.residency,
    )
