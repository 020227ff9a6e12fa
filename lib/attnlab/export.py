"""Export a run as plain files for readers without attnlab: 2 JSON files, and the samples as NumPy arrays."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.frames import AXES, KEY, TIMING, compare, control, load, summarize
from attnlab.roofline import add_floor, add_work

FORMAT = {"name": "attnlab export", "version": 2}


def export(name: str) -> Path:
    """Write a run to ``exports/<run>/`` atomically, and return that folder.

    ``summary.json`` holds `configs` (the shapes); `cases` (the columns of `summarize`, `add_work` and `add_floor`, and
    the `files` of samples); `comparisons` with the baseline, and its `control` (the columns of `compare`). ``env.json``
    is the manifest. ``latencies/*.npy`` hold the samples of a case in a replicate in µs, in the order of measurement.

    Names contain the units. Unknown and infinite values are null. The same run gives the same bytes.

    Raises:
        UserError: there is no such run, or the folder holds other files than an export of it.
    """
    run, target = load(name), paths.exports() / name
    _require_place(target, name)
    configs = run.samples[AXES].drop_duplicates(ignore_index=True)
    configs.insert(0, "config", [f"config_{number:02}" for number in range(1, len(configs) + 1)])
    samples = run.samples.merge(configs)
    words = [samples[column].astype(str) for column in ("config", "implementation", *TIMING)]
    stems = words[0].str.cat([*words[1:], "r" + samples["replicate"].astype(str)], sep=".")
    samples["file"] = stems.map({stem: f"latencies/{quote(stem, safe='')}.npy" for stem in stems.unique()})
    once = samples[[*KEY, "config", "file"]].drop_duplicates()
    files = once.groupby([*KEY, "config"], dropna=False)["file"].agg(list)
    cases = add_floor(add_work(summarize(run.samples)), run.ceilings).merge(files.rename("files").reset_index())
    baseline = run.manifest["study"]["baseline"]
    tables = {"configs": configs, "cases": cases, "comparisons": compare(run.samples, baseline)}
    tables |= {"control": control(run.samples, baseline)}
    about = {key: run.manifest.get(key) for key in ("name", "created", "finished", "complete", "seal")}
    summary = {"format": FORMAT, "run": about, "baseline": baseline} | {key: _rows(tables[key]) for key in tables}
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}.") as scratch:
        made = Path(scratch, "new")
        (made / "latencies").mkdir(parents=True)
        for file, taken in samples.groupby("file", sort=False)["latency_us"]:
            np.save(made / str(file), taken.to_numpy(float), allow_pickle=False)
        for file, content in {"summary.json": summary, "env.json": run.manifest}.items():
            (made / file).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        if target.exists():
            target.rename(Path(scratch, "old"))
        made.rename(target)
    return target


def _require_place(target: Path, run: str) -> None:
    """Raise UserError if a folder holds other files than an export of this run: they would be lost."""
    target.parent.mkdir(parents=True, exist_ok=True)
    there = [path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()]
    foreign = [path for path in there if not re.fullmatch(r"(summary|env)\.json|latencies/[\w.%-]+\.npy", path)]
    try:
        held = json.loads((target / "summary.json").read_text())["run"]["name"] if there else run
    except (OSError, ValueError, KeyError, TypeError):
        held = None
    if foreign or held != run or target.is_symlink() or target.is_file():
        raise UserError(f"{paths.shown(target.parent)}/{run} holds more than an export of this run: move it away")


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    known = frame.notna() & ~frame.isin([np.inf, -np.inf])
    return frame.astype(object).where(known, None).to_dict("records")
