"""The JSON records of an export: a summary, a record for each shape, and the environment.

Numbers are those of the results, not rounded; their units are in their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnlab.base import rules
from attnlab.infer import bootstrap, regimes, stats
from attnlab.infer.cases import CASE, TIMING
from attnlab.infer.kernels import rungs
from attnlab.infer.lookup import known, on_values
from attnlab.infer.results import NO_CONTROL, Results, absence
from attnlab.study import implementations
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

FORMAT = {"name": "attnlab export", "version": 1}
LATENCIES = "latencies"
RENAMED = {
    "low_us": "median_low_us",
    "high_us": "median_high_us",
    "launches": "launches_least",
    "sm_clock_mhz": "sm_clock_median_mhz",
    "intensity": "intensity_flop_per_byte",
    "throughput_mark": "throughput_note",
    "bandwidth_mark": "bandwidth_note",
}
"""Columns of the results that get a more explicit name."""
HEADLINE = ["samples", "replicates", "median_us", "median_low_us", "median_high_us", "median_interval"]
HEADLINE += ["throughput_tflops", "throughput_note", "bandwidth_gbs", "bandwidth_note", "floor_us", "limit"]
HEADLINE += ["speed_of_light_pct"]
JUDGED = ["decision", "claimable", "speedup", "speedup_low", "speedup_high", "speedup_interval", "cliffs_delta"]
JUDGED += ["hedges_g", "p_holm"]
OVER_REPLICATES, OVER_STRETCHES = "Student's t over replicates", "Student's t over stretches"
OVER_CARDS = "Student's t over cards"
BOOTSTRAPPED = "percentile bootstrap"
ON_CARDS = (
    f"the run used several cards: where an interval is called {OVER_CARDS}, what is said of replicates holds of cards, "
    "which are resampled before their replicates, and the interval covers cards like these"
)
CONVENTIONS = {
    "latency": "microseconds of one call; where a sample spans several launches it is their mean, and launches says so",
    "flops": "4·scores·D forward and 14·scores·D in training, a multiply-add counted as two; scores counts the entries "
    "that the mask lets through: B·H·S·S_kv full, B·H·S·(S+1)/2 causal, summed over sequences of different lengths",
    "bytes": "compulsory traffic: Q, K and V read once, O written once; in training dO, dQ, dK and dV besides",
    "throughput": "FLOPs over the median latency; bandwidth: compulsory bytes over the median latency",
    "floor": "the longest of FLOPs, bytes and exponentials over the ceilings measured in this run",
    "speed_of_light": "floor over median",
    "centre": "the median over all samples of all replicates; mean_us, std_us, cv_pct and hedges_g alone rest on means",
    "interval": {
        OVER_REPLICATES: "of the logarithms of the medians of the replicates, at least half as long as the percentile "
        "interval of the two-level bootstrap",
        OVER_STRETCHES: f"the same, over {bootstrap.BATCHES} stretches of the only replicate, whose samples resemble "
        "their neighbours",
        BOOTSTRAPPED: "over the samples of the only replicate",
        "all": "never narrower than the clock's tick over the launches that a sample spans",
    },
    "confidence": rules.CONFIDENCE,
    "resamples": rules.RESAMPLES,
    "seed": rules.SEED,
    "speedup": "median of the baseline over median of the candidate, rounds taken together; above 1 the candidate is "
    "faster",
    "cliffs_delta": "P(baseline > candidate) − P(baseline < candidate); positive: the candidate is faster",
    "p_unadjusted": "Mann-Whitney's, two-sided; where samples are not independent, no smaller than those of the t "
    "tests over replicates or stretches",
    "p_holm": "adjusted by Holm over the candidates at one shape under one timing",
    "alpha": rules.ALPHA,
    "equivalence_margin_pct": 100 * rules.EQUIVALENCE_MARGIN,
    "claimable": {
        "decision": "faster",
        "least_speedup": rules.CLAIM_SPEEDUP,
        "least_abs_cliffs_delta": rules.CLAIM_DELTA,
        "intervals_of_medians": "apart",
    },
    "regime": f"burst: the card held itself back at no more than {100 - regimes.MOSTLY_PCT} % of the samples compared; "
    f"sustained: at {regimes.MOSTLY_PCT} % or more; mixed: between",
}

Record = dict[str, Any]
Key = tuple[Shape, str, Timing]
"""A case and its timing."""


class Latencies(NamedTuple):
    """The samples of one case, timing and replicate in us, in the order taken, and the file that holds them."""

    file: str
    replicate: int
    process: str
    samples: np.ndarray
    launches: int


@dataclass(frozen=True)
class Records:
    """The records of a run."""

    results: Results

    @cached_property
    def configs(self) -> dict[Shape, str]:
        """The name of each shape, in the order of the study: ``config_01``, ``config_02`` and so on."""
        shapes = self.results.study.shapes
        width = max(2, len(str(len(shapes))))
        return {shape: f"config_{number:0{width}}" for number, shape in enumerate(shapes, 1)}

    @cached_property
    def latencies(self) -> dict[Key, list[Latencies]]:
        """The samples of all cases that passed, and of the controls, in the order of the shapes."""
        return {key: self._read(*key) for key in self._keys(self.results.study.subjects)}

    def _read(self, shape: Shape, name: str, timing: Timing) -> list[Latencies]:
        stem = f"{LATENCIES}/{self.configs[shape]}.{name}.{timing.clock}.{timing.cache}"
        taken = self.results.samples_of(name, shape, timing)
        return [
            Latencies(
                f"{stem}.r{number}.npy",
                int(number),
                str(of.process[0]),
                of.latency_us.astype(np.float64),
                int(of.launches[0]),
            )
            for number in np.unique(taken.replicate)
            for of in [taken.of(taken.replicate == number)]
        ]

    # ------------------------------------------------------------------------------------------------------ summary

    def summary(self) -> Record:
        """The whole run: its study, the conventions of its numbers, and a row for each case and timing."""
        results, study = self.results, self.results.study
        checks = results.run.checks
        return {
            "format": FORMAT,
            "run": self._run(),
            "device": results.run.manifest["device"]["name"],
            "study": {
                "name": study.name,
                "title": study.title,
                "baseline": study.baseline,
                "target": self.configs[study.target_shape],
                "implementations": study.implementations,
                "timings": [timing.model_dump() for timing in study.timings],
                "samples_a_replicate": study.samples,
                "replicates_asked_for": study.replicates,
            },
            "headline_timing": results.headline.model_dump(),
            "clocks_not_there": results.run.manifest["missing_clocks"],
            "stale_kernels": list(rungs.stale(results.run)),
            "checks": {"made": len(checks), "passed": int(checks["passed"].sum())},
            "baseline_against_itself": self._false_positives(),
            "conventions": CONVENTIONS | ({"cards": ON_CARDS} if results.over_cards else {}),
            "configs": [{"config": name, "file": f"{name}.json", **s.axes} for s, name in self.configs.items()],
            "rows": [self._row(*key) for key in self._measured],
            "without_latency": [
                {"config": config, "implementation": name, "why": absence(results, name, shape)}
                for shape, config in self.configs.items()
                for name in study.implementations
                if (name, shape) not in self._there
            ],
        }

    def _run(self) -> Record:
        manifest = self.results.run.manifest
        fields = ("schema", "created", "finished", "complete", "closed_early", "seal", "attnlab", "commit", "command")
        return {"name": self.results.run.name} | {key: manifest.get(key) for key in fields}

    def _row(self, shape: Shape, name: str, timing: Timing) -> Record:
        case = self._cases[shape, name, timing]
        verdict = case["verdict"] or {}
        return (
            {"config": self.configs[shape], "implementation": name, **shape.axes, **timing.model_dump()}
            | {key: case[key] for key in HEADLINE}
            | {key: verdict.get(key) for key in JUDGED}
            | {"regime": verdict.get("regime", case["regime"])}
            | {"files": [found.file for found in self.latencies[shape, name, timing]]}
        )

    def _false_positives(self) -> Record:
        found = known(lambda: self.results.false_positives)
        if found is None:
            return {"comparisons": 0, "why": NO_CONTROL}
        return {
            "comparisons": found.comparisons,
            "called_faster_or_slower": len(found.wrong),
            "rate": found.rate.estimate,
            "rate_low": found.rate.low,
            "rate_high": found.rate.high,
            "rate_interval": f"Clopper and Pearson's, {100 * rules.CONFIDENCE:g} %",
        }

    # -------------------------------------------------------------------------------------------------------- shapes

    def config(self, shape: Shape) -> Record:
        """One shape: its arithmetic, and the results of each implementation under each timing."""
        results = self.results
        return {
            "config": self.configs[shape],
            "run": results.run.name,
            "seal": results.run.manifest["seal"],
            "is_target": shape == results.study.target_shape,
            "sweeps": [sweep for sweep in results.study.sweeps if shape in results.sweep(sweep)],
            "shape": shape.axes,
            "scores": shape.scores,
            "exponentials": shape.exponentials,
            "flops": shape.flops,
            "flops_formula": f"{4 if shape.direction == 'forward' else 14}·scores·D",
            "bytes": shape.bytes,
            "intensity_flop_per_byte": shape.intensity,
            "least_us_by_ceiling": {
                cache: results.ceilings.terms_us(shape, cache)
                for cache in dict.fromkeys(timing.cache for timing in results.timings)
            },
            "baseline": results.study.baseline,
            "implementations": [self._implementation(shape, name) for name in results.study.implementations],
            "control": self._control(shape),
        }

    def _implementation(self, shape: Shape, name: str) -> Record:
        case, peak = (name, *shape.axes.values()), self.results.peak_bytes(name, shape)
        return {
            "implementation": name,
            "why_no_latency": None if (name, shape) in self._there else absence(self.results, name, shape),
            "samples_withheld": self._withheld.get(case, 0),
            "peak_memory_bytes": None if np.isnan(peak) else int(peak),
            "checks": self._checks(shape, name),
            "outcomes": self._outcomes.get(case, []),
            "timings": [
                timing.model_dump() | self._cases[shape, name, timing]
                for timing in self.results.timings
                if (shape, name, timing) in self._cases
            ],
        }

    @cached_property
    def _cases(self) -> dict[Key, Record]:
        return {key: self._case(*key) for key in self._measured}

    def _case(self, shape: Shape, name: str, timing: Timing) -> Record:
        """The row of the results, its interval's method, and the regime of its own samples."""
        row = self.results.row(name, shape, timing)
        case = {RENAMED.get(key, key): value for key, value in row.items() if key not in [*CASE, *TIMING]}
        samples = self.results.samples(name, shape, timing)
        # A note is a mark without its sign.
        return case | {
            "throughput_note": row["throughput_mark"][2:] or None,
            "bandwidth_note": row["bandwidth_mark"][2:] or None,
            "tick_us": self.results.tick_us(name, shape, timing),
            "median_interval": _method([samples], paired=False),
            "regime": regimes.compared(self.results, [name], shape, timing),
            "verdict": self._verdict(shape, name, timing),
            "arrays": self._arrays(shape, name, timing),
        }

    def _verdict(self, shape: Shape, name: str, timing: Timing) -> Record | None:
        """The verdict on a candidate; None for the baseline, and where the baseline has no latency."""
        family = self.results.families.get((shape, timing))
        if family is None or name not in family.verdicts:
            return None
        verdict = family.verdicts[name]
        return self._judged(shape, name, timing, verdict) | {
            "p_unadjusted": family.unadjusted[name],
            "p_holm": verdict.pvalue,
            "compared_in_family": len(family.verdicts),
            "intervals_of_medians": "apart" if self.results.are_apart(name, shape, timing) else "overlap",
            "smallest_effect_pct": 100 * family.smallest_effect if family.control else None,
        }

    def _judged(self, shape: Shape, name: str, timing: Timing, verdict: stats.Verdict) -> Record:
        baseline = self.results.study.baseline
        sides = [self.results.samples(each, shape, timing) for each in (baseline, name)]
        return {
            "against": baseline,
            "decision": verdict.decision,
            "claimable": verdict.claimable,
            "speedup": verdict.speedup.estimate,
            "speedup_low": verdict.speedup.low,
            "speedup_high": verdict.speedup.high,
            "speedup_interval": _method(sides, paired=True),
            "cliffs_delta": verdict.delta,
            "cliffs_delta_magnitude": stats.magnitude(verdict.delta),
            "hedges_g": verdict.g,
            "regime": regimes.compared(self.results, [baseline, name], shape, timing),
        }

    def _control(self, shape: Shape) -> Record | None:
        """The baseline against itself, where the run measured that."""
        name = implementations.control(self.results.study.baseline)
        timed = [timing for timing in self.results.timings if self.latencies[shape, name, timing]]
        timings = [timing.model_dump() | self._against_itself(shape, name, timing) for timing in timed]
        return {"implementation": name, "timings": timings} if timings else None

    def _against_itself(self, shape: Shape, name: str, timing: Timing) -> Record:
        verdict, family = None, self.results.families.get((shape, timing))
        if family is not None and family.control is not None:
            verdict = self._judged(shape, name, timing, family.control)
            verdict |= {"p_unadjusted": family.control.pvalue, "smallest_effect_pct": 100 * family.smallest_effect}
        return {"verdict": verdict, "arrays": self._arrays(shape, name, timing)}

    def _arrays(self, shape: Shape, name: str, timing: Timing) -> list[Record]:
        found = self.latencies[shape, name, timing]
        return [one._asdict() | {"samples": one.samples.size} for one in found]

    def _checks(self, shape: Shape, name: str) -> Record:
        """Absolute errors against the float64 oracle, on the values that are timed."""
        checks = self._checked.get((name, *shape.axes.values()))
        if checks is None:
            return {"made": 0, "passed": 0, "max_error": None, "framework_max_error": None, "differing_most": None}
        normal = on_values(checks)
        return {
            "made": len(checks),
            "passed": int(checks["passed"].sum()),
            "max_error": normal["max_error"].max(),
            "framework_max_error": normal["framework_max_error"].max(),
            "differing_most": checks["differing"].max(),
        }

    # --------------------------------------------------------------------------------------------------- environment

    def environment(self) -> Record:
        """The environment as the manifest has it, and the ceilings inferred from its samples."""
        manifest = self.results.run.manifest
        fields = ("device", "environment", "rules", "clocks", "telemetry", "sources", "kernels", "files", "study")
        inferred = {
            ceiling.name: {
                "measured": ceiling.measured and ceiling.measured.estimate,
                "measured_low": ceiling.measured and ceiling.measured.low,
                "measured_high": ceiling.measured and ceiling.measured.high,
                "datasheet": ceiling.datasheet,
            }
            for ceiling in self.results.ceilings.all
        }
        ceilings = {name: stated | inferred[name] for name, stated in manifest["ceilings"].items()}
        return {"run": self._run()} | {key: manifest.get(key) for key in fields} | {"ceilings": ceilings}

    # ------------------------------------------------------------------------------------------------------- look-ups

    def _keys(self, names: Sequence[str]) -> list[Key]:
        return [(shape, name, timing) for shape in self.configs for name in names for timing in self.results.timings]

    @cached_property
    def _measured(self) -> list[Key]:
        """The cases and timings that have a row in the results."""
        keys = self._keys(self.results.study.implementations)
        return [(shape, name, when) for shape, name, when in keys if name in self.results.at(shape, when).index]

    @cached_property
    def _there(self) -> set[tuple[str, Shape]]:
        return {(name, shape) for shape, name, _ in self._measured}

    @cached_property
    def _withheld(self) -> dict[Any, int]:
        """By case, how many samples are left out, because it failed a check or was cut off."""
        taken, kept = (of.groupby(CASE, sort=False).size() for of in (self.results.run.samples, self.results.passed))
        return taken.sub(kept, fill_value=0).astype(int).to_dict()

    @cached_property
    def _outcomes(self) -> dict[Any, list[Record]]:
        """By case, what became of it in each replicate."""
        fields = ["replicate", "process", "status", "reason", "warmup_calls", "steady", "kernels"]
        return {
            key: [
                row | {"kernels": [kernel for kernel in row["kernels"].split("\n") if kernel]}
                for row in rows.sort_values("replicate")[fields].to_dict("records")
            ]
            for key, rows in self.results.run.cases.groupby(CASE, sort=False)
        }

    @cached_property
    def _checked(self) -> dict[Any, pd.DataFrame]:
        return dict(iter(self.results.run.checks.groupby(CASE, sort=False)))


def _method(sides: Sequence[list[np.ndarray]], paired: bool) -> str:
    """The method of the interval over these samples."""
    if len(sides[0]) > 1:
        return OVER_CARDS if sides[0][0].ndim == 2 else OVER_REPLICATES
    return BOOTSTRAPPED if bootstrap.blocks(sides, paired) is None else OVER_STRETCHES
