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
from attnlab.exhibits.catalogue import Show

show = Show()

# %%
show("audit.summary")

# %% [markdown]
# ## How a claim is judged
#
# A claim is a line of `claims.csv`: a rule, the number that it is about, and the numbers that it should follow from. A
# printed number stands for the range of all numbers that round to it, half a unit of its last digit to each side, and these
# ranges are carried through the arithmetic. So whether numbers differ by rounding is computed, and no tolerance is chosen.

# %% [markdown]
# ## The same configuration, measured again
#
# The reports measured many configurations more than once on the same model of card, an unplanned replication.

# %%
show("audit.across")

# %% [markdown]
# ## The corrected roofline
#
# The work of a shape is $4BHS^2D$ FLOPs, or $2BHS(S+1)D$ under a causal mask; it moves at least $Q$, $K$, $V$ and $O$
# once. The ceilings are those of the datasheet: dense float16 on the tensor cores, and memory.

# %%
show("audit.roofline")

# %% [markdown]
# ## What is left of the advice

# %%
show("audit.survives")

# %% [markdown]
# ## Every claim
#
# First, what each finding means and how often it was made, and the most informative claims, chosen by hand.

# %%
show("audit.documents")
