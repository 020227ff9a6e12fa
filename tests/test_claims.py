"""Every number that a page states by hand is one that the code or the data holds now.

A claim is a piece of a sentence with a gap for each number, and the values that belong there, computed from constants,
studies, tracked files or the published run. Whatever number stands on a page outside of all claims fails, and so does a
claim that no page makes any more. What `make readme` writes, code, headings, formulas' letters and references are no
sentences; digits within a name, such as H200, and powers are no numbers.
"""

import math
import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from attnlab import bootstrap, ladder, paths, runs, shapes, stats, studies
from attnlab.analyse import audited, profiles, results
from attnlab.audit import numbers
from attnlab.bootstrap import Interval, Scatter
from attnlab.measure import clocks, correctness, devices, worker

ROOT = paths.ROOT
MAKEFILE = (ROOT / "Makefile").read_text()
PUBLISHED = re.search(r"^PUBLISHED := (\S+)$", MAKEFILE, re.MULTILINE)[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "kernels/README.md", "data/README.md")),
    *(ROOT / name for name in ("figures/README.md", "reports/README.md")),
    *sorted(paths.NOTEBOOKS.glob("*.ipynb")),
]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
COUNTED = {word: number for number, word in enumerate(WORDS) if number > 1} | {"twice": 2, "half": 0.5}
NUMBER = re.compile(rf"(?<![\w.\-^])\d(?:[\d,. ]*\d)?(?![\d_]*_)|\b(?:{'|'.join(COUNTED)})\b", re.IGNORECASE)
NO_SENTENCES = (
    r"<!-- (\w+):.*?<!-- /\1 -->",  # what `make readme` writes, and what is told of others' sources
    r"```.*?```",
    r"^#.*$",
    r"^<li id=.*$",
    r"`[^`]*`",
    r"\]\([^)]*\)",  # where links lead
    r"<[^>]*>",
    r"\b[A-Z]{3,} \d{4}\b",  # a product, such as RTX 4090
)


# ------------------------------------------------------------------------------------------------------- what is held


def word(value: float) -> str:
    """A count as a page spells it."""
    assert value == int(value)
    return WORDS[int(value)]


def times(value: float) -> str:
    """A factor as a page spells it."""
    return {0.5: "half", 2.0: "twice"}.get(value) or word(value)


def plain(value: float) -> str:
    """Digits, thousands apart by a space."""
    return f"{value:,.10g}".replace(",", " ")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}"


@cache
def of_published() -> results.Results:
    """The published run, with nothing inferred that isn't asked for: medians of all samples will do here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATTNLAB_DATA", raising=False)
        run = runs.load(PUBLISHED)
    passed = results.Results(run, run.samples.head(0)).passed
    medians = passed.groupby([*results.CASE, *results.TIMING], dropna=False, sort=False)["latency_us"].median()
    return results.Results(run, medians.rename("median_us").reset_index())


def replicate_minutes() -> float:
    """What a whole replicate of the published run took, of those that no interruption divided, to half a minute."""
    processes = of_published().run.processes
    seconds = processes[["setup_seconds", "measuring_seconds"]].sum(axis="columns")
    whole = seconds[seconds > seconds.max() / 2]
    return round(2 * float(whole.median()) / 60) / 2


def minutes_and_half(value: float) -> str:
    return f"{int(value)}{'½' if value % 1 else ''}"


def took(command: str) -> float:
    (found,) = (one["seconds"] for one in timed()["commands"] if one["command"] == command)
    return found


@cache
def timed() -> dict:
    return tomllib.loads((ROOT / "benchmarks" / "commands.toml").read_text())


def kinds(prefix: str) -> int:
    return sum(name.startswith(prefix) for name in studies.load("gpu").implementations)


def rung_us(name: str) -> float:
    """The median of a kernel at the target in the published run."""
    target = of_published().study.target_shape
    return float(of_published().row(f"kernel.{name}", target)["median_us"])


def speedup(name: str, over: str) -> float:
    return rung_us(over) / rung_us(name)


@cache
def heads() -> dict[str, str]:
    """What the head of each rung's source says of what it gained."""
    said = {rung.name: (ROOT / "kernels" / rung.source).read_text() for rung in ladder.load()}
    return {
        name: re.search(r"^// Gained +(.*?)^// Limits", text, re.MULTILINE | re.DOTALL)[1]
        for name, text in said.items()
    }


def trial_us(name: str) -> float:
    return 1e3 * float(re.search(r"([\d.]+) ms at", heads()[name])[1])


def trial_gain(name: str) -> str:
    return re.match(r"([\d.]+)(?:x| %) over rung", heads()[name])[1]


def number_of(name: str) -> int:
    return [rung.name for rung in ladder.load()].index(name) + 1


def furthest_trial_pct() -> int:
    """The percent that no trial lies beyond, rounded up."""
    return math.ceil(max(100 * abs(rung_us(name) / trial_us(name) - 1) for name in heads()))


def tensor_cycles(name: str) -> float:
    """Cycles for which the tensor cores were busy in one call at the target, by Nsight Compute."""
    rows = of_published().run.profile
    found = rows[rows["implementation"] == f"kernel.{name}"].set_index("metric")["value"]
    busy = found["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"]
    return float(busy * found["sm__cycles_elapsed.max"] / 100)


def work(**axes: int) -> shapes.Shape:
    return shapes.Shape(**({"batch": 1, "heads": 1, "seq_len": 1024, "head_dim": 64} | axes))


def more_work(axis: str, factor: int) -> float:
    return work(**{axis: factor * getattr(work(), axis)}).flops / work().flops


def flushed() -> float:
    """What a cold sample has overwritten, over the last level of cache."""
    device = devices.resolve("cpu")
    return clocks.Flush(device)._buffer.nbytes / devices.last_level_cache_bytes(device)


def shortest_over_blocks() -> float:
    """The interval of blocks that agree entirely, over that of the bootstrap that it comes from."""
    alone = bootstrap.Bootstrap(Interval(0.5, 0.5, 0.5), np.linspace(0, 1, 1001))
    agreed = replace(alone, scatter=Scatter(mean=0.5, error=0.0, freedom=4))
    lengths = [interval.high - interval.low for interval in (agreed.interval(0.95), alone.interval(0.95))]
    return round(lengths[0] / lengths[1], 6)


def at_least(requirement: str) -> str:
    return re.search(
        rf"^{requirement} ?[:>]?= ?\"?(?:>=)?([\d.]+)", (ROOT / "pyproject.toml").read_text() + MAKEFILE, re.M
    )[1]


def no_difference() -> float:
    """What a ratio is where nothing differs."""
    return stats.ratio_ci([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).estimate


# ------------------------------------------------------------------------------------------------------------ claims


def reports() -> list[Path]:
    """The published reports that were transcribed."""
    return sorted((ROOT / "data" / "reference").glob("[0-9][0-9][0-9].csv"))


def dated() -> str:
    """Their dates, as the audit's own tables cite them."""
    return re.search(r"in reports of (\d.*? \d{4})\.", Path(audited.__file__).read_text())[1]


def compared() -> list[str]:
    """What the report that compared an array with itself printed of it: a speedup and a p-value."""
    rows = pd.read_csv(reports()[-1], index_col="id", dtype={"value": str})["value"]
    return [plain(float(rows[f"compare.{name}"])) for name in ("speedup", "p")]


def rounding() -> float:
    """By how much of a unit of its last digit a printed number may be off."""
    return float(numbers.Number.printed("7", "s").high) - 7


@dataclass(frozen=True)
class Claim:
    """A piece of a sentence, with a gap for each number, and what belongs there."""

    text: str
    values: tuple[str, ...]

    @property
    def stated(self) -> str:
        return self.text.format(*self.values)


def claim(text: str, *values: str) -> Claim:
    return Claim(text, values)


@cache
def claims() -> tuple[Claim, ...]:
    gpu, closed = studies.load("gpu"), of_published().run.manifest["closed_early"]
    first, second = took("make report"), took(f"make report RUN={PUBLISHED}")
    bound, equal = times(correctness.ALLOWED), percent(stats.EQUIVALENCE_MARGIN)
    leading = ladder.load()[0]
    instance = leading.expression("float16", replace_template(leading), True)
    return (
        # Commands
        claim("With Python {} or newer", at_least("requires-python")),
        claim("On {} cores without a GPU", word(timed()["cores"])),
        claim("the first took {} min {} s", f"{first // 60}", f"{first % 60}"),
        claim("the second then {} s", f"{second}"),
        claim("driver of {} or newer", at_least("DRIVER")),
        # The study and the run
        claim("takes about {} minutes a replicate", minutes_and_half(replicate_minutes())),
        claim("of which it asks for {}:", word(gpu.replicates)),
        claim("{} shapes,", plain(len(gpu.shapes))),
        claim("{} backends,", word(kinds("sdpa."))),
        claim("{} kernels and {} timings", word(kinds(ladder.PREFIX)), word(len(gpu.timings))),
        claim("cut off after {} replicates", word(closed["replicates"])),
        # Published numbers
        claim("{} published reports", word(len(reports()))),
        claim("{} reports of {} on", word(len(reports())), dated()),
        claim("{} reports on", word(len(reports())).capitalize()),
        claim("a speedup of exactly {} and $p = {}$", *compared()),
        claim("{} a unit of its last digit", times(rounding())),
        # Kernels
        claim("first {} template arguments", word(instance.count(",") + 1)),
        claim("after the first {} |", word(instance.count(",") + 1)),
        claim("boxes of {} columns with a swizzle of {} bytes", *swizzle()),
        claim("medians lie within {} % of the trials'", f"{furthest_trial_pct()}"),
        claim(
            "rung {} gained {}x over rung {} in its trial and {}x where kernels take turns",
            f"{number_of('wgmma')}",
            trial_gain("wgmma"),
            f"{number_of('pipelined')}",
            f"{speedup('wgmma', 'pipelined'):.2f}",
        ),
        claim(
            "rung {} over rung {} {} % and {} %",
            f"{number_of('overlap')}",
            f"{number_of('wgmma')}",
            trial_gain("overlap"),
            f"{100 * (speedup('overlap', 'wgmma') - 1):.1f}",
        ),
        # Clocks and caches
        claim("a replay takes about {} ms, at most {} calls", plain(clocks.GRAPH_US / 1e3), plain(clocks.GRAPH_CALLS)),
        claim("{} the L2 was overwritten", times(flushed())),
        claim("{} the last level of cache is overwritten", times(flushed())),
        claim("agreed with the next within {} %", percent(worker.STEADY)),
        # The gate
        claim("may err at most {} as much", bound),
        claim("may be at most {} those", bound),
        claim("{} these are allowed", bound),
        # Inference
        claim("{} % of the median", percent(stats.CONFIDENCE)),
        claim("bootstrap with {} resamples", plain(stats.RESAMPLES)),
        claim("bootstrap's with {} resamples", plain(stats.RESAMPLES)),
        claim("at least {} as long as that of a bootstrap", times(shortest_over_blocks())),
        claim("cut into {} stretches", word(bootstrap.BATCHES)),
        claim("the {} % interval lies within ±{} %", percent(1 - 2 * stats.ALPHA), equal),
        claim("the {} % interval excludes {}", percent(stats.CONFIDENCE), plain(no_difference())),
        claim("$p < {}$", plain(stats.ALPHA)),
        claim(r"|\delta| \ge {}$", plain(stats.CLAIM_DELTA)),
        claim("a speedup of at least {}", f"{stats.CLAIM_SPEEDUP:.2f}"),
        # Arithmetic
        claim("{} times for {} the length", word(more_work("seq_len", 2)), times(2)),
        claim("{} for {} the batch or heads", times(more_work("batch", 2)), times(more_work("heads", 2))),
        claim("is ${}BHS^2D$ FLOPs, or ${}BHS(S+{})D$", *map(plain, (flops_factor(), causal_factor(), diagonal()))),
        claim(
            "`full` {}·B·H·S²·D, `halved` {} of it, `masked` {}·B·H·S·(S+{})·D",
            plain(flops_factor()),
            times(causal_share()),
            plain(causal_factor()),
            plain(diagonal()),
        ),
        claim("$F = {}BHS^2D$ FLOPs", plain(flops_factor())),
        claim("$M = {}BHSDb$ bytes", plain(bytes_factor())),
        claim("$F = {}BHS(S+{})D$", plain(causal_factor()), plain(diagonal())),
        claim("which is $S/(S+{})$ of this", plain(diagonal())),
        claim("Others {} the full count instead", {0.5: "halve"}[causal_share()]),
        claim(r"F = {} B H S^2 D, \qquad M = {} B H S D\, b", plain(flops_factor()), plain(bytes_factor())),
        claim(
            "leave ${} B H S (S+{}) D$ FLOPs and {} the exponentials",
            plain(causal_factor()),
            plain(diagonal()),
            times(causal_share()),
        ),
        # Counters
        claim("from {} % of its peak", plain(profiles.SATURATED_PCT)),
        claim("used at {} % of their peak", plain(profiles.SATURATED_PCT)),
        claim("{} as long again as `wgmma`", times(round(tensor_cycles("pipelined") / tensor_cycles("wgmma") - 1, 1))),
    )


def replace_template(rung: ladder.Rung) -> ladder.Tile:
    """A tile of a rung without template arguments of its own."""
    return rung.tiles[0].model_copy(update={"template": type(rung.tiles[0].template)()})


def swizzle() -> tuple[str, str]:
    """Columns of a box, and the bytes that they span, which the name of the swizzle repeats."""
    source = (ROOT / "lib" / "attnlab" / "measure" / "kernels.py").read_text()
    columns = int(re.search(r"^BOX_COLUMNS = (\d+)$", source, re.MULTILINE)[1])
    (named,) = set(re.findall(r"SWIZZLE_(\d+)B", source))
    assert int(named) == columns * shapes.BYTES_PER_ELEMENT["float16"]
    return f"{columns}", named


def flops_factor() -> float:
    return work().flops / (1024**2 * 64)


def bytes_factor() -> float:
    return work().bytes / (1024 * 64 * shapes.BYTES_PER_ELEMENT["float16"])


def masked(length: int) -> int:
    return shapes.Shape(1, 1, length, 64, causal=True).flops


def causal_factor() -> float:
    """The factor of the square of S in what a mask leaves, from three lengths a step apart."""
    return (masked(3) - 2 * masked(2) + masked(1)) / 2 / 64


def diagonal() -> float:
    """What is added to S in what a mask leaves."""
    return masked(1024) / (causal_factor() * 1024 * 64) - 1024


def causal_share() -> float:
    """The share of exponentials that a causal mask leaves, about."""
    return round(shapes.Shape(1, 1, 1024, 64, causal=True).exponentials / work().exponentials, 2)


# ------------------------------------------------------------------------------------------------------------- pages


def text_of(page: Path) -> str:
    if page.suffix == ".md":
        return page.read_text()
    cells = nbformat.read(page, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def one_line(text: str) -> str:
    return " ".join(text.split())


def unheld(text: str, fragments: list[str]) -> list[str]:
    """The numbers of a text that stand in no fragment, each with the words around it."""
    kept = re.sub("|".join(f"(?:{rule})" for rule in NO_SENTENCES[:1]), "", text, flags=re.DOTALL)
    kept = re.sub(NO_SENTENCES[1], "", kept, flags=re.DOTALL)
    kept = re.sub("|".join(NO_SENTENCES[2:4]), "", kept, flags=re.MULTILINE)
    kept = one_line(kept)
    for fragment in fragments:
        kept = kept.replace(fragment, "·")
    kept = re.sub("|".join(NO_SENTENCES[4:]), "·", kept)
    return [kept[max(0, found.start() - 40) : found.end() + 40] for found in NUMBER.finditer(kept)]


@pytest.fixture(scope="module")
def fragments() -> list[str]:
    """What the claims say now, the longest first."""
    return sorted((claim.stated for claim in claims()), key=len, reverse=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_number_on_a_page_is_held_to_what_it_speaks_of(page, fragments):
    assert unheld(text_of(page), fragments) == [], "generate it, or claim it with what it is computed from"


def test_every_claim_is_made_somewhere(fragments):
    said = one_line(" ".join(map(text_of, PAGES)))
    assert [fragment for fragment in fragments if fragment not in said] == []


def test_no_claim_states_a_number_of_its_own():
    assert [claim.text for claim in claims() if NUMBER.search(claim.text.replace("{}", ""))] == []
    assert all(claim.text.count("{}") == len(claim.values) > 0 for claim in claims())
    assert len({claim.text for claim in claims()}) == len(claims())


def test_a_number_that_nothing_holds_is_found():
    text = "# The 4 rules\n\nIt took 12 s on an H200 in float16, twice.\n\n```\nmake 3\n```\n\n`x = 5` and 07_profile."
    assert len(unheld(text, [])) == 2
    assert unheld(text, ["took 12 s"]) == ["It · on an H200 in float16, twice. · and 07_profile."]
    assert unheld(text, ["took 12 s", "float16, twice"]) == []
    assert len(unheld(text, ["took 13 s"])) == 2


@pytest.mark.parametrize(
    ("module", "name", "value", "page"),
    [
        (stats, "RESAMPLES", 9_999, "README.md"),
        (stats, "CLAIM_SPEEDUP", 1.05, "notebooks/report.ipynb"),
        (clocks, "GRAPH_CALLS", 32, "notebooks/report.ipynb"),
        (correctness, "ALLOWED", 3.0, "data/README.md"),
        (profiles, "SATURATED_PCT", 50, "notebooks/07_profile.ipynb"),
    ],
)
def test_a_constant_that_changes_breaks_its_sentence(monkeypatch, module, name, value, page):
    monkeypatch.setattr(module, name, value)
    claims.cache_clear()
    try:
        changed = [claim.stated for claim in claims()]
    finally:
        monkeypatch.undo()
        claims.cache_clear()
    assert unheld(text_of(ROOT / page), changed) != []


def test_the_run_that_pages_speak_of_is_the_one_that_make_shows():
    for page in ("README.md", "data/README.md"):
        assert f"`{PUBLISHED}`" in (ROOT / page).read_text() or f"RUN={PUBLISHED}" in (ROOT / page).read_text()
    assert f"`{PUBLISHED}` is the published run" in one_line((ROOT / "data" / "README.md").read_text())


def test_every_column_of_a_run_is_explained():
    explained = (ROOT / "data" / "README.md").read_text()
    columns = {column for table in runs.COLUMNS.values() for column in table}
    assert {column for column in columns if f"`{column}`" not in explained} == set()
    assert [table for table in runs.TABLES if f"{table}.parquet" not in explained] == []
