# %% [markdown]
# # Models
#
# Does a faster kernel make a faster model? Models of Hugging Face transformers generate text with their own SDPA and
# with `attnlab.attend` in its place. The weights of GPT-2 and the Llamas are random; `small` is a trained model.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # its device chooses the records
measure = False  # True: the last cells measure on this machine
model = ""  # a folder that save_pretrained wrote; without one, a small Llama with random weights
batch = 2
prompt = 128
tokens = 9
rounds = 12

# %%
import json
import random
import time
from importlib.util import find_spec

import pandas as pd
from IPython.display import display

import attnlab as al

# %%
device = json.loads((al.paths.data() / run / "manifest.json").read_text())["device"]["name"]
folder = al.paths.data() / "models"
models = pd.read_parquet(folder / "models.parquet").query("device == @device") if folder.is_dir() else []
here = len(models) > 0
if here:
    tables = (pd.read_parquet(folder / f"{name}.parquet") for name in ("samples", "outputs", "kernels"))
    samples, outputs, kernels = (table.query("record in @models.record") for table in tables)
print(f"Records on {device}: {', '.join(models.record.unique()) if here else 'none'}.")

# %%
sizes = ["record", "model", "layers", "heads", "kv_heads", "head_dim", "weights", "queued", "commit"]
if here:
    short = {"weights": models.weights.str[:15], "commit": models.commit.str[:8]}
    display(al.table(models[sizes].assign(**short), "The models."))


# %% [markdown]
# **How the records were made.** attnlab 0.1.0 recorded them, at the commits in the table, by a command that later
# versions do not have. Each replicate was a process of its own, with a locked environment. In each round, SDPA,
# `attend` and SDPA again, the control, continued the same new prompts in random order. The host's clock times the first
# token and the later ones, until they are on the host. CUDA events time the other phases: single steps that read the
# prompt from a static cache. Where `queued` holds, the host launched a CUDA graph while the device was busy, so the
# launch does not count. Prompts of `small` are cut from Python's standard library. Other prompts are random tokens.
#
# ## The gain
#
# A user waits for the first token while the model reads the prompt: many queries. Each later token is one query over
# the cache of keys and values. A CUDA graph hides the launches by the host. A draft of 8 tokens is read in one step,
# as in speculative decoding.

# %%
def verdicts_of(samples):
    """A row for each model, prompt and phase: `attend` against transformers' SDPA."""
    parts = samples.groupby(["record", "model", "phase"], sort=False)
    verdicts = [al.compare(part, "transformers.sdpa").assign(model=key[1], phase=key[2]) for key, part in parts]
    verdicts = pd.concat(verdicts).rename(columns={"seq_len": "prompt"})
    verdicts = verdicts.sort_values(["model", "prompt"], kind="stable")
    return verdicts.assign(case=verdicts.model + ", prompt " + verdicts.prompt.astype(str))


shown = ["model", "prompt", "phase", "baseline_us", "candidate_us", "speedup", "low", "high"]
shown += ["smallest_effect", "decision"]

# %%
if here:
    verdicts = verdicts_of(samples)
    is_generated = verdicts.phase.isin(["first token", "later tokens"])
    display(al.plot.dots(verdicts[is_generated], "speedup", "case", hue="phase"))  # host and device
    display(al.plot.dots(verdicts[~is_generated], "speedup", "case", hue="phase"))
    display(al.table(al.with_interval(verdicts[shown], "speedup"), "attnlab.attend against transformers' SDPA."))

# %% tags=["published"]
graph = al.where(verdicts, phase="one token, CUDA graph", model=["llama-64", "llama-128"], prompt=4096).speedup
al.holds("With 4,096 tokens in the cache, a step of a Llama is 1.31x to 1.33x faster.", graph.between(1.305, 1.335))

# %% tags=["published"]
small = al.where(verdicts, phase="one token, CUDA graph", model="gpt2")
al.holds(
    "A step of GPT-2 is slower: the driver leaves longer gaps between the kernels of its graph, for an unknown reason.",
    small.decision == "slower",
)

# %% [markdown]
# The share of attention in the time of all kernels bounds the gain.

# %%
names = {"transformers.sdpa": "SDPA", "attnlab.attend": "attend", "control.transformers.sdpa": "SDPA again"}
if here:
    by = ["model", "seq_len", "phase", "implementation"]
    times = kernels.groupby(by, sort=False)[["attention_us", "total_us"]].median()
    share = (100 * times.attention_us / times.total_us).unstack(sort=False).rename(columns=names)
    share = share.rename_axis(index={"seq_len": "prompt"}).reset_index()
    display(al.table(share, "Attention's share of the device's time, in %."))

# %% [markdown]
# ## Do the outputs agree?
#
# Errors are those of the logits at the last token of the prompts, against float32. With random weights the likeliest
# tokens are close to each other: after one that differs, all later ones may. The control is SDPA again.

# %%
if here:
    groups = outputs.rename(columns={"seq_len": "prompt"}).groupby(["model", "prompt", "implementation"], sort=False)
    errors = groups.max_error.max().unstack().rename(columns=names).drop(columns="SDPA again")
    equal = groups.equal_tokens.sum().unstack().rename(columns=names)
    both = errors.add_suffix(": error").join(equal.add_suffix(": tokens"))
    display(al.table(both, "The largest errors, and the number of tokens that are those of SDPA."))

# %% [markdown]
# ## Measure
#
# With `measure = True`, the cells below measure here, in seconds on a CPU: a model generates with each attention in
# turns. They need PyTorch and transformers: `pip install 'attnlab[cpu,model]'`, or `cuda` in place of `cpu`. On a CPU
# and without a dispatch table, `attend` is SDPA. The intervals hold for this process. Prompts are random tokens.

# %%
lacking = [name for name in ("torch", "transformers") if find_spec(name) is None]
if not measure:
    print("Nothing is measured: `measure` is False.")
elif lacking:
    print(f"Nothing is measured: {' and '.join(lacking)} is not installed.")
if measures := measure and not lacking:
    import torch
    import transformers

    al.register()  # from now on transformers knows attn_implementation="attnlab"
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if place.type == "cuda" else torch.float32
    turns = {"transformers.sdpa": "sdpa", "attnlab.attend": "attnlab", "control.transformers.sdpa": "sdpa"}


# %%
def build(folder="", **more):
    """A model of a folder, of which no code runs; or a small Llama, of weights drawn at random."""
    how = {"dtype": dtype, "attn_implementation": "sdpa"}
    if folder:
        how |= {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
        net = transformers.AutoModelForCausalLM.from_pretrained(folder, **how)
    else:
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256}
        config = transformers.LlamaConfig(**sizes | {"intermediate_size": 512, "vocab_size": 512} | more)
        net = transformers.AutoModelForCausalLM.from_config(config, **how)
    return net.to(place).eval().requires_grad_(False)


# %%
def generate(net, ids):
    """The likeliest tokens after the prompts, and the time of each in µs, until it is on the host."""
    cache, made, times_us = transformers.DynamicCache(config=net.config), [], []
    for _ in range(tokens):
        begin = time.perf_counter_ns()
        logits = net(ids, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        ids = logits.argmax(-1, keepdim=True)
        made.append(ids.cpu())
        times_us.append((time.perf_counter_ns() - begin) / 1e3)
    return torch.cat(made, 1), times_us


# %%
def take_turns(net, ids):
    """Generations by each attention from the same prompts, in random order: tokens by name, and rows of latencies."""
    made, rows = {}, []
    for position, name in enumerate(random.sample(list(turns), len(turns))):
        net.set_attn_implementation(turns[name])
        made[name], times_us = generate(net, ids)
        for phase, latency_us in (("first token", times_us[0]), ("later tokens", sum(times_us[1:]))):
            rows.append({"implementation": name, "position": position, "phase": phase, "latency_us": latency_us})
    return made, rows


# %%
if measures:
    net = build(model)
    config = net.config.get_text_config()
    prompts = torch.randint(config.vocab_size, (rounds + 1, batch, prompt), device=place)
    take_turns(net, prompts[-1])  # what is done at first calls only
    done = [take_turns(net, ids) for ids in prompts[:-1]]
    measured = pd.concat([pd.DataFrame(rows).assign(round=number) for number, (_, rows) in enumerate(done)])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    sizes = {"batch": batch, "heads": config.num_attention_heads, "seq_len": prompt, "head_dim": head_dim}
    about = {"record": "here", "model": net.config.model_type, **sizes}
    here_verdicts = verdicts_of(measured.assign(**about))
    display(al.table(al.with_interval(here_verdicts[shown], "speedup"), f"Measured here, on {place.type}."))
    equal = {name: sum(int((made[name] == made["transformers.sdpa"]).sum()) for made, _ in done) for name in turns}
    print(f"Of {rounds * batch * tokens} tokens, those of SDPA are: {equal}")

# %% [markdown]
# ## Prompts of unlike lengths
#
# On a GPU, 2 Llamas of 8 layers read a batch of 16 prompts, padded at the left to 2,048 tokens. A law draws the lengths,
# with the median 512. Transformers' SDPA gets a mask. `attend` packs the prompts and calls `kernel.ragged`.

# %%
reads = measures and place.type == "cuda"
if measures and not reads:
    print("Prompts of unlike lengths are not measured: that needs an NVIDIA GPU.")
unlike = al.Shape(16, 16, 2048, 64, causal=True, kv_heads=4, lengths="log-normal 512 1")
print(f"{sum(unlike.sequences):,} of {unlike.batch * unlike.seq_len:,} tokens; lengths {sorted(unlike.sequences)}")


# %%
def first_token(net, ids, mask):
    """The time in µs until the first tokens after padded prompts are on the host."""
    begin = time.perf_counter_ns()
    net(ids, attention_mask=mask, logits_to_keep=1).logits[:, -1].argmax(-1).cpu()
    return (time.perf_counter_ns() - begin) / 1e3


# %%
def read(head_dim):
    """A row for each attention and round: the time to the first token of a model with this head dimension."""
    width, rows = unlike.heads * head_dim, []
    sizes = {"num_attention_heads": unlike.heads, "num_key_value_heads": unlike.kv_heads, "num_hidden_layers": 8}
    net = build(**sizes, hidden_size=width, intermediate_size=4 * width, max_position_embeddings=unlike.seq_len)
    places = torch.arange(unlike.seq_len, device=place)
    mask = (places >= unlike.seq_len - torch.tensor(unlike.sequences, device=place)[:, None]).long()
    for number in range(-1, rounds):
        ids = torch.randint(net.config.vocab_size, mask.shape, device=place)
        for name in random.sample(list(turns), len(turns)):
            net.set_attn_implementation(turns[name])
            rows.append({"implementation": name, "round": number, "latency_us": first_token(net, ids, mask)})
    return pd.DataFrame(rows).query("round >= 0").assign(head_dim=head_dim, model=f"llama, D = {head_dim}")


# %%
if reads:
    about = {axis: getattr(unlike, axis) for axis in ("batch", "heads", "kv_heads", "seq_len", "lengths")}
    firsts = pd.concat([read(head_dim) for head_dim in (64, 128)]).assign(record="here", phase="first token", **about)
    display(al.table(al.with_interval(verdicts_of(firsts)[shown], "speedup"), "Padded prompts of unlike lengths, here."))
