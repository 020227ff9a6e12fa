"""The picture and the tables of README.md and kernels/README.md, made from the published run."""

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd

from attnlab import frames, plot
from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.base.files import write_atomically
from attnlab.roofline import add_work
from attnlab.runs.schema import Run
from attnlab.study import studies
from attnlab.study.implementations import DISPATCH, FALLBACK
from attnlab.study.ladder import BEST, Recorded
from attnlab.study.shapes import shape_of
from attnlab.study.values import ZEROS
from attnlab.tables import markdown, with_interval

WARM = {"clock": "device", "cache": "warm"}
PLAIN = {"direction": "forward", "layout": "heads first", "lengths": "equal"}
SHAPE = [axis for axis in frames.AXES if axis != "values"]
OURS = {
    "training": (
        "the forward and the backward pass (`training`: ours is deterministic, `peer.flash4` isn't)",
        DISPATCH,
        "direction == 'training'",
    ),
    "ragged": ("unlike lengths", "kernel.ragged", "lengths != 'equal'"),
    "decode": ("64 queries over caches", BEST, "seq_len == 64"),
}
"""By study whose runs add rows: a label of these rows, our implementation, and a query for its cases."""


def markers(name: str) -> tuple[str, str]:
    """The lines between which a README holds a generated block."""
    return f"<!-- {name}: written by `attnlab readme` -->", f"<!-- /{name} -->"


def update(name: str, *others: str) -> list[Path]:
    """Write the blocks of both READMEs and the picture from a run of the study `gpu`; returns the files.

    Args:
        others: runs of studies of `OURS`, whose rows are added.

    Raises UserError: there is no such run, it is of another study or of a CPU, or a README has no markers.
    """
    run, *more = loaded = [frames.load(one) for one in (name, *others)]
    for one in loaded:
        device, study = one.manifest["device"], one.manifest["study"]["name"]
        wanted = ["gpu"] if one is run else list(OURS)
        if not one.complete or device["kind"] != "cuda" or study not in wanted:
            known = " or ".join(map(repr, wanted))
            raise UserError(f"{one.name!r} is no complete run of the study {known} on a GPU: name another run")
    picture = paths.ROOT / "figures" / f"{name}.svg"
    written = {picture: _picture(run)}
    for readme, block, text in (
        ("README.md", "run", _results(run, more)),
        ("kernels/README.md", "ladder", _ladder(run)),
    ):
        begin, end = markers(block)
        path = paths.ROOT / readme
        before = path.read_text()
        if not (found := re.search(f"{re.escape(begin)}.*?{re.escape(end)}", before, re.DOTALL)):
            raise UserError(f"{paths.shown(path)} has no lines {begin} and {end} to write between: put them in")
        written[path] = before.replace(found[0], f"{begin}\n\n{text}\n\n{end}").encode()
    for path, content in written.items():
        write_atomically(path, content)
    return list(written)


def _cases(run: Run) -> pd.DataFrame:
    is_shown = run.samples["implementation"].str.match(r"(sdpa|peer)\.|kernel\.best$")
    cases = frames.summarize(run.samples[is_shown & frames.is_equal(run.samples, WARM)])
    return cases[frames.is_equal(cases, PLAIN)]


def _picture(run: Run) -> bytes:
    cases = add_work(_cases(run))
    cases = cases[(cases["values"] == "normal") & (cases["head_dim"] == 128) & (cases["dtype"] == "bfloat16")]
    cases = cases[(cases["kv_len"] == cases["seq_len"]) & (cases["kv_heads"] == cases["heads"])]
    cases = cases[cases["batch"] * cases["seq_len"] == 16384]
    cases = cases[cases["implementation"].isin(["kernel.best", "peer.flash4", "sdpa.auto", "sdpa.flash"])]
    figure = plot.lines(cases, "seq_len", "throughput_tflops", col="causal")
    figure.savefig(buffer := io.BytesIO(), format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _results(run: Run, others: list[Run]) -> str:
    """A row for each shape, on the input distribution with our kernel's least lead over the fastest other."""
    samples = run.samples[frames.is_equal(run.samples, WARM | PLAIN) & (run.samples["values"] != ZEROS)]
    fastest = frames.over_fastest(samples, BEST, [FALLBACK])
    least = frames.worst(fastest)
    is_worst = least["speedup"] == least["speedup"].min()
    grouped = (least["kv_heads"] < least["heads"]) | (least["head_dim"] == 256)
    rows = least[(least["n"] > 1) | grouped | (least["seq_len"] == 16384) | is_worst].assign(kv=-least["kv_heads"])
    rows = rows.sort_values(["head_dim", "kv", "seq_len", "batch", "causal"])
    errors = frames.compare_errors(run.checks[frames.is_equal(run.checks, PLAIN)])
    each = [_table(rows, errors), *map(_more, others)]
    table, leads = pd.concat([one for one, _ in each]), pd.concat([one for _, one in each])
    lines = markdown(table).split("\n")
    bold = 2 + int(leads.to_numpy().argmin())
    lines[bold] = "| " + " | ".join(f"**{cell}**" for cell in lines[bold].strip("| ").split(" | ")) + " |"
    alt = "Throughput over the sequence length at head dimension 128, with and without the causal mask"
    ours = frames.worst(errors, frames.AXES, "rms_ratio").set_index("candidate").loc[BEST]
    leads = frames.worst(fastest, [axis for axis in frames.AXES if axis != "head_dim"]).set_index("head_dim")["mean"]
    about = f"{run.manifest['device']['name']}, PyTorch {run.manifest['environment']['packages']['torch']}"
    lead = ", ".join(f"{mean:.2f} at D = {head_dim}" for head_dim, mean in leads.items())
    of = [(*OURS[other.manifest["study"]["name"]][:2], other.name) for other in others]
    least = "the least lead of each head dimension"
    added = "".join(f" Rows of {words}: {least}, `{name}` in run `{other}`." for words, name, other in of)
    legend = (
        f"*{about}, run `{run.name}`, device clock, warm cache; the picture has bfloat16 and 16,384 tokens. A shape is "
        "batch, heads (of Q/K), queries (over keys), head dimension. attnlab is `kernel.best`. Each row has the input "
        "distribution with its least lead over the fastest other, of N timed (`worst of`). The lead has its 95 % "
        f"interval, the error is the largest RMS error. Bold: the worst case. Geometric means of {len(fastest)} cases: "
        f"lead {lead}; error {ours['mean']:.2f} times cuDNN's, {ours['rms_ratio']:.2f} at worst ({ours['values']})."
        f"{added}*"
    )
    return f"![{alt}](figures/{run.name}.svg)\n\n{legend}\n\n" + "\n".join(lines)


def _more(run: Run) -> tuple[pd.DataFrame, pd.Series]:
    """Rows of a run of a study in `OURS`, for each head dimension the shape with the least lead; and these leads."""
    _, name, own = OURS[run.manifest["study"]["name"]]
    samples = run.samples[frames.is_equal(run.samples, WARM)].query(own)
    rows = frames.worst(frames.over_fastest(samples, name)).sort_values("speedup").drop_duplicates("head_dim")
    checks = run.checks.query(own)
    has_cudnn = (checks["implementation"] == "sdpa.cudnn").any()
    return _table(rows, frames.compare_errors(checks) if has_cudnn else None)


def _table(rows: pd.DataFrame, errors: pd.DataFrame | None) -> tuple[pd.DataFrame, pd.Series]:
    """The README's table of rows of `worst`, with the candidate's largest errors over cuDNN's; and the rows' leads."""
    largest = pd.Series("—", index=rows.index)
    if errors is not None:
        ours = errors[errors["candidate"].isin(rows["candidate"])].groupby(SHAPE)["rms_ratio"].max()
        largest = ours.reindex(pd.MultiIndex.from_frame(rows[SHAPE])).map("{:.2f}".format)
    table = pd.DataFrame(
        {
            "B, H, S, D": [_shape_words(row) for row in rows.to_dict("records")],
            "SDPA (µs)": rows["sdpa_us"].map("{:,.1f}".format),
            "fastest other (µs)": rows["baseline_us"].map("{:,.1f}".format) + " " + rows["fastest"],
            "attnlab (µs)": rows["candidate_us"].map("{:,.1f}".format),
            "over SDPA": rows["over_sdpa"].map("{:.2f}".format),
            "over fastest other": with_interval(rows, "speedup")["speedup"],
            "worst of": rows["n"].astype(str) + ": " + rows["values"],
            "error / cuDNN's": largest.array,
        }
    )
    return table, rows["speedup"]


def _shape_words(row: dict[str, Any]) -> str:
    sequences = shape_of(row).sequences
    tokens = f"{min(sequences)} to {row['seq_len']}" if row["lengths"] != "equal" else row["seq_len"]
    keys = f" over {row['kv_len']}" if row["kv_len"] != row["seq_len"] else ""
    heads = f"{row['heads']}" if row["kv_heads"] == row["heads"] else f"{row['heads']}/{row['kv_heads']}"
    mask = " causal" if row["causal"] and row["seq_len"] != 1 else ""
    direction = "" if row["direction"] == "forward" else f" {row['direction']}"
    return f"{row['batch']}, {heads}, {tokens}{keys}, {row['head_dim']}{mask} {row['dtype']}{direction}"


def _ladder(run: Run) -> str:
    """A row for each kernel at the target: its median, and its speedup over the kernel before it and over cuDNN."""
    at = frames.target(run)
    samples = run.samples[frames.is_equal(run.samples, at)]
    medians = with_interval(frames.summarize(samples), "median_us", "low_us", "high_us")
    medians = medians.set_index("implementation")["median_us"]
    over_cudnn = with_interval(frames.compare(samples, "sdpa.cudnn"), "speedup").set_index("candidate")["speedup"]
    rows = []
    for rung in map(Recorded.model_validate, run.manifest["ladder"]):
        name, before, step = rung.implementation, rung.before, "—"
        if name not in medians.index:
            continue
        if before in medians.index:
            pair = samples[samples["implementation"].isin([before, name])]
            step = with_interval(frames.compare(pair, before), "speedup")["speedup"].iloc[0]
        rows.append([name, rung.title, medians[name], step, over_cudnn.get(name, "—")])
    columns = ["kernel", "change", "median (µs)", "over the kernel before", "over sdpa.cudnn"]
    target = studies.recorded(run.manifest).target_shape.label
    table = markdown(pd.DataFrame(rows, columns=columns))
    return f"At {target}, device clock, warm cache, run `{run.name}`.\n\n{table}"
