# %% [markdown]
# # Audit
#
# Do published numbers hold? This notebook audits 5 reports that measured PyTorch's attention on an NVIDIA L4. Their
# numbers were transcribed into `data/reference/`. The cells below recompute each claim from the printed numbers. No GPU
# is needed.

# %% tags=["parameters"]
run = "h200-2026-11-28-main"  # as in the other notebooks; the audit is the same for every run

# %%
from fnmatch import fnmatchcase
from itertools import combinations, pairwise, product
from math import prod, sqrt
from types import SimpleNamespace as Row

import numpy as np
import pandas as pd

import attnlab as al

titles = ["baseline", "how it was made", "custom kernel", "autotuning", "fixed shape"]
documents = {f"{number:03}": title for number, title in enumerate(titles)}
printed = pd.concat([pd.read_csv(al.paths.REFERENCE / f"{name}.csv", dtype=str) for name in documents])
claims = pd.read_csv(al.paths.REFERENCE / "claims.csv", dtype=str).fillna("")
claims[["document", "claim", "rule", "stated", "inputs"]].sample(5, random_state=0)

# %% [markdown]
# ## Numbers as printed
#
# A printed number stands for all numbers that round to it: half a unit of its last digit to each side. So arithmetic
# decides whether numbers differ by rounding, and nobody chooses a tolerance. Counts are exact.

# %%
sheets = pd.read_csv(al.paths.REFERENCE / "datasheets.csv", dtype=str).iloc[:2]  # of the L4 and the A100
units = {"matmul_float16_tflops": "TFLOP/s", "copy_gbs": "GB/s", "l2_mib": "MiB", "memory_gb": "GB"}
units |= {"multiprocessors": "count", "memory_kind": "text"}
sheets = sheets.assign(document=sheets.device.str.split().str[1]).melt("document", [*units], "id", "value")
errors = printed.dropna(subset="plus_minus")
errors = errors.assign(id="±" + errors.id, value=errors.plus_minus)
numbers = pd.concat([printed, errors, sheets.assign(unit=sheets.id.map(units))], ignore_index=True)

# %%
# to seconds, bytes, FLOPs and USD
scales = {"%": 0.01, "thousand": 1e3, "million": 1e6, "ms": 1e-3, "min": 60, "h": 3600, "1/min": 1 / 60}
scales |= {"USD/h": 1 / 3600, "MB": 1e6, "GB": 1e9, "MiB": 2**20, "GB/s": 1e9, "GFLOP/s": 1e9, "TFLOP/s": 1e12}
scale = numbers.unit.map(scales).fillna(1.0)
numbers["v"] = scale * pd.to_numeric(numbers.value.mask(numbers.unit == "text"))
digits = numbers.value.str.extract(r"^[-\d]*\.?(?P<after>\d*)(?:e(?P<exponent>\d+))?$")
step = scale * 10.0 ** (pd.to_numeric(digits.exponent).fillna(0) - digits.after.str.len())
step = step.mask(numbers.unit.isin(["count", "thousand", "million"]), 0.0)

# %%
numbers = numbers.assign(low=numbers.v - step / 2, high=numbers.v + step / 2, text=numbers.value.str.casefold())
sizes = numbers[["batch", "heads", "seq_len", "head_dim"]].astype(float)
numbers[sizes.columns] = sizes
numbers["shape"] = [(*shape, causal == "true") for *shape, causal in sizes.assign(causal=numbers.causal).to_numpy()]
numbers["square"] = 4 * sizes.prod(axis=1, skipna=False) * sizes.seq_len  # FLOPs without a mask
numbers["flops"] = numbers.square * np.where(numbers.causal == "true", (sizes.seq_len + 1) / (2 * sizes.seq_len), 1)
numbers["bytes"] = 8 * sizes.prod(axis=1, skipna=False)  # Q, K, V and O in float16
rows = {(row["document"], row["id"]): Row(**row) for row in numbers.to_dict("records")}

# %% [markdown]
# ## Formulas
#
# A claim names its formula, the row that it is about (`s`), and the rows that it follows from. A formula gives the
# number that should have been printed, or says whether the statement is true.

# %%
formulas = {
    "same": lambda s, a: s.text == a.text if s.unit == "text" else a.v,
    "ratio": lambda s, a, b: a.v / b.v,
    "change": lambda s, after, before: after.v / before.v - 1,
    "reduction": lambda s, after, before: 1 - after.v / before.v,
    "difference": lambda s, a, b: a.v - b.v,
    "product": lambda s, *x: prod(one.v for one in x),
    "sum": lambda s, *x: sum(one.v for one in x),
    "compound": lambda s, *x: prod(1 + one.v for one in x),
    "largest": lambda s, *x: max(one.v for one in x),
    "smallest": lambda s, *x: min(one.v for one in x),
    "rows": lambda s, *x: len(x),
    "distinct shapes": lambda s, *x: len({(one.subject, one.shape) for one in x}),
}

# %%
formulas |= {  # the work of a shape
    "flops": lambda s: s.square,
    "bytes": lambda s: s.bytes,
    "intensity": lambda s: s.flops / s.bytes,
    "throughput": lambda s, a: a.square / a.v,  # as the reports count, also under a mask
    "throughput under the mask": lambda s, a: a.flops / a.v,
    "bandwidth": lambda s, a: a.bytes / a.v,
    "samples per second": lambda s, a: a.batch / a.v,
    "latency per head and batch element": lambda s, a: a.v / (a.batch * a.heads),
    "speedup at equal work": lambda s, a, b: a.v / b.v * b.flops / a.flops,
    "speedup at equal tokens": lambda s, a, b: a.v / b.v * (b.batch * b.seq_len) / (a.batch * a.seq_len),
    "room for the tensors": lambda s: s.high >= s.bytes,
}


# %%
def floor(shape, rate, memory):
    """The least time of a shape that the printed peaks allow, in s: of its FLOPs or of its bytes."""
    return shape.flops / rate.high if shape.flops / rate.v > shape.bytes / memory.v else shape.bytes / memory.high


formulas |= {  # the limits of the hardware
    "regime": lambda s, intensity, rate, memory: (intensity.v > rate.v / memory.v) == ("compute" in s.text),
    "regime of the shape": lambda s, rate, memory: (s.flops / s.bytes > rate.v / memory.v) == ("compute" in s.text),
    "ceiling": lambda s, ceiling: s.low <= ceiling.high,
    "ceiling or cache": lambda s, ceiling, cache: s.low <= ceiling.high or s.bytes <= cache.v,
    "floor": lambda s, rate, memory: s.high >= floor(s, rate, memory),
    "headroom": lambda s, a, rate, memory: s.low <= a.high / floor(a, rate, memory),
    "no headroom": lambda s, a, rate, memory, bar: a.high / floor(a, rate, memory) < bar.v,
    "fits": lambda s, cache: 0.75 * s.bytes <= cache.v,
}

# %%
formulas |= {  # order
    "best throughput": lambda s, *x: max(x, key=lambda one: one.square / one.v).shape == s.shape,
    "best samples per second": lambda s, *x: max(x, key=lambda one: one.batch / one.v).shape == s.shape,
    "best latency per head": lambda s, *x: min(x, key=lambda one: one.v / one.heads).shape == s.shape,
    "least latency": lambda s, *x: min(x, key=lambda one: one.v).subject == s.subject,
    "throughput drops": lambda s, a, *x: all(one.square / one.low < a.square / a.high for one in x),
    "rising": lambda s, *x: all(one.v < other.v for one, other in pairwise(x)),
    "falling": lambda s, *x: all(one.v > other.v for one, other in pairwise(x)),
    "small change": lambda s, after, before: after.low / before.high < 2,
    "at least": lambda s, a: s.v >= a.v,
    "above": lambda s, *x: min(one.v for one in x) > s.v,
    "below": lambda s, *x: max(one.v for one in x) < s.v,
}


# %%
def scaling(s, *x):
    """Whether latency grows with FLOPs as the statement says, as far as the printed digits tell."""
    ratios = [(b.low / a.high, b.high / a.low, b.flops / a.flops) for a, b in pairwise(x)]
    found = {"sub-linear" if high < w else "super-linear" if low > w else "linear" for low, high, w in ratios}
    stated = next(word for word in ("non-linear", "sub-linear", "super-linear", "linear") if word in s.text)
    return found != {"linear"} if stated == "non-linear" else found == {stated}


def overlap(low, high, other_low, other_high):
    same = (low.value, high.value) == (other_low.value, other_high.value)
    return same or (low.v < other_high.v and other_low.v < high.v)


# %%
def apart(s, *x):
    """Whether no intervals overlap; a shape counts once."""
    ends = {low.shape: (low, high) for low, high in zip(x[-2::-2], x[::-2], strict=True)}
    return not any(overlap(*one, *other) for one, other in combinations(ends.values(), 2))


formulas |= {"scaling": scaling, "apart": apart, "overlapping": lambda s, *ends: overlap(*ends)} | {
    "half-width": lambda s, low, high: (high.v - low.v) / (high.v + low.v),
    "standard error": lambda s, deviation, n: 1.96 * deviation.v / sqrt(n.v),
    "lower bound": lambda s, mean, deviation, n: mean.v - 1.96 * deviation.v / sqrt(n.v),
    "upper bound": lambda s, mean, deviation, n: mean.v + 1.96 * deviation.v / sqrt(n.v),
    "measured again": lambda s, low, high: low.low <= s.high and s.low <= high.high,
    "two samples": lambda s, *x: any(one.value != other.value for one, other in zip(x[::2], x[1::2], strict=True)),
    "evidence": lambda s, needed, *x: len(x) >= needed.v,
}


# %%
def inputs_of(claim):
    """The rows of `id`, `003:id` of another report, `L4:column` of a datasheet, `=2`, and of patterns with `*`."""
    names = claim.inputs.split("; ") if claim.inputs else []
    if claim.rule == "evidence":  # a quantity, and how often the report has to state it
        there = [i for (of, i), row in rows.items() if (of, row.quantity) == (claim.document, names[0])]
        names = [names[1], *there]
    for name in names:
        source, _, pattern = name.rpartition(":")
        source = source or claim.document
        if name[0] == "=":
            yield Row(v=float(name[1:]), low=float(name[1:]), high=float(name[1:]), document="")
        elif (source, pattern) in rows:
            yield rows[source, pattern]
        else:
            yield from (row for (of, i), row in rows.items() if of == source and fnmatchcase(i, pattern))


# %% [markdown]
# ## Verdicts
#
# A number *holds* if it prints as stated. It is *rounding* if the printed digits allow the recomputed one. Formulas
# rise or fall with each input, so the ends of the inputs give the ends of the result. Formulas of many inputs rise
# with each.

# %%
def recomputed(claim):
    """Whether a statement is true; for a number the recomputed one, and the least and largest that the digits allow."""
    s, x, formula = rows[claim.document, claim.stated], list(inputs_of(claim)), formulas[claim.rule]

    def at(values):
        return formula(s, *(Row(**vars(one) | {"v": v}) for one, v in zip(x, values, strict=True)))

    found = at([one.v for one in x])
    if isinstance(found, bool):
        return found, np.nan, np.nan
    ends = [(one.low, one.high) for one in x]
    corners = [at(values) for values in (product(*ends) if len(x) < 4 else zip(*ends, strict=True))]
    return found, min(corners), max(corners)


# %%
work = ["bytes", "intensity", "room for the tensors", "throughput under the mask"]
otherwise = dict.fromkeys([*work, "speedup at equal work", "speedup at equal tokens"], "wrong work")
otherwise |= dict.fromkeys(["ceiling", "ceiling or cache", "floor", "headroom"], "exceeds the hardware")
otherwise |= dict.fromkeys(["no headroom", "two samples", "evidence"], "unsupported")


def finding_of(claim):
    s, (found, low, high) = rows[claim.document, claim.stated], recomputed(claim)
    slack = 1e-12 * abs(s.high)  # of floating point
    if found is True or (found is not False and s.low - slack <= found <= s.high + slack):
        return "holds"
    if found is not False and low <= s.high + slack and s.low <= high + slack:
        return "rounding"
    others = {one.document for one in inputs_of(claim)} - {claim.document, ""}
    return otherwise.get(claim.rule, "contradicts another" if others else "contradicts itself")


# %% [markdown]
# A claim that holds falls with a premise that does not: its finding is *refuted premise*, however right its arithmetic.

# %%
claims["finding"] = [finding_of(claim) for claim in claims.itertuples()]
premises, fine = claims.rests_on.str.split("; "), ["holds", "rounding"]
for _ in range(9):  # the longest chain of premises is shorter
    refuted = set(claims.id[~claims.finding.isin(fine)])
    falls = claims.finding.isin(fine) & np.array([not refuted.isdisjoint(names) for names in premises])
    claims.loc[falls, "finding"] = "refuted premise"
al.holds("Of 463 claims 224 stand.", (len(claims), claims.finding.isin(fine).sum()) == (463, 224))
al.table(pd.crosstab(claims.finding, claims.document, margins=True, margins_name="all").rename(columns=documents))

# %% [markdown]
# ## The most informative claims
#
# They were chosen by hand. A recomputed number is in the unit of the printed one.

# %%
told = claims[claims.telling != ""].sort_values("telling", key=pd.to_numeric)
about = pd.DataFrame([vars(rows[claim.document, claim.stated]) for claim in told.itertuples()], told.index)
found = [recomputed(claim)[0] for claim in told.itertuples()]
found = [np.nan if isinstance(one, bool) else one for one in found] / about.unit.map(scales).fillna(1.0)
shown = told.assign(stated=about.value, recomputed=found, unit=about.unit.replace({"text": "", "1": "", "count": ""}))
al.table(shown[["document", "claim", "stated", "recomputed", "unit", "finding", "note"]])

# %% [markdown]
# ## The advice that is left
#
# Advice falls with a claim that it rests on. It is unsupported if nothing worse is said of these claims.

# %%
advice = pd.read_csv(al.paths.REFERENCE / "advice.csv", dtype=str)
finding = claims.set_index("id").finding
rests = [set(finding[names]) - set(fine) for names in advice.claims.str.split("; ")]
advice["verdict"] = ["falls" if bad - {"unsupported"} else "unsupported" if bad else "stands" for bad in rests]
al.holds("4 of 23 pieces of advice stand.", (len(advice), (advice.verdict == "stands").sum()) == (23, 4))
al.table(advice.sort_values("verdict", ascending=False)[["document", "advice", "verdict", "instead"]])
