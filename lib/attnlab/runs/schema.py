"""The names that both halves of attnlab share: the folder of a run, its keys, statuses, kinds of inputs."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, Timing

Row = dict[str, Any]
SCHEMA = 10
"""The version of the layout. Runs of another version are not read."""
CASE = ("implementation", *Shape.AXES)
TIMING = tuple(Timing.model_fields)
"""The columns that name a case, and those that name a timing."""
MEASURED, SKIPPED, FAILED, OUT_OF_MEMORY = STATUSES = ("measured", "skipped", "failed", "out of memory")
"""The outcomes of a case."""
TOO_LONG = "one call takes"
"""The start of the reason for skipping a case whose call takes longer than the study allows."""
BEFORE, AFTER = MOMENTS = ("before", "after")
"""When a case is checked: before or after it is timed."""
LARGE_LOGITS, CONSTANT_ROWS = EXTREMES = ("large logits", "constant rows")
"""Kinds of inputs that an implementation is checked on at each shape, in addition to the timed values."""
MEMSET = "Memset"
"""The start of the profiler's name for work that clears memory, as cuDNN does before its kernel."""
PARTS = "parts"
"""The folder, within the run's folder, of the blocks of a run that is being measured."""
Manifest = dict[str, Any]


def replicate_key(replicate: int) -> str:
    """The key of a block that a replicate records once."""
    return f"r{replicate:02d}"


def shape_key(study: Study, shape: Shape, replicate: int) -> str:
    """The key of the blocks of one shape in one replicate; keys sort in the order of the study."""
    return f"{replicate_key(replicate)}-s{study.shapes.index(shape):03d}"


def block_key(study: Study, shape: Shape, replicate: int, timing: Timing) -> str:
    """The key of a block of samples: one shape in one replicate under one timing."""
    return f"{shape_key(study, shape, replicate)}-{timing.clock}-{timing.cache}"


def of_shape(block: str) -> str:
    """The key of a block's shape and replicate, which is the start of the block's own key."""
    return "-".join(block.split("-")[:2])


def implementation_key(name: str) -> str:
    """The key of an implementation's block: its name without dots, since a key ends at the first dot."""
    return name.replace(".", "-")


@dataclass(frozen=True, repr=False)
class Run:
    """A run as it was recorded.

    Attributes:
        manifest: schema, rules, environment and its hash, device, ceilings, clocks, study, ladder, hashes of the files.
        samples: a row per sample; `attnlab.runs.tables` declares the columns of this table and the others.
    """

    name: str
    manifest: Manifest
    samples: pd.DataFrame
    checks: pd.DataFrame
    cases: pd.DataFrame
    processes: pd.DataFrame
    resources: pd.DataFrame
    profile: pd.DataFrame
    stream: pd.DataFrame
    panel: pd.DataFrame
    residency: pd.DataFrame
    endurance: pd.DataFrame
    ceilings: pd.DataFrame = field(default_factory=pd.DataFrame)

    def __repr__(self) -> str:
        """The run in 2 lines; the dataclass's own would print every table."""
        study, device = self.manifest["study"]["name"], self.manifest["device"]["name"]
        counts = f"{len(self.cases):,} cases, {len(self.samples):,} samples, {len(self.checks):,} checks"
        unfinished = "" if self.complete else ", not complete"
        return f"Run {self.name!r}: study {study!r} on {device}{unfinished}\n{counts}"

    @property
    def complete(self) -> bool:
        """Whether every block that the study asks for was recorded, or the run was closed early."""
        return bool(self.manifest["complete"])


NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""The names that runs may have. Other characters have a meaning to programs that take paths."""
IMPLEMENTATION = re.compile(r"[A-Za-z]\w*(\.\w+)+")
"""The names that an implementation of a run may have; file names contain them."""
TIME = re.compile(r"\d{4}-\d\d-\d\d\S*")
"""The form of the time at which a run began; runs are ordered by it."""
PART = re.compile(r"\w+\.[\w-]+\.[0-9a-f]{16}\.parquet")
"""The names of parts: table, key of the block, and the start of the hash of its content."""
TAKEN = (paths.REFERENCE.name, "dispatch", "models")
"""Folders next to the runs: published data of others, dispatch tables, and the frames of notebook 09."""


def folder(name: str) -> Path:
    """The folder of the run `name`, whether or not it exists; raises UserError if no run can have this name."""
    where = paths.shown(paths.data())
    if not name:
        raise UserError(f"no run is named: RUN=<name> names a folder in {where}/")
    wrong = ""
    if name != Path(name).name or name.startswith("."):
        wrong = f"name a folder in {where}/, without the path to it"
    elif not NAME.fullmatch(name):
        wrong = "use letters, digits and '_', from the second on also '-' and '.'"
    elif name in TAKEN:
        wrong = f"data/{name}/ holds no run; choose another name"
    if wrong:
        raise UserError(f"{name!r} can't be the name of a run: {wrong}")
    return paths.data() / name


def is_equal(frame: pd.DataFrame, equal: Mapping[str, Any]) -> pd.Series:
    """A mask of the rows at which columns have these values; it may be all False."""
    return (frame[list(equal)] == pd.Series(equal)).all(axis=1)


def short_hash(content: bytes) -> str:
    """The start of a SHA-256, by which the name of a part is checked against its content."""
    return hashlib.sha256(content).hexdigest()[:16]
