"""Keeps what was inferred from a run beside its report, so that no other process infers it again.

A kept inference is used only for the same run, by the same code, and with the same versions of the libraries.
"""

from collections.abc import Callable
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnlab.base import paths, sources
from attnlab.base.files import write_atomically
from attnlab.infer import stats
from attnlab.infer.cases import AXES, TIMING
from attnlab.infer.families import Family, Place
from attnlab.runs import schema
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

CODE = "attnlab.infer.results"
"""The module whose imports hold all code that infers."""
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels")
VERDICT = ["decision", "claimable", "speedup", "low", "high", "delta", "g", "pvalue"]


def table(run: schema.Run, infer: Callable[[schema.Run], pd.DataFrame]) -> pd.DataFrame:
    """The rows of a run's cases: those that were kept, or else those that `infer` returns, which are kept then."""
    path = _path(run, "cases")
    if (kept := _read(path)) is None:
        kept = infer(run)
        _write(kept, path)
    return kept


def families(run: schema.Run, baseline: str) -> dict[Place, Family]:
    """The families of verdicts against a baseline that were kept; empty where there are none."""
    kept = _read(_path(run, f"verdicts.{baseline}"))
    return {} if kept is None else from_table(kept)


def keep_families(run: schema.Run, baseline: str, found: dict[Place, Family]) -> None:
    """Keep the families of verdicts of a run against a baseline."""
    _write(as_table(found), _path(run, f"verdicts.{baseline}"))


def key(run: schema.Run) -> str:
    """Hash of all that an inference depends on: the run, our code, and the versions of the libraries."""
    libraries = {name: version(name) for name in LIBRARIES}
    return schema.digest([run.manifest, sources.digests(CODE), libraries])[:16]


def _path(run: schema.Run, what: str) -> Path:
    return paths.reports() / run.name / f"{what}-{key(run)}.parquet"


def _read(path: Path) -> pd.DataFrame | None:
    """A kept table; None where there is none, or a broken one."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError):  # pyarrow's errors are one or the other
        return None


def _write(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{path.stem.rpartition('-')[0]}-*.parquet"):
        old.unlink(missing_ok=True)  # another process may have removed it
    write_atomically(path, table.to_parquet(index=False))


def as_table(families: dict[Place, Family]) -> pd.DataFrame:
    """A row per verdict, the control's first, as `from_table` reads them."""
    rows = []
    for (shape, timing), family in families.items():
        where = {**shape.axes, "clock": timing.clock, "cache": timing.cache, "smallest": family.smallest_effect}
        for name, verdict in {"": family.control, **family.verdicts}.items():
            values = [None] * len(VERDICT) if verdict is None else _flat(verdict)
            alone = family.unadjusted.get(name, np.nan)
            rows.append({**where, "candidate": name, **dict(zip(VERDICT, values, strict=True)), "unadjusted": alone})
    return pd.DataFrame(rows, columns=[*AXES, *TIMING, "smallest", "candidate", *VERDICT, "unadjusted"])


def _flat(verdict: stats.Verdict) -> list[Any]:
    speedup = verdict.speedup
    ends = [speedup.estimate, speedup.low, speedup.high]
    return [verdict.decision, verdict.claimable, *ends, verdict.delta, verdict.g, verdict.pvalue]


def from_table(table: pd.DataFrame) -> dict[Place, Family]:
    """The families of verdicts that `as_table` made into a table."""
    found = {}
    for (*axes, clock, cache), rows in groupby(table.to_dict("records"), itemgetter(*AXES, *TIMING)):
        place = Shape(**dict(zip(AXES, axes, strict=True))), Timing(clock=clock, cache=cache)
        (control, first), *candidates = [(_verdict(row), row) for row in rows]
        verdicts = {row["candidate"]: verdict for verdict, row in candidates if verdict}
        unadjusted = {row["candidate"]: row["unadjusted"] for _, row in candidates}
        found[place] = Family(verdicts, unadjusted, control, first["smallest"])
    return found


def _verdict(row: dict[str, Any]) -> stats.Verdict | None:
    if pd.isna(row["decision"]):
        return None
    speedup = stats.Interval(row["speedup"], row["low"], row["high"])
    return stats.Verdict(row["decision"], bool(row["claimable"]), speedup, row["delta"], row["g"], row["pvalue"])
