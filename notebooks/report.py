# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Faster on which numbers? Attention kernels, measured on more than normal values

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

# %% [markdown]
# ## Abstract

# %%
show("verdicts.abstract")

# %%
show("baseline.throughput")

# %% [markdown]
# ## Introduction
#
# A report that one attention kernel is faster than another is easy to make and easy to get wrong. The numbers in Q, K and V
# may be such as one kernel likes; a clock may time the host; a cache may be warm for one side alone; the power limit may
# lower the clock of whichever runs longer; samples may depend on each other; a throughput may be beyond what the device can
# reach. Each of these decides comparisons between good kernels, which are only some percent apart.
#
# This paper asks which implementation of attention is faster, on which numbers, and how far the answer can be trusted. It
# compares the implementations that PyTorch chooses among, which any new kernel has to beat, with each other, with other
# packages (`peer.flash4` is flash-attn-4, `peer.flex` FlexAttention, `peer.cudnn` and `peer.flashinfer` cuDNN and FlashInfer by
# plans that short timings chose) and with kernels of our own, forward passes all. `sdpa.auto` is PyTorch's own choice. Two of
# our kernels search the largest score of a row in the first tile of keys alone: where a later score is too large for that,
# `kernel.bounded` computes the tile again, and `kernel.lazy` rescales. `kernel.few` and `kernel.pairs` split keys, and
# `kernel.best` launches, at each shape, the kernel that tuning on such a device chose before the run. A shape is written
# (B, H, S, D), batch, heads, length and dimension, and the *target* is the one that a study is about. Kinds of values are named
# by what their scores do: `sd 6` have that standard deviation, `rising 24` rise by so much along the keys. The Method says,
# under Verdicts, which leads are *claimable*.

# %%
show("verdicts.findings")

# %% [markdown]
# [](#verdicts.values) is the finding to keep: a row is an implementation, a column a kind of numbers, and where a row changes
# its colour, what a benchmark on standard normal values finds need not hold for a model. [06_verdicts](06_verdicts.html) says
# what each kind is.

# %%
show("verdicts.values")

# %% [markdown]
# **Contributions.** *A measurement* of attention in which every case is checked against float64 before and after it is
# timed, on values that no implementation has seen. *An instrument* that is itself tested: against other clocks, the bytes
# that calls read from memory, itself, and simulations. *Verdicts* with a stated error rate, corrected for their number, under
# every timing. *All samples*, and a report that computes each number from them.
#
# ## Background and related work
#
# **Attention** [](#ref-vaswani2017) is $O = \mathrm{softmax}(Q K^\top / \sqrt{D})\, V$ for each of $B$ sequences and $H$ heads
# of length $S$ and dimension $D$. Computed pass by pass it writes and reads all $S^2$ scores. Milakov and Gimelshein
# [](#ref-milakov2018) showed that the softmax needs a single pass if its normalizer is corrected along the way; FlashAttention
# [](#ref-dao2022) made that a tiled kernel whose scores never leave the multiprocessor. FlashAttention-2 [](#ref-dao2023)
# distributes the work better, FlashAttention-3 [](#ref-shah2024) overlaps products and softmax by Hopper's asynchronous
# instructions, and FlashAttention-4 [](#ref-zadouri2026) balances them where tensor cores outgrow the units of exponentials.
# NVIDIA's cuDNN [](#ref-chetlur2014) has kernels of its own, which its frontend [](#ref-nvidia2026frontend) gives at more
# settings; FlashInfer [](#ref-ye2025) has kernels for servers, and FlashAttention-3's algorithm among them; FlexAttention [](#ref-dong2024) generates kernels for modified scores through Triton [](#ref-tillet2019), and
# xFormers [](#ref-lefaudeux2022) wraps several. PyTorch's `scaled_dot_product_attention` chooses among several of these.
#
# **Timing.** Triton's `do_bench` times single calls after a write that empties the cache, and NVBench [](#ref-nvbench)
# separates cold calls on a held stream from batches. They answer different questions, and papers seldom say which they
# asked. Dissections of Hopper [](#ref-luo2024) [](#ref-luo2025) measure its instructions one by one; they show what the units
# can do, which is the ceiling below which a kernel works [](#ref-williams2009).
#
# **Inference.** Hoefler and Belli [](#ref-hoefler2015) give rules for benchmarks, each of which
# [](#environment.rules) answers. Kalibera and Jones [](#ref-kalibera2013) show that samples of one process are no independent
# evidence, so that processes have to be replicated.
#
# ## Method
#
# **Machine.** Settings that change results or speed unnoticed are fixed before anything is measured, then read back and
# asserted; [01_environment](01_environment.html) has them and all that the run recorded of its machine.

# %%
show("environment.run")

# %% [markdown]
# **Work and floor.** Attention takes $F = 4BHS^2D$ FLOPs and one exponential a score, and must move $M = 4BHSDb$ bytes with
# $b$ bytes an element. Under a causal mask only the scores that it lets through count, $F = 2BHS(S+1)D$. Others
# halve the full count instead, which is $S/(S+1)$ of this. The *floor* of a
# shape is the largest of the times that the measured ceilings allow for its FLOPs, bytes and exponentials, where a warm L2
# leaves to memory only the bytes that it can't hold, and the *speed of light* is the floor over the median.
#
# The ceilings in [](#roofline.roofline) were measured in the same run by the same clock, in short bursts; a sustained load
# has lower ones.

# %%
show("roofline.roofline")

# %%
show("roofline.regimes")

# %% [markdown]
# **Clocks and caches.** The same calls are timed in the ways of [](#environment.clocks), which says what one sample is under
# each and which question it answers. No answer replaces another. In a warm
# `device` sample, the number of calls is chosen so that a replay takes about 0.4 ms, at most 64 calls; before a cold one, twice
# the last level of cache is overwritten outside of the timed window.

# %%
show("environment.clocks")

# %% [markdown]
# **Order.** In a round every implementation is timed once, in random order, so that drift and the load of other programs
# affect all equally. A replicate walks the whole study in fresh processes. Inputs are drawn anew before each round.
#
# **Values.** Each kind of numbers in Q, K and V is timed like a shape of its own: standard normal ones, larger scores,
# a sink, positions that attract, scores that rise or fall, heads and rows of unlike scales, outliers, and what the attention
# of one trained model was called with. A verdict over all kinds is that on the worst. No benchmark of attention that is known
# to us varies them.
#
# **Correctness.** A gate compares each case with a float64 oracle before it is timed and again after, on inputs that it has not
# seen, with its memory filled with NaN before. Its errors may be at most twice those of the same formula composed from
# PyTorch operations [](#ref-dao2023). A case that fails has no latency.
#
# **Estimates and intervals.** An estimate is the median of all samples. Those of a shape that was cut off before its last checks don't
# count, and no other is dropped. Over several replicates, or cards where there are three or more, its interval is Student's $t$
# over their log medians; by chance these may lie close together, so it is never shorter than half of that of a bootstrap over
# replicates and the samples within them. For a single one it is the percentile bootstrap's with 10 000
# resamples [](#ref-efron1993), and where neighbouring samples resemble each other, the replicate is cut into five stretches that
# stand in for replicates [](#ref-nakayama2014). A speedup is a ratio of medians from rounds taken together.
#
# **Verdicts.** A candidate is *faster* or *slower* where the 95 % interval excludes 1, $p < 0.05$ by Mann and Whitney's test,
# and by a $t$ test over replicates or cards, after Holm's adjustment [](#ref-holm1979) over the candidates at that shape, and the effect is at least the smallest that the baseline
# measured against itself could show [](#ref-bloom1995). It is *equivalent* where the 90 % interval lies within ±2 %
# [](#ref-schuirmann1987) and the run could have detected a difference of that size; else the comparison is *inconclusive*. A
# faster candidate is *claimable* if its interval is apart from the baseline's, Cliff's $|\delta| \ge 0.3$ [](#ref-cliff1993) and
# it has a speedup of at least 1.10. What is counted over the fastest of others, as in Finding 5, is by the interval alone, without
# adjustment; that other is chosen by the same samples, which favours it.
#
# ### One verdict, from samples to sentence
#
# The samples of both sides give their medians, and the rounds that they share the ratio of these. Its interval, its p-value
# after Holm's adjustment, and the smallest effect that could have been found decide what may be said. Where several kinds of
# values were timed, it is said of the worst.

# %%
show("verdicts.statement")

# %% [markdown]
# ## Can the instrument be trusted?
#
# ### Other clocks
#
# The same calls, from microseconds to milliseconds, were timed by every clock that was available. In [](#environment.panel)
# a row is a clock. Those that time what ours times lie in or near the grey band around zero. The others differ for a
# reason: `eager` includes the launch gap, Nsight Compute times kernels alone and after a pause, a traced span is lengthened by
# tracing. CUPTI's time stamps are a *bracket*: the durations of the kernels of a replay leave out what lies between them, and
# the time from the first one's start to the last one's end is longer by what tracing takes.

# %%
show("environment.panel")

# %%
show("environment.residency")

# %% [markdown]
# ### Right results

# %%
show("baseline.correctness")

# %% [markdown]
# ### Error rates
#
# Whether the inference errs as often as it states was simulated with known truth, over several distributions of samples.
# [](#verdicts.calibration.brief) has the rows that are most like this run. Coverage should be near the stated confidence, and
# the share of false verdicts no more than what it leaves.

# %%
show("verdicts.calibration.brief")

# %%
show("verdicts.false_positives")

# %% [markdown]
# ## PyTorch's implementations

# %%
show("baseline.span")

# %%
show("verdicts.at_target")

# %% [markdown]
# ## Clock, cache, power

# %%
show("environment.launch_gap")

# %%
show("environment.load")

# %% [markdown]
# ## The ladder
#
# The hand-written kernels pass the same gate as every other implementation, in the same rounds and by the same clocks. Each
# rung of [](#kernels.summary) states beforehand what it should gain over the rung that it builds on. An expectation that was
# missed is as much a result as one that was exceeded. The last column names the largest bottleneck by the counters: a unit
# from 60 % of its peak on, in percent of that, or else what warps waited for most, in percent of all cycles of the call.

# %%
show("kernels.stale")

# %%
show("kernels.summary")

# %% [markdown]
# **What the rungs taught.** Tensor cores gain little while the banks of shared memory serve every matrix row by row
# (`kernel.mma`), and more than expected once they don't (`kernel.swizzled`). To copy beside the products gains once
# (`kernel.pipelined`); after it, `wgmma` with operands from shared memory does, and a warpgroup that does nothing but load by
# TMA (`kernel.wgmma`). To overlap softmax and products within a warpgroup gave next to nothing (`kernel.overlap`), smaller jobs
# without a gap between them more (`kernel.jobs`). What gained since is less work in the softmax, above all no search of
# each row's maximum. To guess it pays as long as the guess holds, which is up to the numbers (`kernel.bounded`). To rescale only
# where a score needs it is FlashAttention-4's way [](#ref-zadouri2026); to find out by integers, beside the exponentials, costs
# little, and depends on the numbers little as far as they were varied here (`kernel.lazy`).
#
# ## Few queries over many keys
#
# Decoding asks with one query over the keys so far, speculative decoding with a few, and the last chunk of a prompt with
# more. [](#backends.few.bandwidth) has the part of the memory's bandwidth that is reached;
# [04_backends](04_backends.html) has every shape. Of the peers, flash-attn-4 splits keys only on devices after Hopper, and
# FlashInfer, which is made for this, merges the results of splits after it has rounded them to 16 bits.

# %%
show("backends.few")

# %% [markdown]
# ## FP8, with its error
#
# In FP8 the tensor cores are twice as fast, the softmax is not, and Q, K, V and the probabilities are rounded to e4m3.
# [](#kernels.fp8.pays) has the speedups of what is given e4m3, and of what quantises 16 bits, with the time that this takes;
# [](#kernels.fp8.costs) has errors and, below them, speeds on each kind of values.

# %%
show("kernels.fp8.pays")

# %%
show("kernels.fp8.costs")

# %% [markdown]
# ## Peers and published work
#
# [](#backends.peers.dots) is of a run of its own on the same device, with more kinds of calls, a row for each. A mark right of
# the line is a shape at which PyTorch's own choice is not the fastest. FlashAttention-3 was not measured: it has to be built
# from source. FlashInfer's kernels for Hopper are of its algorithm.

# %%
show("backends.peers.dots")

# %% [markdown]
# Numbers in the literature come from other devices, shapes and versions. They can be compared as a share of each device's
# datasheet peak, with the same count of work. [](#roofline.literature.shares) does that for the highest number that was
# transcribed for each implementation on each device, some from issues and pull requests. Diamonds are the same algorithm in this run.

# %%
show("roofline.literature.shares")

# %% [markdown]
# **An audit.** Five reports on an NVIDIA L4 asked the questions that this paper asks. Every claim was recomputed from the
# numbers that they print; [08_audit](08_audit.html) has the arithmetic.

# %% [markdown]
# ## In a model
#
# A faster kernel need not make a faster model. Models of Hugging Face transformers generate text with `attnlab.attend`, which
# chooses for each shape by a table that a run made, in place of the SDPA that they call by themselves. Steps of one token, or of
# a draft of eight, read a static cache of the prompt. There transformers gives its SDPA a mask over the whole cache and copies
# of heads that share keys, and `attend` the number of keys in use: what steps gain is not a kernel's alone. The driver decides
# how far apart the kernels of a graph run, and not alike for all graphs of a process: by trials, GPT-2's step of one token
# loses by that, and takes less time with `attend` where both graphs run alike. [09_model](09_model.html) has the times.

# %%
show("model.gained")

# %% [markdown]
# ## Threats to validity
#
# - **One machine.** Other cards of the same model may differ; [](#environment.cards) says how far those of this run do, and
#   [05_kernels](05_kernels.html) what another model says, where one was measured. Versions of PyTorch, cuDNN and the driver are
#   one of each.
# - **Peers.** FlashAttention-3 was not measured. `peer.cudnn` and `peer.flashinfer` choose plans in each process anew.
# - **Tuning.** `kernel.best` was chosen at other shapes and on other inputs, but on three of the kinds that it is judged on:
#   `normal`, `sd 6` and `rising 24`.
# - **Shapes.** Where more than a thousand heads share keys, about a hundred a head, at D = 128, cuDNN is ahead of `kernel.best`
#   by up to a fifth: such shapes are in [04_backends](04_backends.html) alone. Most lengths here are powers of two, which fill
#   tiles; between them the lead over `sdpa.auto` is larger.
# - **Calls.** Forward passes in fp16 and bf16, on contiguous Q, K and V, of which FlashInfer takes no shared heads.
#   [04_backends](04_backends.html) has float32, strided views, unlike lengths and training at a few shapes.
# - **Bursts.** Implementations take turns with pauses, which cool the device.
# - **Kinds of values.** Most shapes are timed on one kind. The captured ones are of one model, a small one that was trained for
#   minutes unless the study names another. Larger scores than these were not timed: by a trial at the target `kernel.lazy` takes a
#   seventh longer where they have a standard deviation of twelve, a third at sixty, and there cuDNN is faster.
# - **Clocks.** What `eager` reads depends on this host's processor and Python. A cold `device` sample carries all that a pair of
#   events reads around nothing, a warm one its call's part. In warm samples the call before hides part of `kernel.few`'s launch,
#   and its instructions are in the caches, where a model runs other kernels between.
# - **Few replicates.** Student's $t$ over a handful of processes supposes medians that are roughly normal. A single replicate
#   tells of its own process: in simulations of processes that differ, up to four in ten of its verdicts err.

# %%
show("environment.lacking")

# %% [markdown]
# ## Conclusion
#
# "Faster" is a statement about two programs, a clock, and the numbers that they are given. A kernel that goes by the
# scores may lead on standard normal numbers and lag on others, and a benchmark that draws no others cannot tell: it happened to
# `kernel.bounded`, which was our fastest, and to no implementation of others that was measured here. So a claim over all values is made on the worst kind, and a result on normal ones says
# no more than that. Nor does a lead hold everywhere: the findings say over how many queries, and in which format, it is lost. On a card of one's own, `make report` measures
# PyTorch's implementations, this ladder and the packages that are installed, and `attnlab.tune` what to call for tensors of one layout.

# %% [markdown]
# ## References

# %% [markdown]
# ## Appendix: Everything else, and how to reproduce it
#
# The run folder holds every sample; a file that no longer matches its hash is refused. The pages beside this paper hold
# every table: [01_environment](01_environment.html) the machine, what was not measured, and the rules of Hoefler and Belli;
# [02_baseline](02_baseline.html) every case;
# [03_roofline](03_roofline.html) floors and published numbers; [04_backends](04_backends.html) peers;
# [05_kernels](05_kernels.html) each rung; [06_verdicts](06_verdicts.html) every comparison;
# [07_profile](07_profile.html) counters; [08_audit](08_audit.html) the audit; [09_model](09_model.html) models.

# %%
show("environment.effort")

# %%
show("environment.commands")
