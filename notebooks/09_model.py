# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Models
#
# Does a faster kernel make a faster model? Models of Hugging Face transformers generate text with their own SDPA and
# with `attnlab.attend` in its place. The weights of GPT-2 and the Llamas are random; `small` is a trained model.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # its device chooses the records
records = ["h200-models-5", "h200-small"]  # in data/models/

# %%
import json

import pandas as pd
from IPython.display import display

import attnlab as al

# %%
records = json.loads(records) if isinstance(records, str) else records  # `papermill -p` passes a list as text
folder, device = al.paths.data() / "models", al.load(run).manifest["device"]["name"]
manifests = {name: json.loads((folder / name / "manifest.json").read_text()) for name in records}
here = [name for name in records if manifests[name]["device"]["name"] == device]
print(f"Records on {device}: {', '.join(here) or 'none; `make model` makes one'}.")


def read(name):
    """A table of the records that were made on the run's device."""
    tables = [pd.read_parquet(folder / record / f"{name}.parquet").assign(record=record) for record in records]
    return pd.concat(tables).query("record in @here")


# %%
plans = [model | {"record": name} for name in here for model in manifests[name]["plan"]["models"]]
models = pd.DataFrame(plans, columns=["record", "name", "layers", "heads", "kv_heads", "head_dim"]).rename(
    columns={"name": "model"}
)
al.table(models, "The models.") if here else None

# %% [markdown]
# ## What is gained
#
# A user waits for the first token while the model reads the prompt: many queries. Each later token is one query over
# the cache of keys and values. A CUDA graph hides the launches by the host. A draft of 8 tokens is read in one step,
# as in speculative decoding.

# %%
phases = {"first_us": "first token", "rest_us": "later tokens", "graph_us": "one token, CUDA graph"}
phases |= {"drafted_us": "8 drafted tokens", "drafted_graph_us": "8 drafted tokens, CUDA graph"}
samples = read("samples").rename(columns={"attention": "implementation", "prompt": "seq_len"} | phases)
samples = samples.merge(models[["record", "model", "heads", "head_dim"]])
keys = ["record", "model", "implementation", "batch", "heads", "seq_len", "head_dim", "replicate"]
long = samples.melt(keys, list(phases.values()), "clock", "latency_us").dropna(subset="latency_us")
verdicts = [
    al.compare(part.assign(latency_us=part.latency_us.astype(float)), "transformers.sdpa").assign(model=model)
    for (_, model), part in long.groupby(["record", "model"], sort=False)
]

# %%
if verdicts:
    verdicts = pd.concat(verdicts).rename(columns={"seq_len": "prompt", "clock": "phase"})
    verdicts["case"] = verdicts.model + ", prompt " + verdicts.prompt.astype(str)
    is_generated = verdicts.phase.isin(["first token", "later tokens"])
    display(al.plot.dots(verdicts[is_generated], "speedup", "case", hue="phase"))  # host and device
    display(al.plot.dots(verdicts[~is_generated], "speedup", "case", hue="phase"))

# %%
shown = [
    "model",
    "prompt",
    "phase",
    "baseline_us",
    "candidate_us",
    "speedup",
    "low",
    "high",
    "smallest_effect",
    "decision",
]
al.table(al.with_interval(verdicts[shown], "speedup"), "attnlab.attend against transformers' SDPA.") if here else None

# %% tags=["published"]
graph = al.where(verdicts, phase="one token, CUDA graph", model=["llama-64", "llama-128"], prompt=4096).speedup
al.holds("With 4,096 tokens in the cache, a step of a Llama is 1.31x to 1.33x faster.", graph.between(1.305, 1.335))

# %% tags=["published"]
small = al.where(verdicts, phase="one token, CUDA graph", model="gpt2")
al.holds(
    "A step of GPT-2 is slower: the driver leaves longer gaps between its kernels (docs/models.md).",
    small.decision == "slower",
)

# %% [markdown]
# ## Do the outputs agree?
#
# Errors are those of the logits at the last token of the prompts, against float32. With random weights the likeliest
# tokens are close to each other: after one that differs, all later ones may. The control is SDPA again.

# %%
short = {"transformers.sdpa": "SDPA", "attnlab.attend": "attend", "control.transformers.sdpa": "SDPA again"}
by = ["model", "prompt", "attention"]
errors = read("outputs").groupby(by, sort=False).max_error.max().unstack().rename(columns=short)
errors = errors.drop(columns="SDPA again", errors="ignore").add_suffix(": error")
agreeing = read("samples").groupby(by, sort=False).agreeing.sum().unstack().rename(columns=short)
both = errors.join(agreeing.add_suffix(": tokens"))
al.table(both, "The largest errors, and the number of tokens that are those of SDPA.") if here else None

# %% [markdown]
# ## Measure
#
# `make model PARAMS="models=gpt2 batch=1,8 prompt=512,1024"` measures in fresh processes, with a control, and writes a
# record to `data/models/`.
