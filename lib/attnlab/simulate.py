"""Measure how often the inference errs: simulated latencies with a known median go through the code of a run.

Samples have 6 distributions, in 1 or 3 replicates or 5 on 3 cards, from processes that are alike or differ. In a
round, 2 implementations take turns. `python -m attnlab calibrate` writes the result to data/reference/calibration.csv.
"""

import os
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.signal
import scipy.stats
from tqdm.contrib.concurrent import process_map

from attnlab import stats
from attnlab.base import paths
from attnlab.base.files import write_atomically
from attnlab.stats import Array

MEDIAN_US = 50.0
"""The baseline's latency; each simulation adds up to one tick at random, so that no median is at a tick."""
ROUNDS = {1: 100, 3: 24, 5: 16}
"""Rounds by number of replicates: 3 and 5 have those of published runs; 1 needs more to show dependence."""
CARDS = (2, 4)
"""The first of 5 replicates on the second and on the third card; the published run has 3 at most shapes."""
REPLICATES = tuple(ROUNDS)
PROCESSES = ("alike", "differ")
EFFECTS = (0.02, 0.05, 0.10)
SIMULATIONS = 2000
POWER_SIMULATIONS = 500
RESAMPLES = {1: 1000, 3: 200, 5: 200}
"""Resamples by number of replicates: with 3 and 5, they decide only the least length of an interval."""
SEED = 42
"""Simulation i of a cell draws from default_rng([SEED, cell, i]), so that any part can be repeated."""

COVERED, RATIO_COVERED = "median covered", "ratio covered"
WRONG, CLAIMED, EQUIVALENT = "faster or slower", "claimable", "equivalent"
PATH = paths.REFERENCE / "calibration.csv"
COLUMNS = ["kind", "replicates", "processes", "measure", "value", "standard_error", "simulations"]

# The scatter of `eager` at some 50 us on an H200, and the distance between medians of its processes there: half of it
# is the machine's, which both sides share, and half depends on the process and the implementation.
SCATTER = 0.05
SHARED, OWN = 0.01, 0.01
CORRELATION, DRIFT = 0.6, 0.05
SECOND_MODE, SECOND_MODE_SHARE = 1.15, 0.3
TAIL, TAIL_SCALE = 1.5, 0.06
NARROW = 0.02
"""The scatter within a mode, and of samples that are read from a clock with a tick."""
TICK_US = 0.5  # the resolution that CUDA's documentation promises of an event

Size: TypeAlias = tuple[int, int, int]
Draw: TypeAlias = Callable[[np.random.Generator, Size], Array]
Cdf: TypeAlias = Callable[[Array], Array]


class SampleKind(NamedTuple):
    """A distribution of latencies, relative to their centre.

    `draw` gives samples of the shape (2, replicates, rounds) for both sides; `cdf` gives the share of samples, over all
    rounds, that are not greater than a value; `tick_us` is the step of the clock, 0 for none.
    """

    name: str
    draw: Draw
    cdf: Cdf
    tick_us: float = 0.0


class Cell(NamedTuple):
    """A row of the table: a distribution of samples, the number of replicates, and whether processes are alike."""

    kind: SampleKind
    replicates: int
    processes: str

    @property
    def spread(self) -> tuple[float, float]:
        """Standard deviations of the logarithms of the factor that both sides share and of each side's own factor."""
        return (SHARED, OWN) if self.processes == "differ" else (0.0, 0.0)


def _lognormal(scatter: float) -> Draw:
    return lambda rng, size: np.exp(scatter * rng.standard_normal(size))


def _autocorrelated(rng: np.random.Generator, size: Size) -> Array:
    noise = rng.standard_normal(size)
    # The first sample comes from the stationary distribution, as all that follow do.
    noise[..., 1:] *= np.sqrt(1 - CORRELATION**2)
    return np.exp(SCATTER * scipy.signal.lfilter([1], [1, -CORRELATION], noise, axis=-1))


def _drifting(rng: np.random.Generator, size: Size) -> Array:
    return np.exp(SCATTER * rng.standard_normal(size) + np.linspace(-DRIFT, DRIFT, size[-1]))


def _drifting_cdf(x: Array) -> Array:
    drift = np.linspace(-DRIFT, DRIFT, 100)  # the median is 0 for any number of rounds
    return np.mean(scipy.stats.norm.cdf((np.log(x)[..., np.newaxis] - drift) / SCATTER), axis=-1)


def _bimodal(rng: np.random.Generator, size: Size) -> Array:
    slow = rng.random(size) < SECOND_MODE_SHARE
    return np.where(slow, SECOND_MODE, 1.0) * np.exp(NARROW * rng.standard_normal(size))


def _bimodal_cdf(x: Array) -> Array:
    fast, slow = (scipy.stats.lognorm(NARROW, scale=mode).cdf(x) for mode in (1.0, SECOND_MODE))
    return (1 - SECOND_MODE_SHARE) * fast + SECOND_MODE_SHARE * slow


def _heavy_tailed(rng: np.random.Generator, size: Size) -> Array:
    return 1 + TAIL_SCALE * (1 + rng.pareto(TAIL, size) - 2 ** (1 / TAIL))


def _heavy_tailed_cdf(x: Array) -> Array:
    return scipy.stats.pareto(TAIL).cdf((x - 1) / TAIL_SCALE + 2 ** (1 / TAIL))


KINDS = (
    SampleKind("independent", _lognormal(SCATTER), scipy.stats.lognorm(SCATTER).cdf),
    SampleKind("autocorrelated", _autocorrelated, scipy.stats.lognorm(SCATTER).cdf),
    SampleKind("drifting", _drifting, _drifting_cdf),
    SampleKind("bimodal", _bimodal, _bimodal_cdf),
    SampleKind("heavy-tailed", _heavy_tailed, _heavy_tailed_cdf),  # no variance
    SampleKind("ticked", _lognormal(NARROW), scipy.stats.lognorm(NARROW).cdf, TICK_US),
)
CELLS = tuple(Cell(*cell) for cell in product(KINDS, REPLICATES, PROCESSES))


class Simulated(NamedTuple):
    """A run of 2 implementations: the baseline's true median over rounds and processes in µs, and its samples
    (replicates, rounds). For each effect, it has samples of a candidate with the same noise."""

    median_us: float
    baseline: Array
    candidates: list[Array]


def draw(cell: Cell, simulation: int, effects: tuple[float, ...]) -> Simulated:
    """Simulate one run. An effect of 0.05 is a candidate that takes 1 / 1.05 of the baseline's time."""
    rng = np.random.default_rng([SEED, CELLS.index(cell), simulation])
    location_us = MEDIAN_US + TICK_US * rng.random()
    sides = location_us * cell.kind.draw(rng, (2, cell.replicates, ROUNDS[cell.replicates]))
    shared, own = cell.spread
    sides *= np.exp(shared * rng.standard_normal((cell.replicates, 1)))
    sides *= np.exp(own * rng.standard_normal((2, cell.replicates, 1)))
    phase = rng.random(sides.shape)
    baseline = _read(sides[0], phase[0], cell.kind.tick_us)
    candidates = [_read(sides[1] / (1 + effect), phase[1], cell.kind.tick_us) for effect in effects]
    return Simulated(location_us * true_median(cell), baseline, candidates)


def _read(latencies: Array, phase: Array, tick_us: float) -> Array:
    return tick_us * np.floor(latencies / tick_us + phase) if tick_us else latencies


@cache
def true_median(cell: Cell) -> float:
    """The median of a cell's samples over all rounds and processes, relative to their centre.

    It is the median before rounding to the clock's step: an interval has to cover the error of that step too.
    """
    spread = float(np.hypot(*cell.spread))
    # E[f(Z)] for a standard normal Z, to machine precision for distributions as smooth as these (Gauss & Hermite).
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    processes, weights = np.exp(spread * nodes), weights / weights.sum()
    return scipy.optimize.brentq(lambda x: float(weights @ cell.kind.cdf(x / processes)) - 0.5, 0.9, 1.2, xtol=1e-12)


def simulate(cell: Cell, simulation: int, effects: tuple[float, ...] = ()) -> dict[str, bool]:
    """The outcomes of one run: of 2 implementations that don't differ, and of 2 that do by each effect."""
    simulated = draw(cell, simulation, (0.0, *effects))
    settings: dict[str, Any] = {"resamples": RESAMPLES[cell.replicates], "seed": simulation, "tick": cell.kind.tick_us}
    sides: list[Any] = [simulated.baseline, *simulated.candidates]
    baseline, *candidates = (np.split(side, CARDS) if cell.replicates == 5 else side for side in sides)
    median = stats.bootstrap_ci(baseline, **settings)
    none, *others = (stats.verdict(baseline, candidate, paired=True, **settings) for candidate in candidates)
    return {
        COVERED: median.holds(simulated.median_us),
        RATIO_COVERED: none.speedup.holds(1),
        WRONG: none.decision in ("faster", "slower"),
        CLAIMED: none.claimable,
        EQUIVALENT: none.decision == "equivalent",
    } | {power(effect): verdict.decision == "faster" for effect, verdict in zip(effects, others, strict=True)}


def power(effect: float) -> str:
    """The table's name for the share of candidates that were judged faster, if they are faster by this effect."""
    return f"faster by {100 * effect:.0f} % found"


def _part(cell: int, first: int, last: int, effects: tuple[float, ...]) -> pd.DataFrame:
    return pd.DataFrame([simulate(CELLS[cell], simulation, effects) for simulation in range(first, last)])


def tidy(cell: Cell, outcomes: pd.DataFrame) -> pd.DataFrame:
    """A row per outcome: the share of simulations that have it, and the binomial standard error of that share."""
    shares, counts = outcomes.astype(float).mean(), outcomes.notna().sum()
    rows = pd.DataFrame({"value": shares, "standard_error": np.sqrt(shares * (1 - shares) / counts)})
    rows = rows.assign(simulations=counts, kind=cell.kind.name, replicates=cell.replicates, processes=cell.processes)
    return rows.rename_axis("measure").reset_index()[COLUMNS]


def run(simulations: int = SIMULATIONS, power_simulations: int = POWER_SIMULATIONS, step: int = 50) -> pd.DataFrame:
    """Simulate all cells on all cores; the first `power_simulations` of each also with effects."""
    jobs = [
        (cell, first, min(first + step, simulations), EFFECTS if first < power_simulations else ())
        for cell, first in product(range(len(CELLS)), range(0, simulations, step))
    ]
    parts = process_map(_part, *zip(*jobs, strict=True), max_workers=os.cpu_count(), chunksize=1, unit="part")
    outcomes = pd.concat(parts, keys=[cell for cell, *_ in jobs]).groupby(level=0)
    return pd.concat([tidy(CELLS[cell], its) for cell, its in outcomes], ignore_index=True)


def write() -> Path:
    """Simulate, and write the table to the file that the report shows; returns its path."""
    write_atomically(PATH, run().to_csv(index=False, float_format="%.4f").encode())
    return PATH
