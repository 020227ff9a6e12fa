# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Audit
#
# Do published numbers hold? Five reports on PyTorch's attention and one kernel, on an NVIDIA L4, were transcribed number by
# number into `data/reference/`, and every claim that can be recomputed from what they print is. The page is the same for
# every run: it measures nothing and needs no GPU.

# %% tags=["parameters"]
run: str = ""  # as in the other notebooks; the audit is the same for all
study: str = "quick"  # likewise
device: str = "auto"  # likewise

# %%
from attnlab.analyse import audited

# %%
audited.summary()

# %% [markdown]
# ## How a claim is judged
#
# A claim is a line of `claims.csv`: a rule, the number that it is about, and those that it should follow from. A printed
# number stands for all that would have been printed so, half a unit of its last digit to each side, and these ranges are
# carried through the arithmetic. So whether numbers differ by rounding is computed, and no tolerance is chosen.

# %%
audited.meanings()

# %%
audited.counts()

# %%
audited.counted()

# %% [markdown]
# ## What tells the most

# %%
audited.telling()

# %%
audited.furthest()

# %% [markdown]
# ## The same configuration, measured again
#
# The reports measured much of the same on the same model of card. Nobody planned it so, but that is a replication.

# %%
audited.across_told()

# %%
audited.across()

# %% [markdown]
# ## The corrected roofline
#
# The work of a shape is $4BHS^2D$ FLOPs, or $2BHS(S+1)D$ under a causal mask; it moves at least $Q$, $K$, $V$ and $O$
# once. The ceilings are those of the datasheet: dense float16 on the tensor cores, and memory.

# %%
audited.roofline_told()

# %%
audited.roofline()

# %%
audited.standing()

# %% [markdown]
# ## What is left of the advice

# %%
audited.survives()

# %% [markdown]
# ## Every claim

# %%
audited.documents()
