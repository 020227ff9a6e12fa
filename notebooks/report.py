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

show = obtain.exhibits(run, study, device)
show

# %% [markdown]
# ## Abstract

# %% tags=["hide"]
show("verdicts.abstract")

# %% [markdown]
# ## The question
#
# A report that one attention kernel is faster than another is easy to make and easy to get wrong. A clock may time the
# host; a cache may be warm for one side alone; samples may depend on each other; a throughput may be beyond what the device
# can reach. This report compares PyTorch's own implementations, which any new kernel has to beat, with the kernels of this
# project, and shows all that its answer rests on. Every measured number, interval and verdict below was computed from the run's samples when the page was built.

# %%
show("environment.parameters")

# %%
show("environment.lacking")

# %% [markdown]
# ## The machine

# %%
show("environment.run")

# %%
show("environment.machine")

# %%
show("environment.ceilings")

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
# between the events divided by $k$ is one sample. $k$ is chosen so that a replay takes about 0.4 ms, at most 64 calls.
# `cupti`, where a run has it, is the sum of the durations of the kernels in that graph, by the device's own time stamps and
# over $k$: it leaves out the time between kernels, which `device` counts. On a CPU, only `eager` exists, read from the
# system's performance counter.
#
# ### Caches
#
# Before each `warm` sample the same work runs once untimed, and the inputs that are timed on are put in place: the cache
# holds what both leave in it. Before each `cold` one a buffer of twice the last level of cache is overwritten, outside the
# timed window. A cold `device` sample is a single call, a warm one the mean of $k$ calls in a row, so their difference is
# not the cache's alone.
#
# ### Values
#
# From the fifth schema of runs on, no sample is of values that the implementation has seen before. $Q$, $K$ and $V$ are
# drawn anew before each round. The untimed work before a warm sample sees them with the signs of each head's columns flipped
# at random, and then they are put back bit for bit. Each of the $k$ calls reads a window of its own, in which no head's
# queries meet the same keys as in another. What a kernel could still keep are norms of rows and whatever else such flips
# leave as it is; and from one call of a graph to the next, what depends on $Q$, $K$ or $V$ alone. Runs of an earlier
# schema repeat the same values in all calls.
#
# ### Order
#
# In a round, every implementation is timed once, in random order; rounds follow one another until each has its samples. A
# replicate walks the whole study in a fresh process; one that was cut off goes on in another. So drift and neighbours touch
# all alike.
#
# ### Correctness
#
# Each case is compared with a float64 oracle before it is timed and again after, on inputs that it has not seen, with its
# memory filled with NaN before; graphs are checked by replaying them. Both the maximum and the mean error may be at most
# twice those of the same formula composed from PyTorch operations in the dtype of the inputs [](#ref-dao2023). Each check
# runs an implementation again on the same inputs. A hand-written kernel whose outputs then differ in any bit fails, unless
# its entry says that they may; [](#baseline.checks) marks others that differ.
#
# From the fifth schema of runs on, what the last call of each sample returned is compared as well, outside the timed window.
# A backend of SDPA that passed the same gate computes the right output, and the bound is the gate's plus that backend's own
# error. A few graphs in each replicate end early, at a call drawn at random, and the output of that one is compared.
#
# A case that fails before it is timed is not timed. The samples of one that fails later stay in the run folder, and no table
# or figure uses them. Both are listed with the reason.
#
# ### Inference
#
# - **Estimate.** The median over all samples. Quantiles come with order-statistic intervals or not at all. Nothing is dropped.
# - **Interval, one replicate.** The percentile bootstrap's with 10 000 resamples [](#ref-efron1993). If the samples resemble
#   their neighbours, by the serial correlation of their ranks, the replicate is cut into five stretches that stand in for
#   replicates [](#ref-nakayama2014).
# - **Interval, several replicates.** The replicate is independent, not the sample [](#ref-kalibera2013): Student's $t$ over
#   the medians of the replicates, at least half as long as that of a bootstrap which resamples replicates and the samples
#   within them. No interval is narrower than the clock's tick over the launches that a sample spans.
# - **Speedup.** The ratio of medians from rounds taken together, with an interval of the same kind.
# - **Test.** $p$ is Mann-Whitney's. Where samples are not independent it is the largest of Mann-Whitney's and of the $t$
#   tests of Cliff's $\delta$ and of the speedup over replicates or stretches. It is adjusted by Holm over the candidates
#   compared at that shape [](#ref-holm1979).
# - **Verdict.** *Equivalent* where the 90 % interval lies within ±2 % [](#ref-schuirmann1987) and the run could have
#   detected a difference of that size. *Faster* or *slower* where the 95 % interval excludes 1, $p < 0.05$, and the effect is
#   at least the smallest that the A/A control could detect [](#ref-bloom1995). Else *inconclusive*.
# - **Claimable.** A faster candidate whose interval is apart from the baseline's, with Cliff's $|\delta| \ge 0.3$
#   [](#ref-cliff1993) and a speedup of at least 1.10.
#
# How often all this errs, by simulation with known truth, is in [](#verdicts.calibration.table).

# %% [markdown]
# ## Results
#
# ### At the target

# %%
show("baseline.timings")

# %%
show("baseline.distribution")

# %%
show("verdicts.target")

# %%
show("verdicts.timings")

# %%
show("verdicts.statement")

# %%
show("verdicts.accuracy")

# %% [markdown]
# ### Every comparison
#
# The page 06_verdicts has them one by one, under every timing.

# %%
show("verdicts.counted")

# %%
show("verdicts.by_timing")

# %%
show("verdicts.chart")

# %%
show("verdicts.false_positives")

# %% [markdown]
# ### Sequence length

# %%
show("baseline.span")

# %%
show("baseline.sweep.seq_len")

# %%
show("baseline.latency")

# %%
show("baseline.backends.seq_len")

# %%
show("baseline.odd_lengths")

# %%
show("baseline.throughput.lengths")

# %% [markdown]
# ### Batch and heads

# %%
show("baseline.sweep.batch")

# %%
show("baseline.sweep.heads")

# %%
show("baseline.throughput.sizes")

# %% [markdown]
# ### Causal masks

# %%
show("baseline.sweep.causal_seq_len")

# %%
show("baseline.backends.causal_seq_len")

# %%
show("baseline.listed")

# %% [markdown]
# ### Scaling

# %%
show("baseline.scaling.seq_len")

# %%
show("baseline.scaling.batch")

# %%
show("baseline.scaling.heads")

# %% [markdown]
# ### Variance and tails

# %%
show("baseline.variance")

# %%
show("baseline.tails")

# %% [markdown]
# ### Memory

# %%
show("baseline.memory.table")

# %%
show("baseline.memory")

# %% [markdown]
# ### Launch gap and cache

# %%
show("environment.launch_gap")

# %%
show("environment.timings")

# %% [markdown]
# ### The clock and the cache, held to others

# %%
show("environment.agreement")

# %%
show("environment.claimed")

# %%
show("environment.panel")

# %%
show("environment.residency")

# %% [markdown]
# ### Which kernel ran

# %%
show("baseline.kernels")

# %% [markdown]
# ## Roofline
#
# The floor of a shape is the largest of the times that the ceilings measured here allow for its FLOPs, bytes and
# exponentials [](#ref-williams2009); the *speed of light* is the floor over the median. Ceilings are those of short
# bursts, so a sustained load, at a lower clock, may have lower ones.

# %%
show("roofline.roofline")

# %%
show("roofline.regimes")

# %%
show("roofline.floors.seq_len")

# %%
show("roofline.speed_of_light")

# %% [markdown]
# ## What must be beaten

# %%
show("verdicts.to_beat")

# %% [markdown]
# ## The ladder
#
# The hand-written kernels pass the same gate as every other implementation, in the same rounds and on the same clocks. Each
# rung states beforehand what it should gain over the rung that it builds on. The page 05_kernels has each ablation in full.

# %%
show("kernels.overview")

# %%
show("kernels.stale")

# %%
show("kernels.climb")

# %%
show("kernels.ladder")

# %%
show("kernels.carried")

# %%
show("kernels.compiled")

# %%
show("kernels.lessons")

# %%
show("kernels.ablation")

# %%
show("kernels.geometry")

# %%
show("kernels.l4.geometry")

# %%
show("kernels.l4.parallelism")

# %%
show("kernels.l4")

# %%
show("kernels.l4.limits")

# %%
show("kernels.l4.finding")

# %%
show("kernels.l4.work")

# %% [markdown]
# ## Choosing a backend
#
# Settings are compared by their time for each token: a call over fewer tokens is no faster for being shorter. Where the run
# above holds no such shapes, the newest run on the same device that does is shown instead, and named. The page 04_backends
# has every table, the cost and the energy.

# %%
show("backends.run")

# %%
show("backends.summary")

# %%
show("backends.choice.seq_len")

# %%
show("backends.tokens")

# %%
show("backends.length")

# %%
show("backends.chunking")

# %%
show("backends.settled")

# %% [markdown]
# ### What models call

# %%
show("backends.grouped")

# %%
show("backends.decode")

# %%
show("backends.ragged")

# %%
show("backends.training")

# %% [markdown]
# ### What to use, and what to avoid

# %%
show("backends.rules")

# %% [markdown]
# ### Letting a table choose

# %%
show("backends.attend.run")

# %%
show("backends.attend.chosen")

# %%
show("backends.attend.overhead")

# %%
show("backends.attend.stream")

# %% [markdown]
# ### Peers

# %%
show("backends.peers.run")

# %%
show("backends.peers.support")

# %%
show("backends.peers.beside")

# %% [markdown]
# ## Beside what others published
#
# Numbers in the literature come from other devices, shapes and versions. They can be compared as a share of each device's
# datasheet peak, with work counted alike. Only numbers whose source was read are among them; each row, with its place in
# that source, is on the page 03_roofline.

# %%
show("roofline.literature")

# %%
show("roofline.literature.highest")

# %%
show("roofline.literature.figure")

# %%
show("roofline.literature.same")

# %%
show("roofline.literature.limits")

# %% [markdown]
# ## What holds each back
#
# Nsight Compute's counters of one call at the target. A unit from 60 % of its peak counts as the bottleneck; below that, the
# largest loss of the schedulers' cycles does. The page 07_profile has all counters.

# %%
show("profile.how")

# %%
show("profile.units")

# %%
show("profile.findings")

# %%
show("profile.schedulers")

# %%
show("profile.bottlenecks")

# %%
show("profile.beyond")

# %% [markdown]
# ## Errors

# %%
show("baseline.correctness")

# %%
show("baseline.checks")

# %%
show("baseline.errors")

# %%
show("kernels.correctness")

# %%
show("kernels.l4.errors")

# %% [markdown]
# ## Measured again
#
# Replicates show how processes differ. Another run, on another machine or at another hour, shows everything else that does:
# which medians another recorded run on a device of the same name found again, and which moved.

# %%
show("baseline.again")

# %% [markdown]
# ## Audit of five reports
#
# Five reports on an NVIDIA L4 asked the questions that this one asks. Their numbers were transcribed, and every claim was
# recomputed from the numbers that they print. The page 08_audit has all claims, a corrected roofline, and which advice stands.

# %%
show("audit.summary")

# %%
show("audit.counts")

# %%
show("audit.counted")

# %%
show("audit.telling")

# %% [markdown]
# ## Threats to validity
#
# - **One machine.** Another of the same model may differ by its silicon, cooling and power supply, and by the load of its
#   neighbours.
# - **Bursts.** Implementations take turns and the host pauses between samples, so the device is cooler than under one
#   kernel without pause.
# - **One distribution of inputs.** Standard normal values; zeros, for one, draw less power and can run faster.
# - **Host time in `eager`.** On a GPU, it depends on this host's processor and Python, and says little about another's.
# - **Events.** On a GPU, a pair of events around nothing reads more than a microsecond; `device` spreads it over $k$ calls where
#   the cache is warm, and carries it whole where it is cold. Nothing is subtracted.
# - **Samples are not quite independent.** Intervals and verdicts count replicates, or stretches of one, and not samples;
#   but quantiles, effect sizes and the effective N pool all samples.
# - **Few replicates.** Student's $t$ covers a handful of processes at its level if their medians scatter about normally. A
#   single replicate speaks of its own process alone.
# - **Burst ceilings.** Ceilings were measured in short bursts, so a sustained load may have lower ones.

# %%
show("environment.throttling")

# %%
show("environment.telemetry")

# %%
show("environment.load")

# %%
show("environment.endurance")

# %%
show("environment.cases")

# %% [markdown]
# ## Reproducibility
#
# The run folder holds every sample. It is refused when a file no longer matches its hash.

# %%
show("environment.checklist")

# %%
show("environment.effort")

# %%
show("environment.commands")

# %%
show("environment.settings")

# %%
show("environment.hashes")

# %%
show("environment.bibtex")

# %% [markdown]
# ## References

# %% [markdown]
# ## Appendix: How often the inference is wrong

# %%
show("verdicts.calibration")

# %%
show("verdicts.calibration.table")

# %%
show("verdicts.controls")

# %% [markdown]
# ## Appendix: Every case

# %%
show("baseline.every_case")
