"""What a panel, a canary and loads recorded: readings that were chosen, so that every difference is known."""

import numpy as np
import pandas as pd
import synthetic
from synthetic import TARGET

from attnlab.infer.results import Results
from attnlab.runs.tables import TABLES
from attnlab.study.shapes import Shape

ROUNDS = range(9)
SHORT, LONG = Shape(1, 1, 128, 64), Shape(2, 4, 4096, 64)
TIMES = {"sdpa.auto": {SHORT: 10.0, LONG: 1000.0}, "sdpa.flash": {SHORT: 6.0, LONG: 2000.0}}
# What each method adds, below and above the limit.
ADDS = {
    "device": (0.0, 0.0),
    "cupti": (-0.2, -1.0),
    "cupti.graph": (-0.3, -2.0),
    "cupti.span": (0.4, 3.0),
    "eager": (20.0, 30.0),
    "triton.cudagraph": (0.1, 1.0),
    "device.cold": (4.0, 8.0),
    "triton.do_bench": (5.0, 9.0),
}
APART = {"ncu": (1.0, -100.0), "ncu.cold": (5.0, 6.0)}
BESIDE_CUPTI = {
    "near": {"cupti.graph": (0.4, -2.0), "cupti.span": (0.5, 3.0)},
    "short": {"cupti.graph": (0.6, -2.0), "cupti.span": (0.7, 3.0)},
    "long": {"cupti.graph": (-0.3, -31.0), "cupti.span": (0.4, -30.0)},
}
"""CUPTI's bracket apart from our clock: within what counts as near; in short calls alone; in long ones alone."""
FITTING, LARGE = Shape(1, 4, 32, 64), Shape(2, 4, 4096, 64)


def of(**tables: pd.DataFrame) -> Results:
    """The ordinary run with these tables instead of its own."""
    return synthetic.changed(synthetic.inferred(), **tables)


def timed(adds=ADDS, apart=APART, drift=0.01) -> pd.DataFrame:
    """Every method at every case; what the rounds share, `drift` of the time in each, is in all that took turns."""
    rows = []
    for name, times in TIMES.items():
        for shape, us in times.items():
            for method, more in adds.items():
                for number in ROUNDS:
                    latency = us + more[shape is LONG] + drift * us * (number - 4)
                    rows.append({"method": method, "round": number, "latency_us": latency, "sm_clock_mhz": 1980})
                    rows[-1] |= {"implementation": name, **shape.axes, "why": ""}
            for method, more in apart.items():
                for number in range(3):
                    rows.append({"method": method, "round": number, "latency_us": us + more[shape is LONG]})
                    rows[-1] |= {"implementation": name, **shape.axes, "why": ""}
            rows.append({"implementation": name, **shape.axes, "method": "nvbench.batch", "why": "not installed: it"})
    frame = pd.DataFrame(rows, columns=TABLES["panel"].names)
    return frame.astype({"round": "Int64", "latency_us": "Float64", "sm_clock_mhz": "Int32"})


def scattered() -> pd.DataFrame:
    """A panel in which CUPTI's rounds at the long call of the baseline scatter too much to decide."""
    frame = timed(ADDS | {"cupti.graph": (-0.3, 15.0), "cupti.span": (0.4, 20.0)})
    rows = (frame["method"] == "cupti.graph") & (frame["seq_len"] == 4096)
    frame.loc[rows, "latency_us"] += pd.Series(np.resize([-60.0, 0.0, 60.0], rows.sum()), frame.index[rows])
    return frame


def seen(cold_pct=100.0, warm_pct=1.0, cold_hits=0.5, warm_hits=99.5, shapes=(TARGET, FITTING, LARGE)) -> pd.DataFrame:
    """What Nsight Compute and the canary saw of the baseline."""
    rows = []
    for shape in shapes:
        inputs_bytes = shape.bytes * 3 / 4
        for cache, read, hits in (("warm", warm_pct, warm_hits), ("cold", cold_pct, cold_hits)):
            where = {"implementation": "sdpa.auto", **shape.axes, "cache": cache, "round": 0, "why": ""}
            value = inputs_bytes * read / 100
            rows.append(where | {"clock": "device", "metric": "dram__bytes_read.sum", "unit": "byte", "value": value})
            for clock in ("device", "eager"):
                for metric, value in ((".hits", hits), (".hit", 290.0), (".miss", 677.0)):
                    rows.append(where | {"clock": clock, "metric": f"canary.q{metric}", "value": value})
    return pd.DataFrame(rows, columns=TABLES["residency"].names).astype({"value": "Float64"})


def with_l2(results: Results, l2_bytes: int) -> Results:
    """A run on a device with another L2."""
    device = results.run.manifest["device"] | {"l2_bytes": l2_bytes}
    return synthetic.changed(results, manifest={"device": device})


def loads(**sustained: float) -> pd.DataFrame:
    """A load of 3 s for each: 100 µs for 0.5 s, then what is given; said to be held back 0.2 s later."""
    started = np.arange(300) / 100 + 0.01
    frames = [
        pd.DataFrame({"implementation": name.replace("_", "."), **LONG.axes, "started_s": started}).assign(
            latency_us=np.where(started <= 0.5, 100.0, later),
            sm_clock_mhz=np.where(started <= 0.5, 1980, 1700),
            power_w=600.0,
            temperature_c=50,
            throttled=(started > 0.7) & (later > 100),
            why="",
        )
        for name, later in sustained.items()
    ]
    return pd.concat(frames, ignore_index=True)
