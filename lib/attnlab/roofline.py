"""The machine's ceilings, the work of a case, and the floor that they set for its latency.

The roofline of Williams, Waterman & Patterson (2009) has one more ceiling here: the exponentials of the softmax. On
recent GPUs the special-function units take as long as the matrix units (FlashAttention-3, arXiv 2407.08608, section
3.1). Each amount of work is divided by the fastest ceiling that may apply. A latency below the floor shows that a
ceiling was measured too low.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from attnlab import stats
from attnlab.base import paths
from attnlab.base.errors import UserError, suggestion
from attnlab.study import implementations
from attnlab.study.shapes import BYTES_PER_ELEMENT, Shape

AXES = list(Shape.AXES)
PER_US = {"TFLOP/s": 1e6, "GB/s": 1e3, "Gexp/s": 1e3, "bytes": 1.0}
"""Operations, bytes or exponentials per microsecond in one unit."""
UNITS = {"copy": "GB/s", "l2": "GB/s", "exponentials": "Gexp/s", "l2_size": "bytes"}
"""The unit of a ceiling by its name; those of matrix products are in TFLOP/s."""
CEILINGS = [*UNITS] + [f"{k}.{d}" for k in ("matmul", "wgmma") for d in (*BYTES_PER_ELEMENT, implementations.E4M3)]


def ceilings(manifest: Mapping[str, Any]) -> pd.DataFrame:
    """The ceilings that a run measured: ceiling, unit, rate (median), low, high, datasheet, sm_clock_mhz, how.

    `ceiling` is `copy`, `l2`, `exponentials`, `matmul.<dtype>` (the library's product), `wgmma.<dtype>` (the
    instruction alone), or `l2_size`. A ceiling that could not be measured has no rate, and `how` says why.
    """
    sheets, rows = pd.read_csv(paths.REFERENCE / "datasheets.csv"), []
    there = sheets[sheets["matches"] == manifest["device"]["name"]].to_dict("records")
    sheet: dict[Hashable, Any] = there[0] if there else {}
    for name, found in manifest["ceilings"].items():
        stated_as = {"TFLOP/s": f"matmul_{name.split('.')[-1]}_tflops", "GB/s": f"{name}_gbs"}.get(found["unit"], "")
        rate = stats.bootstrap_ci(found["samples"]) if found["samples"] else stats.Interval(np.nan, np.nan, np.nan)
        row = {"ceiling": name, "unit": found["unit"], "rate": rate.estimate, "low": rate.low, "high": rate.high}
        stated = {"datasheet": sheet.get(stated_as, np.nan), "sm_clock_mhz": found["sm_clock_mhz"], "how": found["how"]}
        rows.append(row | stated)
    size = float(manifest["device"]["l2_bytes"])
    rows.append({"ceiling": "l2_size", "unit": "bytes", "rate": size, "low": size, "high": size, "how": "the driver's"})
    columns = ["ceiling", "unit", "rate", "low", "high", "datasheet", "sm_clock_mhz", "how"]
    return pd.DataFrame(rows, columns=columns).astype({"datasheet": float})


def add_work(cases: pd.DataFrame) -> pd.DataFrame:
    """Adds flops, bytes, exponentials, intensity (FLOP per byte), throughput_tflops and bandwidth_gbs to cases.

    FLOPs are 4 B H S² D, under the causal mask 2 B H S (S + 1) D. Bytes are Q, K, V and O, each moved once. There is
    one exponential per score (`Shape`). Implementations in FP8 read e4m3. Missing axes have `Shape`'s defaults.

    Raises UserError: a column is missing, or a row is not a valid shape.
    """
    for name in AXES[:4]:
        if name not in cases:
            raise UserError(f"add_work needs the column {name!r}: batch, heads, seq_len and head_dim")
    axes = [axis for axis in AXES if axis in cases]
    names = cases["implementation"].astype(str) if "implementation" in cases else pd.Series("", index=cases.index)
    keys = cases[axes].assign(_name=names.where(names.map(implementations.in_fp8), ""))
    number = keys.groupby([*axes, "_name"], sort=False, dropna=False).ngroup().to_numpy()
    first = keys.groupby(number).head(1)
    works = [_work(row.pop("_name"), row) for row in first.to_dict("records")]
    work = pd.DataFrame(works, columns=["flops", "bytes", "exponentials"]).iloc[number].set_index(cases.index)
    out = cases.assign(**{name: work[name] for name in work}, intensity=work["flops"] / work["bytes"])
    if "median_us" in cases:
        out["throughput_tflops"] = out["flops"] / out["median_us"] / 1e6
        out["bandwidth_gbs"] = out["bytes"] / out["median_us"] / 1e3
    return out


def _work(name: str, axes: dict[str, Any]) -> tuple[int, int, int]:
    try:
        shape = Shape(**{axis: getattr(value, "item", lambda value=value: value)() for axis, value in axes.items()})
    except ValueError as error:
        raise UserError(f"a row is no shape: {error}") from None
    moved = shape.bytes
    if name and implementations.under_control(name) not in implementations.FP8_QUANTIZING:
        moved = shape.query_elements * (1 + BYTES_PER_ELEMENT[shape.dtype]) + 2 * shape.key_elements
    return shape.flops, moved, shape.exponentials


def add_floor(cases: pd.DataFrame, ceilings: pd.DataFrame | Mapping[str, float]) -> pd.DataFrame:
    """Adds floor_us, the least latency by the ceilings; limit, the ceiling that sets it; speed_of_light, a fraction.

    The floor is the largest of FLOPs over the faster of the library's matrix product and `wgmma`, exponentials over
    their rate, and bytes. With a cold cache all bytes come from memory (`copy`). With a warm cache all bytes come from
    the L2, and bytes beyond `l2_size` come from memory too. Ceilings that are not given set no floor.

    Args:
        ceilings: `run.ceilings`, or numbers of your own: {"copy": 4000, "matmul.float16": 800, "exponentials": 4100}
            in GB/s, TFLOP/s and Gexp/s.

    Raises UserError: `cases` has no work: call `add_work` first; a ceiling is unknown.
    """
    if "flops" not in cases:
        raise UserError("these cases have no work: call add_work(cases) first")
    if isinstance(ceilings, pd.DataFrame):
        known = ceilings.dropna(subset=["rate"])
        rates = {row.ceiling: row.rate * PER_US[row.unit] for row in known.itertuples()}
    else:
        for name in set(ceilings) - set(CEILINGS):
            raise UserError(f"unknown ceiling {name!r}; known are {', '.join(CEILINGS)}{suggestion(name, CEILINGS)}")
        rates = {name: rate * PER_US[UNITS.get(name, "TFLOP/s")] for name, rate in ceilings.items()}
    dtype = cases["dtype"] if "dtype" in cases else pd.Series("float16", index=cases.index)
    if "implementation" in cases:
        dtype = dtype.mask(cases["implementation"].map(implementations.in_fp8), implementations.E4M3)
    fastest = {d: np.fmax(rates.get(f"matmul.{d}", np.nan), rates.get(f"wgmma.{d}", np.nan)) for d in set(dtype)}
    cold = (cases["cache"] == "cold").to_numpy() if "cache" in cases else np.zeros(len(cases), bool)
    beyond = cases["bytes"].where(cold, cases["bytes"] - rates.get("l2_size", 0.0))
    terms = {
        "matrix product": cases["flops"] / dtype.map(fastest).astype(float),
        "exponentials": cases["exponentials"] / rates.get("exponentials", np.nan),
        "L2": cases["bytes"].mask(cold) / rates.get("l2", np.nan),
        "memory": beyond.where(beyond > 0) / rates.get("copy", np.nan),
    }
    times = pd.DataFrame(terms, index=cases.index).astype(float)
    limit = times.fillna(-1.0).idxmax(axis=1).where(times.notna().any(axis=1), "not known")
    out = cases.assign(floor_us=times.max(axis=1), limit=limit)
    return out.assign(speed_of_light=out["floor_us"] / out["median_us"]) if "median_us" in out else out
