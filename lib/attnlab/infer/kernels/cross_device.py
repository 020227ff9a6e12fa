"""Who leads on this device and on another: the fastest hand-written kernel over the fastest of all else."""

from dataclasses import dataclass

import numpy as np

from attnlab.infer import stats
from attnlab.infer.compare.repeat import other_sources
from attnlab.infer.kernels.leads import Lead, Leads
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results, with_samples
from attnlab.runs import read
from attnlab.study import implementations
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape
from attnlab.study.studies import recorded

SAME, DIFFERENT, OPEN = "the same", "different", "open"


@dataclass(frozen=True)
class CrossDevice:
    """Two runs on devices of different names, and the leads on both at each shape that both measured."""

    here: Results
    there: Results
    leads: dict[Shape, tuple[Lead, Lead]]

    def sign(self, shape: Shape) -> str:
        """Whether the two leads at a shape have one sign; open where an interval holds 1."""
        here, there = (lead.sign for lead in self.leads[shape])
        if not here or not there:
            return OPEN
        return SAME if here == there else DIFFERENT

    def where(self, sign: str) -> list[Shape]:
        """The shapes of this sign."""
        return [shape for shape in self.leads if self.sign(shape) == sign]

    @property
    def theirs(self) -> Leads:
        """The leads on the other device, at every shape that its run measured but those of zeros."""
        shapes = [shape for shape in self.there.study.shapes if shape.is_judged]
        return Leads(self.there.headline, {shape: one for shape in shapes if (one := lead(self.there, shape))})

    @property
    def changed(self) -> list[str]:
        """The kernels whose source differs; `kernel.best` is each device's own tuning, and always differs."""
        return sorted(other_sources(self.here, self.there) - {BEST})


def find(results: Results) -> CrossDevice:
    """The first run of `elsewhere` that measured a shape of this one.

    Raises NotMeasured where there is none.
    """
    mine = {shape: one for shape in results.study.shapes if (one := lead(results, shape))}
    for other in map(with_samples, elsewhere(results)):
        theirs = {shape: lead(other, shape) for shape in mine}
        if leads := {shape: (mine[shape], of) for shape, of in theirs.items() if of}:
            return CrossDevice(results, other, leads)
    raise NotMeasured("No complete run on another device shares a shape at which a hand-written kernel was timed")


def lead(results: Results, shape: Shape) -> Lead | None:
    """The lead at a shape under the headline's timing; None without both sides."""
    every = {name: results.samples_of(name, shape) for name in sorted(results.study.subjects)}
    taken = {name: samples for name, samples in every.items() if samples.latency_us.size}
    left_out = {implementations.DISPATCH, *implementations.REFERENCES}
    names = [name for name in taken if not implementations.is_control(name) and name not in left_out]
    kernels = [name for name in names if name.startswith(PREFIX)]
    others = [name for name in names if name not in kernels]
    if not kernels or not others:
        return None
    kernel, over = (min(side, key=lambda name: float(np.median(taken[name].latency_us))) for side in (kernels, others))
    tick_us = max(results.tick_us(name, shape) for name in (over, kernel))
    theirs, ours = (results.samples(name, shape) for name in (over, kernel))
    return Lead(kernel, over, stats.ratio_ci(theirs, ours, tick=tick_us, paired=True))


def elsewhere(results: Results) -> list[str]:
    """The complete runs of kernels on other devices: those that share the most shapes first, of these the newest."""
    device, mine = results.run.manifest["device"]["name"], set(results.study.shapes)
    shared = {
        name: len(mine & set(recorded(manifest).shapes))
        for name, manifest in read.manifests()
        if manifest["complete"] and manifest["kernels"] and manifest["device"]["name"] != device
    }
    return sorted(shared, key=lambda name: -shared[name])
