"""Exports a run as plain files for readers without attnlab: two JSON files, and the samples as NumPy arrays."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.frames import AXES, CASE, TIMING, compare, control, load, summarize
from attnlab.roofline import add_floor, add_work

FORMAT = {"name": "attnlab export", "version": 2}


def export(name: str) -> Path:
    """Write a run to ``exports/<run>/``, whole or not at all, and return that folder.

    ``summary.json`` holds `configs` (the shapes), `cases` (the columns of `summarize`, `add_work` and `add_floor`, with
    the `files` of samples), `comparisons` with the baseline and its `control` (the columns of `compare`). ``env.json``
    is the manifest. ``latencies/*.npy`` hold samples in µs in the order taken, a float64 array for each replicate.
    Units are in the names; what is not known, or infinite, is null.

    Raises:
        UserError: there is no such run, or the folder holds something else than its export.
    """
    run, target = load(name), paths.exports() / name
    _require_place(target, name)
    samples, manifest = run.samples, run.manifest
    configs = samples[AXES].drop_duplicates(ignore_index=True)
    configs.insert(0, "config", [f"config_{number:02}" for number in range(1, len(configs) + 1)])
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}.") as scratch:
        made = Path(scratch, "new")
        (made / "latencies").mkdir(parents=True)
        written = []
        for key, taken in samples.merge(configs).groupby([*CASE, "config", "replicate"], sort=False, dropna=False):
            case = dict(zip([*CASE, "config", "replicate"], key, strict=True))
            words = ".".join(str(case[each]) for each in ("config", "implementation", *TIMING))
            file = "latencies/" + re.sub(r"[^\w.-]", "_", f"{words}.r{case['replicate']}.npy")
            np.save(made / file, taken["latency_us"].to_numpy(float), allow_pickle=False)
            written.append(case | {"files": file})
        files = (
            pd.DataFrame(written).groupby([*CASE, "config"], sort=False, dropna=False)["files"].agg(list).reset_index()
        )
        cases = add_floor(add_work(summarize(samples)), run.ceilings).merge(files)
        baseline = manifest["study"]["baseline"]
        verdicts = {"comparisons": compare(samples, baseline), "control": control(samples, baseline)}
        about = {key: manifest.get(key) for key in ("name", "created", "finished", "complete", "closed_early", "seal")}
        tables = {key: _records(frame) for key, frame in {"configs": configs, "cases": cases, **verdicts}.items()}
        summary = {"format": FORMAT, "run": about, "device": manifest["device"]["name"], "baseline": baseline, **tables}
        for file, content in {"summary.json": summary, "env.json": manifest}.items():
            (made / file).write_text(json.dumps(content, indent=1, allow_nan=False, default=str) + "\n")
        if target.exists():
            target.rename(Path(scratch, "old"))
        made.rename(target)
    return target


def _require_place(target: Path, run: str) -> None:
    """UserError if a folder holds anything but an export of this run: it would be lost."""
    target.parent.mkdir(parents=True, exist_ok=True)
    there = [path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()]
    foreign = [path for path in there if not re.fullmatch(r"(summary|env)\.json|latencies/[\w.-]+\.npy", path)]
    try:
        held = json.loads((target / "summary.json").read_text())["run"]["name"] if there else run
    except (OSError, ValueError, KeyError, TypeError):
        held = None
    if foreign or held != run or target.is_symlink() or target.is_file():
        raise UserError(
            f"{paths.shown(target.parent)}/{target.name} holds more than an export of this run: move it away"
        )


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    known = frame.notna() & ~frame.isin([np.inf, -np.inf])
    return frame.astype(object).where(known, None).to_dict("records")
