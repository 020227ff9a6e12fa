"""One interactive page about a run: choose clock, cache, type, mask, values and baseline; click a cell for its samples.

`explore` returns an Altair chart, which JupyterLab shows. `write` saves it as one HTML file, which needs no network.
The page computes nothing: its numbers come from `attnlab.compare`, and its sentences from `attnlab.statement`.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attnlab.base.errors import UserError
from attnlab.base.files import write_atomically
from attnlab.frames import KEY, compare
from attnlab.tables import heading, statement

SAMPLES = 40  # the most samples of a case: evenly spaced quantiles from the smallest to the largest
BASELINES = ("sdpa.auto", "sdpa.cudnn", "sdpa.flash", "kernel.best")  # and the fastest peer, if a run has them
CHOICES = ("baseline", "clock", "cache", "dtype", "mask", "head_dim", "values")  # the columns that a drop-down fixes
FIRST = ("kernel.best", "sdpa.auto", "device", "warm", "float16", "none", "64", "normal")  # selected first, if measured
MIME = "application/vnd.vegalite.v5+json"  # the newest that JupyterLab 4 draws without extensions
INK, ACCENT = "CanvasText", "#e6007a"  # of text, in light and dark themes; of the chosen cell and of medians
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
HERE, CANDIDATE, BASELINE = "\ue000", "\ue001", "\ue002"  # placeholders for a number and for names in a pattern
SIGNS = "Blue is faster than the baseline. “=”: equivalent, “?”: inconclusive."
DOTS = f"Click a cell for its statement and {SAMPLES} quantiles of its samples."
PAGE = """<!DOCTYPE html><html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'unsafe-inline' 'unsafe-eval'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>
:root { color-scheme: light dark; font: 14px/1.4 system-ui, sans-serif; }
#chart { display: flex; flex-direction: column; overflow-x: auto; }
form.vega-bindings { order: -1; display: flex; flex-wrap: wrap; gap: .4rem 1rem; margin-bottom: .6rem; }
</style>
<main id="chart"><noscript>This page needs JavaScript.</noscript></main>
<script>
%s
const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : undefined;
vegaEmbed("#chart", %s, {actions: false, renderer: "svg", theme, config: {background: "transparent"}});
</script>
"""


class Explorer(alt.VConcatChart):
    """The chart of `explore`, which JupyterLab draws without a network."""

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {MIME: self.to_dict(), "text/plain": "An interactive chart: open the notebook in JupyterLab."}


def explore(run: Any) -> alt.VConcatChart:
    """A heat map of speedups (candidates by shapes) with drop-downs; a click shows samples in µs and the statement.

    Raises UserError if the run has no comparison.
    """
    cases = _cases(run.samples[~run.samples["implementation"].str.startswith("control.")])
    verdicts = _verdicts(run.samples, cases)
    patterns, verdicts["pattern"], verdicts["numbers"] = _patterns(verdicts)
    rows = verdicts[["case", "base", "baseline", "speedup", "decision", "pattern", "numbers"]].round({"speedup": 3})
    known = cases[["case", "implementation", "shape", *(name for name in CHOICES if name in cases)]]
    shown = alt.Chart(_csv(rows, "speedup"))
    shown = shown.transform_lookup("case", alt.LookupData(_csv(known), "case", [*known.columns[1:]]))
    for name in CHOICES:
        shown = shown.transform_filter(f"datum['{name}'] === choice_{name}")
    likes = verdicts[[*CHOICES, "candidate"]].astype(str).isin(FIRST).sum(axis=1)
    opening = verdicts.loc[(likes + (verdicts["shape"] == verdicts["shape"].mode()[0])).idxmax()]
    chosen = {"implementation": opening["candidate"], "shape": opening["shape"]}
    click = alt.selection_point("click", fields=[*chosen], empty=False, value=[chosen])
    one = shown.transform_filter(click)
    parts = [_heatmap(shown, click, cases), _text(one, _csv(patterns)), _dots(one, _csv(cases[["case", "samples"]]))]
    chart = Explorer(vconcat=parts, title=alt.TitleParams(run.name, subtitle=[SIGNS, DOTS], anchor="start"))
    texts = verdicts[[*CHOICES]].astype(str)
    for name in CHOICES:
        options = alt.binding_select(options=[*texts[name].unique()], name=f"{heading(name)} ")
        chart = chart.add_params(alt.param(f"choice_{name}", value=str(opening[name]), bind=options))
    measured = [*texts.drop_duplicates().agg("|".join, axis=1)]
    return chart.add_params(alt.param("measured", value=measured)).configure_view(stroke=None)


def write(run: Any, path: Path) -> None:
    """Save the page of `explore` as one HTML file, atomically; no text of the run can end its script."""
    from vl_convert import javascript_bundle  # a JavaScript engine, which explore doesn't need

    data = json.dumps(explore(run).to_dict(), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    path.parent.mkdir(parents=True, exist_ok=True)
    code = javascript_bundle()  # type: ignore[call-arg]
    write_atomically(path, (PAGE % (html.escape(run.name), code, data)).encode())


def _cases(samples: pd.DataFrame) -> pd.DataFrame:
    """A row per case, in the order of the shapes: its label, mask and samples as text."""
    cases = samples.groupby(KEY, sort=False)["latency_us"].apply(_thinned).rename("samples").reset_index()
    cases = cases.sort_values(["head_dim", "seq_len", "kv_len", "batch", "heads"], kind="stable")
    more = [name for name in ("lengths", "direction", "layout", "scale") if cases[name].nunique() > 1]
    cases["shape"] = [_label(row, more) for row in cases.to_dict("records")]
    return cases.assign(case=range(len(cases)), mask=np.where(cases["causal"], "causal", "none"))


def _thinned(samples: pd.Series) -> str:
    places = np.linspace(0, 1, min(SAMPLES, len(samples)))
    return " ".join(f"{value:.4g}" for value in np.quantile(samples, places, method="nearest"))


def _label(row: dict[str, Any], more: list[str]) -> str:
    """A shape as `B32 H8 S512 D64`; with grouped heads `H32/8`, with other keys `S1/8192`."""
    heads = f"{row['heads']}" if row["kv_heads"] == row["heads"] else f"{row['heads']}/{row['kv_heads']}"
    length = f"{row['seq_len']}" if row["kv_len"] == row["seq_len"] else f"{row['seq_len']}/{row['kv_len']}"
    return " ".join([f"B{row['batch']} H{heads} S{length} D{row['head_dim']}", *(str(row[name]) for name in more)])


def _verdicts(samples: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """The rows of `compare` for each baseline, with the numbers of both cases."""
    found = [compare(samples, name) for name in BASELINES if (cases["implementation"] == name).any()]
    peers = found[0][found[0]["candidate"].str.startswith("peer.")] if found else pd.DataFrame()
    if len(peers):
        found.append(compare(samples, peers.groupby("candidate")["speedup"].median().idxmax()))
    if not sum(map(len, found)):
        raise UserError("the run holds no comparison: no candidate and baseline passed the gate at one shape")
    candidates = cases[[*KEY, "case", "mask", "shape"]].rename(columns={"implementation": "candidate"})
    baselines = cases[[*KEY, "case"]].rename(columns={"implementation": "baseline", "case": "base"})
    return pd.concat(found).merge(candidates).merge(baselines)


def _patterns(verdicts: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray, list[str]]:
    """The distinct patterns of statements; for each comparison, the index of its pattern and the numbers in it."""
    rows = verdicts.to_dict("records")
    texts = [str(statement(r)).replace(r["candidate"], CANDIDATE).replace(r["baseline"], BASELINE) for r in rows]
    places, unique = pd.factorize(pd.Series([NUMBER.sub(HERE, text) for text in texts], dtype=object))
    numbers = [" ".join(NUMBER.findall(text)) for text in texts]
    return pd.DataFrame({"pattern": range(len(unique)), "text": unique}), places, numbers


def _csv(frame: pd.DataFrame, *numbers: str) -> alt.InlineData:
    """A frame as inline CSV; columns that are not in `numbers` are text."""
    parse = {name: "number" if name in numbers else "string" for name in frame.columns}
    return alt.InlineData(frame.to_csv(index=False, lineterminator="\n"), format=alt.CsvDataFormat(parse, type="csv"))


def _heatmap(shown: alt.Chart, click: alt.Parameter, cases: pd.DataFrame) -> alt.LayerChart:
    shown = shown.transform_calculate(
        octaves="log(datum.speedup) / LN2",
        sign="datum.decision === 'equivalent' ? ' =' : datum.decision === 'inconclusive' ? ' ?' : ''",
        cell="format(datum.speedup, datum.speedup < 10 ? '.2f' : '.0f') + datum.sign",
    )
    x = alt.X("shape:N", sort=[*cases["shape"].unique()], title=None, axis=alt.Axis(labelAngle=-50, labelLimit=300))
    y = alt.Y("implementation:N", sort=sorted(cases["implementation"].unique()), title=None)
    scale = alt.Scale(scheme="redblue", domain=[-1, 1], domainMid=0, clamp=True)
    legend = alt.Legend(title="Speedup", orient="top", labelExpr="format(pow(2, datum.value), '.2~f')", tickCount=5)
    octaves = alt.Color("octaves:Q", scale=scale, legend=legend)
    ring = alt.condition(click, alt.value(ACCENT), alt.value(None))
    tip = [alt.Tooltip("implementation:N", title="candidate"), "shape:N", "speedup:Q", "decision:N"]
    cells = shown.mark_rect(cursor="pointer", strokeWidth=3).encode(x, y, octaves, stroke=ring, tooltip=tip)
    ink = alt.condition("abs(datum.octaves) > 0.6", alt.value("white"), alt.value("black"))
    texts = shown.mark_text(fontSize=10).encode(x, y, alt.Text("cell:N"), color=ink)
    combination = " + '|' + ".join(f"choice_{name}" for name in CHOICES)
    nothing = alt.Chart(alt.InlineData([{}])).transform_filter(f"indexof(measured, {combination}) < 0")
    nothing = nothing.mark_text(text="Not measured: choose otherwise", align="left", color=INK, x=0, y=8)
    return (cells.add_params(click) + texts + nothing).properties(width=alt.Step(36), height=alt.Step(20))


def _text(one: alt.Chart, patterns: alt.InlineData) -> alt.Chart:
    """The statement of the chosen comparison: its pattern with numbers and names, wrapped into lines."""
    names = f"join(split(join(split(datum.filled, '{CANDIDATE}'), datum.implementation), '{BASELINE}'), datum.baseline)"
    broken = f"replace({names}, regexp('(.{{1,58}})( |$)', 'g'), '$1\\n')"
    return (
        one.transform_lookup("pattern", alt.LookupData(patterns, "pattern", ["text"]))
        .transform_calculate(part=f"split(datum.text, '{HERE}')", number="split(datum.numbers, ' ')")
        .transform_flatten(["part", "number"])
        .transform_calculate(piece="datum.part + (datum.number || '')")
        .transform_aggregate([alt.AggregatedFieldDef(op="values", **{"as": "all"})], ["implementation", "baseline"])
        .transform_calculate(filled="join(pluck(datum.all, 'piece'), '')", lines=f"split(trim({broken}), '\\n')")
        .mark_text(align="left", baseline="top", fontSize=12, lineHeight=16, color=INK, x=-70, y=0)
        .encode(alt.Text("lines:N"))
        .properties(width=240, height=90)
    )


def _dots(one: alt.Chart, samples: alt.InlineData) -> alt.LayerChart:
    """The samples of candidate and baseline, with their medians."""
    name = "datum.role === 'case' ? datum.implementation : datum.baseline"
    each = (
        one.transform_fold(["case", "base"], ["role", "number"])
        .transform_lookup("number", alt.LookupData(samples, "case", ["samples"]))
        .transform_calculate(sample="split(datum.samples, ' ')")
        .transform_flatten(["sample"])
        .transform_calculate(latency_us="toNumber(datum.sample)", jitter="random()", name=name)
    )
    x = alt.X("latency_us:Q", title="Latency (µs)", scale=alt.Scale(zero=False), axis=alt.Axis(gridOpacity=0.3))
    y = alt.Y("name:N", title=None)
    points = each.mark_circle(opacity=0.7, color="#3a7ebf").encode(x, y, yOffset="jitter:Q")
    medians = each.mark_tick(color=ACCENT, thickness=3, size=30).encode(alt.X("median(latency_us):Q"), y)
    return (points + medians).properties(width=240, height=alt.Step(44))
