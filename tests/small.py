"""The smallest runs: a study of one implementation on a CPU, its manifest, and valid blocks."""

import hashlib
import json
from collections.abc import Callable, Collection
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import synthetic
from conftest import TINY
from pyarrow import parquet

from attnlab.base import documents
from attnlab.runs import schema
from attnlab.runs.checks import NULLABLE
from attnlab.runs.tables import TABLES, frame_of
from attnlab.study import studies
from attnlab.study.shapes import Shape

Part = tuple[str, str, pd.DataFrame]
"""The table of a block of rows, its key and the rows."""
AXES = TINY["target"] | {"seq_len": 16}
STATED: dict[str, Any] = TINY | {"name": "small", "title": "Small", "implementations": ["sdpa.auto"]}
STATED |= {"target": AXES, "sweeps": {"seq_len": AXES}, "samples": 2, "replicates": 1}


def study(**changes: Any) -> studies.Study:
    """The study; `changes` replace its fields."""
    return studies.parse(STATED | changes, "small.yaml")


def manifest(of: studies.Study | None = None, **changes: Any) -> dict[str, Any]:
    """The manifest of a run that begins."""
    recipe = synthetic.Recipe(device="Imaginary X1", study={"device": "cpu"})
    return synthetic.manifest(recipe, of or study()) | changes


def blocks(of: studies.Study, names: list[str] | None = None, failed: Collection[tuple[str, str]] = ()) -> list[Part]:
    """All blocks of a run in the order of recording: latencies are 1, 2, ... µs in each block.

    Args:
        names: measured implementations; default those of the study, without the control.
        failed: pairs (key of a shape, implementation) that failed the check after timing.
    """

    def fate(name: str, shape: Shape, key: str) -> synthetic.Fate:
        return (schema.FAILED, "after timing") if (key, name) in failed else synthetic.MEASURED

    def samples(timed: list[str], shape: Shape, timing: studies.Timing, where: synthetic.Row) -> list[synthetic.Row]:
        shared = shape.axes | where | timing.model_dump() | {"started_s": 0.5, "launches": 1, "strain": 0.5}
        turns = enumerate(product(range(of.samples), enumerate(timed)), 1)
        return [
            shared | {"implementation": name, "round": number, "position": position, "latency_us": float(us)}
            for us, (number, (position, name)) in turns
        ]

    made = synthetic.blocks(of, names or of.implementations, fate, samples, of.timings, {})
    return [(table, key, frame_of(TABLES[table], rows)) for table, key, rows in made]


def table_of(file: Path) -> pd.DataFrame:
    """The rows of a run's file; integers stay integers if some are missing."""
    return parquet.read_table(file).to_pandas(types_mapper=NULLABLE.get)


def rewrite(name: str, change: Callable[[dict[str, pd.DataFrame], dict[str, Any]], object]) -> None:
    """Change the tables and the manifest of a complete run on the disk, and seal it again."""
    folder = schema.folder(name)
    stated = json.loads((folder / "manifest.json").read_text())
    tables = {table: table_of(folder / f"{table}.parquet") for table in TABLES}
    before = {table: frame.copy() for table, frame in tables.items()}
    change(tables, stated)
    for table, frame in tables.items():
        if not frame.equals(before[table]):
            frame.to_parquet(folder / f"{table}.parquet")
    (folder / "manifest.json").write_text(json.dumps(stated))
    seal(name)


def seal(name: str) -> None:
    """Write the hashes of a run's files into its manifest, and its seal."""
    path = schema.folder(name) / "manifest.json"
    stated = json.loads(path.read_text())
    for file in stated["files"]:
        if (path.parent / file).is_file():
            stated["files"][file] = hashlib.sha256((path.parent / file).read_bytes()).hexdigest()
    body = {key: value for key, value in stated.items() if key != "seal"}
    path.write_text(json.dumps(body | {"seal": documents.digest(body)}))
