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
study: str = "quick"  # what to measure: a file in studies/
device: str = "auto"  # auto, cuda, cpu, or none to measure nothing

# %%
from attnlab import select_run

show = select_run.exhibits(run, study, device)
show

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
#
# That is for a cold cache. A warm L2 of $L$ bytes may hold that much of $M$, which then takes its rate $\lambda$:
# $\max\left(M / \lambda,\; (M - L) / \beta\right)$ stands in for $M / \beta$.
#
# The rates themselves are on [01_environment](01_environment.ipynb#environment.ceilings).

# %%
show("roofline.roofline")

# %%
show("roofline.regimes")

# %% [markdown]
# ## Along the sequence length

# %%
show("roofline.floors")

# %% [markdown]
# ## How near does each come?

# %%
show("roofline.speed_of_light")

# %% [markdown]
# ## Beside what others published
#
# Every number that was found, in this project's count of work and as a share of its own device's dense peak.

# %%
show("roofline.literature")

# %%
show("roofline.literature.shares")

# %%
show("roofline.literature.limits")

# %%
show("roofline.literature.every")
