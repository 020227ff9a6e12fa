"""Every number that a page states by hand is one that the code holds now.

A claim is a piece of a sentence as it has to stand. A number outside of all claims fails, and so does a claim that no
page makes any more. What `make readme` writes, code, formulas, headings and links are no sentences.
"""

import json
import re
import tomllib

import nbformat
import pandas as pd
import pytest
from published import RUN as PUBLISHED
from reading import PAGES

from attnlab.base import paths, rules
from attnlab.exhibits import audit
from attnlab.infer import counters, simulation
from attnlab.literature.audit import reference
from attnlab.measure.clocks import cuda_events
from attnlab.measure.session import rounds
from attnlab.measure.subjects import maps, rungs
from attnlab.measure.values import captured
from attnlab.runs import dispatch, read

ROOT = paths.ROOT
BELOW = 1e-4
MAKEFILE = (ROOT / "Makefile").read_text()
NOTEBOOKS = sorted(paths.NOTEBOOKS.glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.\-^])\d(?:[\d,. ]*\d)?(?![\d_]*_)")
NO_SENTENCES = (
    r"(?s)<!-- (\w+):.*?<!-- /\1 -->",
    r"(?s)```.*?```",
    r"(?s)\$\$.*?\$\$",
    r"(?m)^#.*$",
    r"(?m)^<li id=.*$",
    r"`[^`]*`",
    r"\$[^$]*\$",
    r"\]\([^)]*\)",
    r"<[^>]*>",
    r"\b[A-Z]{3,} \d{4}\b",  # a product, such as RTX 4090
    r"\b(?:excludes|differs from) 1\b",  # no difference, by definition
)


def percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}"


def claims() -> list[str]:
    """Pieces of sentences as pages have to state them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = re.fullmatch(r">=([\d.]+)", project["requires-python"])[1]
    driver = re.search(r"^DRIVER := (\d+)$", MAKEFILE, re.MULTILINE)[1]
    dated = re.search(r"in reports of (\d+ and \d+ \w+ \d{4})\.", audit.across().note)[1]
    eager, device = dispatch.load(ROOT / "data/dispatch/nvidia-h200.json", "NVIDIA H200").regret
    other_eager, other = dispatch.load(
        ROOT / "data/dispatch/nvidia-h100-80gb-hbm3.json", "NVIDIA H100 80GB HBM3"
    ).regret
    simulated = simulation.load().set_index(["replicates", "measure"]).sort_index()
    in_ten = ("none", "one", "two", "three", "four", "five")[
        round(10 * simulated.loc[(1, simulation.WRONG), "value"].max())
    ]
    drawn = pd.read_csv(paths.REFERENCE / "gate.csv")
    often, few = (drawn[drawn["draws"] == count] for count in (drawn["draws"].max(), drawn["draws"].min()))
    tails = [f"{100 * tail:.1g} %" for tail in sorted(drawn["tail"][drawn["tail"] > BELOW])]
    resamples = f"{rules.RESAMPLES:,}".replace(",", " ")
    return [
        f"With Python {python} or newer",
        f"driver of {driver} or newer",
        f"reports of {dated} on",
        f"boxes of {maps.BOX_COLUMNS} columns with a swizzle of {2 * maps.BOX_COLUMNS} bytes",
        f"the strides and the address are multiples of {maps.ALIGNMENT} bytes",
        f"an address or a stride is no multiple of {maps.ALIGNMENT} bytes",
        f"a replay takes about {cuda_events.GRAPH_US / 1e3:g} ms, at most {cuda_events.GRAPH_CALLS} calls",
        f"After about one round in {rounds.CUT_SHORT} of",
        f"agreed with the next within {percent(rules.STEADY)} %",
        f"Intervals are {percent(rules.CONFIDENCE)} % intervals of the median",
        f"bootstrap with {resamples} resamples",
        f"bootstrap's with {resamples} resamples",
        f"the {percent(1 - 2 * rules.ALPHA)} % interval lies within ±{percent(rules.EQUIVALENCE_MARGIN)} %",
        f"the {percent(rules.CONFIDENCE)} % interval excludes 1",
        f"at the {percent(rules.ALPHA)} % level finds with a probability of {percent(rules.POWER)} %",
        f"a speedup of at least {rules.CLAIM_SPEEDUP:.2f}",
        f"$p < {rules.ALPHA}$",
        rf"|\delta| \ge {rules.CLAIM_DELTA:g}$",
        f"from {counters.SATURATED_PCT} % of its peak",
        f"used at {counters.SATURATED_PCT} % of their peak",
        f"queries count as whole tiles of {dispatch.TILE_QUERIES},",
        f"and keys as whole tiles of {dispatch.TILE_KEYS}.",
        f"at {device.shapes} shapes drawn at random that its table doesn't hold",
        f"`attend` is {device.lead:.2f} times as fast as SDPA",
        f"and {eager.lead:.2f} times by the eager one; at the worst shape {device.least_lead:.2f} times",
        f"takes {device.mean_pct:.2g} % longer than the fastest in the mean, and {device.worst_pct:.2g} % at the worst",
        f"the lead at {other.shapes} such shapes is {other.lead:.2f} by the device clock",
        f"and {other_eager.lead:.2f} by the eager one, but",
        f"at the worst shape {other.least_lead:.2f} (`h100-grid-1`, `h100-grid-2`)",
        f"takes {other.mean_pct:.2g} % longer than the fastest in the mean, and {other.worst_pct:.2g} % at the worst",
        f"The gate refused {drawn['refused'].sum() or 'none'} of {drawn['draws'].sum():,}",
        "draws inputs with 64 queries, or with one over 1024 keys",
        f"computes them in {drawn['implementation'].nunique()} right ways",
        f"At {often['shape'].nunique()} shapes with normal values, {often['draws'].max():,} draws bound the "
        f"probability to {100 * often['at_most'].max():.2g} % at 95 % confidence",
        f"from {few['draws'].max():,} draws, a fit of the tail puts it below {100 * BELOW:g} %",
        f"over 64 keys where P is scaled before it is rounded: {' and '.join(tails)}",
        f"negative, below {rungs.SMALLEST_SCALE:g} or above {rungs.LARGEST_SCALE:g};",
        f"up to {in_ten} in ten of its verdicts err",
        "a speedup of exactly 1 and $p = 1$",
    ]


def text_of(page) -> str:
    if page.suffix == ".md":
        return page.read_text()
    cells = nbformat.read(page, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def one_line(text: str) -> str:
    return " ".join(text.split())


def unheld(text: str, stated: list[str]) -> list[str]:
    """The numbers of a text that stand in no claim, each with the words around it."""
    for rule in NO_SENTENCES[:5]:
        text = re.sub(rule, "·", text)
    text = one_line(text)
    for claim in sorted(stated, key=len, reverse=True):
        text = text.replace(claim, "·")
    for rule in NO_SENTENCES[5:]:
        text = re.sub(rule, "·", text)
    return [text[max(0, found.start() - 40) : found.end() + 40] for found in NUMBER.finditer(text)]


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_number_on_a_page_is_held_to_what_it_speaks_of(page):
    assert unheld(text_of(page), claims()) == [], "generate it, or claim it with what it is computed from"


def test_every_claim_is_made_somewhere():
    said = one_line(" ".join(map(text_of, [*PAGES, *NOTEBOOKS])))
    assert [claim for claim in claims() if claim not in said] == []


def test_the_run_that_pages_speak_of_is_the_one_that_make_shows():
    for page in ("README.md", "data/README.md"):
        assert f"`{PUBLISHED}`" in (ROOT / page).read_text() or f"RUN={PUBLISHED}" in (ROOT / page).read_text()
    assert f"`{PUBLISHED}` is the published run" in one_line((ROOT / "data" / "README.md").read_text())


def test_every_field_of_a_manifest_is_explained():
    explained = (ROOT / "data" / "README.md").read_text()
    fields = {field for path in (ROOT / "data").glob("*/manifest.json") for field in json.loads(path.read_text())}
    assert {field for field in fields if f"`{field}`" not in explained} == set()
    assert {field for field in reference.Claim.model_fields if f"`{field}`" not in explained} == set()


def test_every_variable_of_the_environment_is_explained():
    found = {name for path in (ROOT / "lib").rglob("*.py") for name in re.findall(r"ATTNLAB_[A-Z]+", path.read_text())}
    explained = (ROOT / "docs" / "development.md").read_text()
    assert {name for name in found if f"`{name}`" not in explained} == {captured.FILE}


def test_commands_were_timed_once_their_run_was_recorded(monkeypatch):
    monkeypatch.delenv("ATTNLAB_DATA", raising=False)
    timed = tomllib.loads((ROOT / "benchmarks/commands.toml").read_text())
    rendered = [one["command"].partition(" RUN=")[2] for one in timed["commands"]]
    days = {run: read.read_manifest(run)["finished"][:10] for run in rendered if run in read.names()}
    early = {run: day for run, day in days.items() if timed["day"] < day}
    assert early == {}, "run `python benchmarks/commands.py`"
