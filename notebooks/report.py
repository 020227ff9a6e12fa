# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Is it really faster? PyTorch's attention, measured so that a doubter can check
#
# <p class="authors">attnlab</p>

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import accuracy, advice, audited, backends, calibration, companions, comparison, dispatched, figures
from attnlab.analyse import kernels, panel, peers, profiles, prose, published, references, regime, repeat, residency
from attnlab.analyse import tables, variants, verdicts

results = obtain.results(run, study, device)
baseline, target = results.study.baseline, results.study.target_shape
choices = companions.with_sweep(results, "grid seq_len")
others = companions.with_implementation(results, "peer.flex")
attended = companions.with_implementation(results, "dispatch.attend")

# %% tags=["hide"]
prose.dateline(results)

# %% [markdown]
# ## Abstract

# %% tags=["hide"]
prose.abstract(results)

# %% [markdown]
# ## The question
#
# A report that one attention kernel is faster than another is easy to make and easy to get wrong: a clock that times the
# host, a cache that was warm for one side, samples that are not independent, a throughput that no such device can reach.
# This report answers for PyTorch's own implementations, which any new kernel has to beat, and shows all that the answer
# rests on. Every measured number, interval and verdict below was computed from the run's samples when the page was built.

# %%
tables.parameters(results)

# %%
prose.lacking(results)

# %% [markdown]
# ## The machine

# %%
prose.machine(results)

# %%
tables.machine(results)

# %%
tables.ceilings(results)

# %% [markdown]
# ## Methods
#
# ### Work
#
# For batch $B$, heads $H$, length $S$, head dimension $D$ and $b$ bytes an element, attention
#
# $$O = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{D}}\right) V$$
#
# takes $F = 4BHS^2D$ FLOPs and one exponential a score, and must move $M = 4BHSDb$ bytes: $Q$, $K$ and $V$ read once and
# $O$ written once. Under a causal mask only scores that it lets through count, $F = 2BHS(S+1)D$. Others halve the full
# count instead, which is $S/(S+1)$ of this.
#
# ### Clocks
#
# On a GPU, `eager` is the time between the CUDA events around one call, with the stream idle before: what a program sees,
# launch gap included. `device` removes the gap: a CUDA graph of $k$ calls is replayed while the stream is still busy, and the time
# between the events divided by $k$ is one sample. $k$ is chosen so that a replay takes about 0.4 ms, at most 64 calls. On
# a CPU, only `eager` exists, read from the system's performance counter.
#
# ### Caches
#
# Before each `warm` sample the same work runs once untimed, so that the cache holds what this implementation leaves in
# it. Before each `cold` one a buffer of twice the last level of cache is overwritten, outside the timed window.
#
# ### Order
#
# In a round, every implementation is timed once, in random order; rounds follow one another until each has its samples. A
# replicate is a fresh process that walks the whole study. So drift and neighbours touch all alike.
#
# ### Correctness
#
# Each case is compared with a float64 oracle before it is timed and again after, on inputs that it has not seen, its
# memory filled with NaN before; graphs are checked by replaying them. Both the maximum and the mean error may be at most
# twice those of the same formula composed from PyTorch operations in the dtype of the inputs [](#ref-dao2023). A case
# that fails is reported and not timed.
#
# ### Inference
#
# The estimate is the median. Where one process measured and its samples don't resemble their neighbours, its interval is
# the percentile bootstrap's with 10 000 resamples [](#ref-efron1993). Where several did, what is independent is the
# replicate, not the sample [](#ref-kalibera2013): the interval is Student's $t$ over the medians of the replicates, and at
# least half as long as that of a bootstrap which resamples replicates and the samples within them. One replicate whose
# samples do resemble their neighbours, by the serial correlation of their ranks, is cut into five stretches that stand in
# for replicates [](#ref-nakayama2014). No interval is narrower than the clock's tick over the launches that a sample spans.
# Speedups are ratios of medians from rounds taken together, with intervals of the same kind. A verdict is *equivalent*
# where the 90 % interval lies within ±2 % [](#ref-schuirmann1987) and so little could have been seen, *faster* or *slower* where the 95 % interval excludes 1,
# $p < 0.05$, and the effect is no smaller than what the baseline measured against itself left to be seen
# [](#ref-bloom1995), and else *inconclusive*. $p$ is Mann-Whitney's, or where samples are not independent the largest of
# it and of the $t$ tests of Cliff's $\delta$ and of the speedup over replicates or stretches; it is adjusted by Holm over
# the candidates compared at that shape [](#ref-holm1979). A verdict is *claimable* with intervals apart, Cliff's
# $|\delta| \ge 0.3$ [](#ref-cliff1993) and a speedup of at least 1.10. Quantiles come with order-statistic intervals or not
# at all. Nothing is dropped. How often all this errs is told in [](#tab-calibration).

# %% [markdown]
# ## Results
#
# ### At the target

# %%
tables.timings(results, target)

# %%
figures.distribution(results, target)

# %%
tables.verdicts(results, target)

# %%
verdicts.statement(results, target)

# %%
accuracy.plane(results, target)

# %% [markdown]
# ### Every comparison
#
# The page 06_verdicts has them one by one, under every timing.

# %%
verdicts.told(results)

# %%
verdicts.by_timing(results)

# %%
verdicts.chart(results)

# %%
calibration.false_positives(results)

# %% [markdown]
# ### Sequence length

# %%
prose.span(results)

# %%
tables.sweep(results, "seq_len", baseline)

# %%
figures.latency(results)

# %%
tables.backends(results, "seq_len")

# %%
figures.throughput(results, ["seq_len", "causal seq_len"])

# %% [markdown]
# ### Batch and heads

# %%
tables.sweep(results, "batch", baseline)

# %%
tables.sweep(results, "heads", baseline)

# %%
figures.throughput(results, ["batch", "heads"])

# %% [markdown]
# ### Causal masks

# %%
tables.sweep(results, "causal seq_len", baseline)

# %%
tables.backends(results, "causal seq_len")

# %%
tables.listed(results, "causal small")

# %% [markdown]
# ### Scaling

# %%
tables.scaling(results, "seq_len", baseline)

# %%
tables.scaling(results, "batch", baseline)

# %%
tables.scaling(results, "heads", baseline)

# %% [markdown]
# ### Variance and tails

# %%
tables.variance(results, "seq_len", baseline)

# %%
tables.tails(results, "seq_len", baseline)

# %% [markdown]
# ### Memory

# %%
tables.memory(results, "seq_len")

# %%
figures.memory(results)

# %% [markdown]
# ### Launch gap and cache

# %%
prose.launch_gap(results)

# %%
figures.timings(results)

# %% [markdown]
# ### The clock and the cache, held to others

# %%
panel.agreement(results)

# %%
panel.gaps(results)

# %%
residency.told(results)

# %% [markdown]
# ### Which kernel ran

# %%
tables.kernels(results)

# %% [markdown]
# ## Roofline
#
# The floor of a shape is the largest of the times that the ceilings measured here allow for its FLOPs, bytes and
# exponentials [](#ref-williams2009); the *speed of light* is the floor over the median. Ceilings are those of short
# bursts, so a sustained load, at a lower clock, may have lower ones.

# %%
figures.roofline(results)

# %%
prose.regimes(results)

# %%
tables.roofline(results, "seq_len", baseline)

# %%
figures.speed_of_light(results)

# %% [markdown]
# ## What must be beaten

# %%
tables.to_beat(results)

# %% [markdown]
# ## The ladder
#
# The hand-written kernels, each an implementation like any other: through the same gate, in the same rounds, on the same
# clocks. Each rung states beforehand what it should gain over the one that it builds on. The page 05_kernels has the
# ablation of each in full.

# %%
kernels.overview(results)

# %%
kernels.stale(results)

# %%
kernels.climb(results, target)

# %%
kernels.ladder(results, target)

# %%
kernels.compiled(results, target)

# %%
kernels.lessons(results, target)

# %%
kernels.ablation(results, target)

# %%
kernels.geometry(results, target)

# %%
published.l4_geometry(results)

# %%
published.l4_parallelism(results)

# %%
published.beside_l4(results)

# %%
published.l4_limits(results)

# %%
published.l4_finding(results)

# %%
published.l4_work(results)

# %% [markdown]
# ## Choosing a backend
#
# Settings are compared by what a token takes in them: a call over fewer tokens is no faster for being shorter. Where the
# run above lacks what this asks for, it is of the newest run on the same device that holds it. The page 04_backends has
# every table, the cost and the energy.

# %%
prose.machine(choices)

# %%
advice.summary(choices)

# %%
backends.choice(choices, "seq_len")

# %%
backends.tokens(choices)

# %%
backends.length(choices)

# %%
backends.chunking(choices)

# %%
backends.settled(choices)

# %% [markdown]
# ### What models call

# %%
variants.grouped(choices)

# %%
variants.decode(choices)

# %%
variants.ragged(choices)

# %%
variants.training(choices)

# %% [markdown]
# ### What to use, and what to avoid

# %%
advice.rules(choices)

# %% [markdown]
# ### Letting a table choose

# %%
prose.machine(attended)

# %%
dispatched.chosen(attended)

# %%
dispatched.overhead(attended)

# %%
dispatched.stream(attended)

# %% [markdown]
# ### Peers

# %%
prose.machine(others)

# %%
peers.support(others)

# %%
peers.beside(others)

# %% [markdown]
# ## Beside what others published
#
# Published numbers come from other devices, shapes and versions. What can be set side by side is the work, counted alike, as
# a share of what each device's datasheet says it can do. A number without a source that was read is not among them; each
# row, with its place, is on the page 03_roofline.

# %%
comparison.told(results)

# %%
comparison.highest(results)

# %%
comparison.figure(results)

# %%
comparison.same(results)

# %%
comparison.limits(results)

# %% [markdown]
# ## What holds each back
#
# Nsight Compute's counters of one call at the target. A unit from 60 % of its peak counts as the bottleneck; below that,
# what costs the most of the schedulers' cycles. The page 07_profile has all of it.

# %%
profiles.how(results)

# %%
profiles.units(results)

# %%
profiles.findings(results)

# %%
profiles.schedulers(results)

# %%
profiles.bottlenecks(results)

# %% [markdown]
# ## Errors

# %%
prose.correctness(results)

# %%
tables.correctness(results)

# %%
figures.errors(results)

# %%
kernels.correctness(results)

# %%
published.l4_errors(results)

# %% [markdown]
# ## Measured again
#
# Replicates differ by what a process draws; another run, on another machine or at another hour, by all else. What of this
# run's medians another recorded run on a device of the same name found again, and what moved:

# %%
repeat.told(results)

# %% [markdown]
# ## Published numbers
#
# Five reports on an NVIDIA L4 asked the questions that this one asks. Their numbers were transcribed and every claim
# recomputed from what they print; the page 08_audit has all of them, the roofline put right, and what is left of the advice.

# %%
audited.summary()

# %%
audited.counts()

# %%
audited.counted()

# %%
audited.telling()

# %% [markdown]
# ## Threats to validity
#
# - **One machine.** Another of the same model may differ by its silicon, cooling and power supply, and by what its
#   neighbours do.
# - **Bursts.** Implementations take turns and the host pauses between samples, so the device is cooler than under one
#   kernel without pause.
# - **One distribution of inputs.** Standard normal values; zeros, for one, draw less power and can run faster.
# - **Host time in `eager`.** On a GPU, it depends on this host's processor and Python, and says little about another's.
# - **Events.** On a GPU, a pair of events around nothing reads more than a microsecond; `device` spreads it over $k$ calls where
#   the cache is warm, and carries it whole where it is cold. Nothing is subtracted.
# - **Samples are not quite independent.** Intervals and verdicts count replicates, or stretches of one, and not samples;
#   but quantiles, effect sizes and the effective N pool all samples.
# - **Few replicates.** Student's $t$ makes intervals of a handful of processes as long as they must be, if the medians of
#   processes scatter about normally. A single replicate speaks of its own process alone.
# - **Burst ceilings.** Ceilings were measured in short bursts, so a sustained load may have lower ones.

# %%
prose.throttling(results)

# %%
figures.telemetry(results)

# %%
regime.told(results)

# %%
regime.endurance(results)

# %%
tables.cases(results)

# %% [markdown]
# ## Reproducibility
#
# The run folder holds every sample. It is refused when a file no longer matches its hash.

# %%
tables.checklist(results)

# %%
prose.effort(results)

# %%
prose.commands(results)

# %%
tables.settings(results)

# %%
tables.hashes(results)

# %%
prose.bibtex(results)

# %% [markdown]
# ## References

# %% tags=["hide"]
references.listing()

# %% [markdown]
# ## Appendix: How often the inference is wrong

# %%
calibration.summary()

# %%
calibration.table()

# %%
calibration.controls(results)

# %% [markdown]
# ## Appendix: Every case

# %%
tables.every_case(results)
