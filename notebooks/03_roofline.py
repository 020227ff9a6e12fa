# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Roofline
#
# What limits attention here? The ceilings of this machine, measured in the same run: matrix products, memory, and, where
# the device lets them be measured, the exponentials of the softmax. The floor is the largest of the times that the
# ceilings measured here allow; the floor over the median is the speed of light.

# %% tags=["parameters"]
run: str = ""  # a run in data/; empty for the newest of the study on this device, measured now if there is none
study: str = "quick"  # what to measure: a file in params/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import obtain
from attnlab.analyse import comparison, figures, prose, references, tables

results = obtain.results(run, study, device)
baseline, target = results.study.baseline, results.study.target_shape

# %% [markdown]
# ## The arithmetic
#
# For batch $B$, heads $H$, length $S$ and head dimension $D$, with $b$ bytes an element,
#
# $$F = 4 B H S^2 D, \qquad M = 4 B H S D\, b, \qquad E = B H S^2, \qquad I = \frac{F}{M} = \frac{S}{b}$$
#
# are FLOPs, compulsory bytes, exponentials and intensity; causal masks leave $2 B H S (S+1) D$ FLOPs and half the
# exponentials, about. With the measured rates $\pi$, $\beta$ and $\varepsilon$ the floor is, over those of them that were measured,
#
# $$t_{\min} = \max\left(\frac{F}{\pi},\; \frac{M}{\beta},\; \frac{E}{\varepsilon}\right).$$

# %%
tables.ceilings(results)

# %%
figures.roofline(results)

# %%
prose.regimes(results)

# %% [markdown]
# ## Along the sequence length

# %%
tables.roofline(results, "seq_len", baseline)

# %%
tables.roofline(results, "causal seq_len", baseline)

# %% [markdown]
# ## How near does each come?

# %%
figures.speed_of_light(results)

# %% [markdown]
# ## Beside what others published
#
# Every number that was found, in this project's count of work and as a share of its own device's dense peak.

# %%
comparison.told(results)

# %%
comparison.figure(results)

# %%
comparison.same(results)

# %%
comparison.limits(results)

# %%
comparison.every(results)

# %% [markdown]
# ## References

# %% tags=["hide"]
references.listing()
