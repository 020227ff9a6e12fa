"""Every number that a page states by hand is one that the code or the data holds now.

A claim is a piece of a sentence with a gap for each number or formula, and what belongs there, computed from constants,
studies, tracked files or the published run; a formula is evaluated and compared with what the code counts. A number
outside of all claims fails, and so does a claim that no page makes any more. What `make readme` writes, code, headings
and references are no sentences. Digits within a name, such as H200, and powers are no numbers, and neither is the 1 of
a ratio where nothing differs.
"""

import inspect
import json
import math
import re
import runpy
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from attnlab.base import paths
from attnlab.exhibits import audit
from attnlab.infer import bootstrap, cases, counters, results
from attnlab.infer.beside import neighbours
from attnlab.infer.bootstrap import Interval, Scatter
from attnlab.literature.audit import numbers
from attnlab.measure.clocks import cuda_events
from attnlab.measure.cluster import scheduling, start
from attnlab.measure.gate.check import Check, Error
from attnlab.measure.instruments import devices
from attnlab.measure.session import rounds, tune
from attnlab.measure.subjects import maps
from attnlab.runs import methods, read, rules, schema
from attnlab.study import ladder, models, shapes, studies

ROOT = paths.ROOT
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PUBLISHED = re.search(r"^PUBLISHED := (\S+)$", MAKEFILE, re.MULTILINE)[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "kernels/README.md", "data/README.md")),
    *(ROOT / name for name in ("figures/README.md", "reports/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(paths.NOTEBOOKS.glob("*.ipynb")),
]
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
COUNTED = {word: number for number, word in enumerate(WORDS) if number > 1} | {"twice": 2, "half": 0.5}
NUMBER = re.compile(rf"(?<![\w.\-^])\d(?:[\d,. ]*\d)?(?![\d_]*_)|\b(?:{'|'.join(COUNTED)})\b", re.IGNORECASE)
NO_DIFFERENCE = re.compile(r"\b(excludes|differs from) 1(?= by\b|[,;.](?!\d)|$)")
"""A ratio of 1 is no difference by definition, and nothing to be held."""
PAIR = re.compile(r"\bbetween two\b")
"""Grammar, not a count."""
NO_SENTENCES = (
    r"<!-- (\w+):.*?<!-- /\1 -->",  # what `make readme` writes, and what others' sources state
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


def least(field: str) -> int:
    """The least that `make model` takes of a field."""
    (bound,) = models.Plan.model_fields[field].metadata
    return bound.ge


@cache
def of_published() -> results.Results:
    """The published run, with nothing inferred that isn't asked for: medians of all samples will do here."""
    run = tracked(PUBLISHED)
    passed = results.Results(run, run.samples.head(0)).passed
    medians = passed.groupby([*cases.CASE, *cases.TIMING], dropna=False, sort=False)["latency_us"].median()
    return results.Results(run, medians.rename("median_us").reset_index())


@cache
def tracked(run: str) -> schema.Run:
    with tracked_data():
        return read.load(run)


@contextmanager
def tracked_data() -> Iterator[None]:
    """Runs are read where they are tracked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATTNLAB_DATA", raising=False)
        yield


def clocks() -> int:
    """Whose clocks the panel holds."""
    named = {method.name.split(".")[0] for method in methods.METHODS}
    return len({"ours" if name in ("eager", "device") else name for name in named})


def busy_seconds() -> pd.Series:
    """How long each process of the published run measured."""
    return of_published().run.samples.groupby("process")["started_s"].max()


def replicate_minutes() -> float:
    """What a replicate of the published run took of a GPU, to half a minute."""
    return round(2 * float(busy_seconds().sum()) / of_published().study.replicates / 60) / 2


def minutes_and_half(value: float) -> str:
    return f"{int(value)}{'½' if value % 1 else ''}"


def cards() -> pd.Series:
    """How long each GPU of the published run measured, the longest first."""
    processes = of_published().run.processes.set_index("process")["card"]
    return busy_seconds().groupby(processes).sum().sort_values(ascending=False)


@cache
def cluster() -> dict:
    return runpy.run_path(str(ROOT / "benchmarks" / "cluster.py"))


@cache
def scaled() -> list[neighbours.Pair]:
    """The runs of the study `scaling`, on one GPU and on two, a pair of runs for each two cards."""
    with tracked_data():
        return neighbours.pairs(of_published().run.manifest["device"]["name"])


def gained(seconds: str) -> float:
    """How many times less long the study `scaling` took on two GPUs, over all pairs, to a tenth."""
    took_s = cluster()[seconds]
    return round(sum(took_s(pair.alone) for pair in scaled()) / sum(took_s(pair.beside) for pair in scaled()), 1)


def beside_pct() -> float:
    """The end farthest from no difference of the intervals by the device clock, rounded up to a tenth."""
    ratios = [pair.ratio(timing) for pair in scaled() for timing in pair.timings if timing.clock == "device"]
    return math.ceil(1000 * max(abs(end - 1) for ratio in ratios for end in (ratio.low, ratio.high))) / 10


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
    """What the head of each source says of what its rung gained in a trial, for the rungs that say so."""
    said = {rung.name: (ROOT / "kernels" / rung.source).read_text() for rung in ladder.load()}
    gained = {
        name: re.search(r"^// Gained +(.*?)^// Limits", text, re.MULTILINE | re.DOTALL)[1]
        for name, text in said.items()
    }
    return {name: text for name, text in gained.items() if " ms at " in text}


def trial_us(name: str) -> float:
    return 1e3 * float(re.search(r"([\d.]+) ms at", heads()[name])[1])


def trial_gain(name: str) -> str:
    return re.match(r"([\d.]+)(?:x| %) over rung", heads()[name])[1]


def number_of(name: str) -> int:
    return [rung.name for rung in ladder.load()].index(name) + 1


def furthest_trial_pct() -> int:
    """The percent that no trial lies beyond, rounded up."""
    return math.ceil(max(100 * abs(rung_us(name) / trial_us(name) - 1) for name in heads()))


def work(**axes: int) -> shapes.Shape:
    return shapes.Shape(**({"batch": 1, "heads": 1, "seq_len": 1024, "head_dim": 64} | axes))


def more_work(axis: str, factor: int) -> float:
    return work(**{axis: factor * getattr(work(), axis)}).flops / work().flops


def flushed() -> float:
    """What a cold sample has overwritten, over the last level of cache."""
    device = devices.resolve("cpu")
    return cuda_events.Flush(device)._buffer.nbytes / devices.last_level_cache_bytes(device)


def shortest_over_blocks() -> float:
    """The interval of blocks that agree entirely, over that of the bootstrap that it comes from."""
    alone = bootstrap.Bootstrap(Interval(0.5, 0.5, 0.5), np.linspace(0, 1, 1001))
    agreed = replace(alone, scatter=Scatter(mean=0.5, error=0.0, freedom=4))
    lengths = [interval.high - interval.low for interval in (agreed.interval(0.95), alone.interval(0.95))]
    return round(lengths[0] / lengths[1], 6)


def oldest_python() -> str:
    return re.fullmatch(r">=([\d.]+)", PROJECT["requires-python"])[1]


def dispatched_pytorch() -> str:
    """The version of PyTorch that all tracked dispatch tables were made under."""
    tables = (ROOT / "data" / "dispatch").glob("*.json")
    (version,) = {json.loads(table.read_text())["torch"] for table in tables}
    return ".".join(version.split(".")[:2])


def oldest_driver() -> str:
    return re.search(r"^DRIVER := (\d+)$", MAKEFILE, re.MULTILINE)[1]


# ----------------------------------------------------------------------------------------------------------- formulas


def formula(text: str, counted: Callable[[shapes.Shape], float]) -> str:
    """A formula as a page prints it, where it gives what the code counts at every shape that is tried; else why not."""
    for batch, heads, seq_len, head_dim in product((1, 3), (2, 5), (7, 64), (16, 64)):
        shape = shapes.Shape(batch, heads, seq_len, head_dim)
        if evaluated(text, shape) != counted(shape):
            return f"({text} is not what the code counts at {shape})"
    return text


def evaluated(text: str, shape: shapes.Shape) -> Fraction:
    """The value of a formula in B, H, S, D and b, in TeX or plain, where one letter after another means a product."""
    plain = re.sub(r"\\[,;]|[ ·]", "", text).replace("²", "^2")
    tokens = re.findall(r"\d+|[BHSDb]|[-+/^()]", plain)
    assert "".join(tokens) == plain, f"no formula in B, H, S, D and b: {text}"
    spelt = "".join(f"Fraction({token})" if token.isdigit() else token for token in tokens)
    spelt = re.sub(r"(?<=[BHSDb)])(?=[BHSDbF(])(?<!Fraction)", "*", spelt).replace("^", "**")
    sizes = dict(zip("BHSD", (shape.batch, shape.heads, shape.seq_len, shape.head_dim), strict=True))
    names = {name: Fraction(size) for name, size in sizes.items()}
    return eval(spelt, {"Fraction": Fraction, "b": Fraction(shapes.BYTES_PER_ELEMENT[shape.dtype]), **names})


def full(shape: shapes.Shape) -> int:
    return shape.flops


def masked(shape: shapes.Shape) -> int:
    return replace(shape, causal=True).flops


# ------------------------------------------------------------------------------------------------------------ claims


def reports() -> list[Path]:
    """The published reports that were transcribed."""
    return sorted((ROOT / "data" / "reference").glob("[0-9][0-9][0-9].csv"))


def dated() -> str:
    """Their dates, as the audit's own table cites them."""
    return re.search(r"in reports of (\d+ and \d+ \w+ \d{4})\.", audit.across().note)[1]


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
    gpu, busy_s = studies.load("gpu"), [f"{seconds:.0f}" for seconds in cards()]
    first, second = took("make report"), took(f"make report RUN={PUBLISHED}")
    bound, equal = times(rules.GATE_FACTOR), percent(rules.EQUIVALENCE_MARGIN)
    leading = ladder.load()[0]
    instance = leading.expression("float16", replace_template(leading), True)
    return (
        # Commands
        claim("With Python {} or newer", oldest_python()),
        claim("no scheduler answers within {} s", str(start.CONNECT_S)),
        claim("would take longer than about {} minutes", word(round(scheduling.PIECE_S / 60))),
        claim("The tables here are of {}; a run under yours", dispatched_pytorch()),
        claim(
            "at least {}, by default {} on a GPU and {} on a CPU",
            word(least("tokens")),
            *(str(models.DEFAULTS[kind]["tokens"]) for kind in ("cuda", "cpu")),
        ),
        claim(
            "in a replicate, at least {}, by default {}; fresh processes, by default {}",
            word(least("rounds")),
            *(str(models.Plan.model_fields[field].default) for field in ("rounds", "replicates")),
        ),
        claim("On {} cores without a GPU", word(timed()["cores"])),
        claim("the first command took {} min {} s", f"{first // 60}", f"{first % 60}"),
        claim("run after it, {} s", f"{second}"),
        claim("driver of {} or newer", oldest_driver()),
        # The study and the run
        claim(
            "run took about {} minutes of a GPU for each replicate, on {} GPUs",
            minutes_and_half(replicate_minutes()),
            word(len(busy_s)),
        ),
        claim("was measured on {} GPUs, whose verdicts hold for these {}", *2 * [word(len(busy_s))]),
        claim("how measuring scales beyond {}", word(len(busy_s))),
        claim("what more than {} GPUs gain", word(len(busy_s))),
        claim("`gpu`: SDPA, its peers and the ladder, on {} H200s", word(len(busy_s))),
        claim("Measuring takes {} as long on {} GPUs", times(1 / gained("_busiest_s")), "two"),
        claim("The whole run gains less, {} times", f"{gained('_run_s'):.1f}"),
        claim("on the same card, to within {} %", f"{beside_pct():.1f}"),
        claim("run kept its {} GPUs busy for {} and {} s", word(len(busy_s)), *busy_s),
        claim("asks for {} replicates of {} shapes", word(gpu.replicates), plain(len(gpu.shapes))),
        claim("{} backends, {} peers,", word(kinds("sdpa.")), word(kinds("peer."))),
        claim("{} kernels and {} timings", word(kinds(ladder.PREFIX)), word(len(gpu.timings))),
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
        claim("the strides and the address are multiples of {} bytes", f"{maps.ALIGNMENT}"),
        claim("an address or a stride is no multiple of {} bytes", f"{maps.ALIGNMENT}"),
        claim("what took up to {} as long is kept", times(tune.MOST_KEPT)),
        claim("at lengths from {} to {} in float16", plain(min(tune.SEQ_LENS)), plain(max(tune.SEQ_LENS))),
        claim("Up to rung {} the numbers there are from trials", f"{len(heads())}"),
        claim("its medians lie within {} % of the trials'", f"{furthest_trial_pct()}"),
        claim(
            "rung {} gained {}x over rung {} in its trial and {}x in interleaved rounds",
            f"{number_of('wgmma')}",
            trial_gain("wgmma"),
            f"{number_of('pipelined')}",
            f"{speedup('wgmma', 'pipelined'):.2f}",
        ),
        claim(
            "rung {} gained {} % over rung {} in its trial and {} % in interleaved rounds",
            f"{number_of('overlap')}",
            trial_gain("overlap"),
            f"{number_of('wgmma')}",
            f"{100 * (speedup('overlap', 'wgmma') - 1):.1f}",
        ),
        # Clocks and caches
        claim(
            "a replay takes about {} ms, at most {} calls",
            plain(cuda_events.GRAPH_US / 1e3),
            plain(cuda_events.GRAPH_CALLS),
        ),
        claim("takes one sample for every {} of the other clocks", word(studies.TRACED)),
        claim("under `cupti` one for every {} of these", word(studies.TRACED)),
        claim("After about one round in {} of", plain(rounds.CUT_SHORT)),
        claim("{} the L2 was overwritten", times(flushed())),
        claim("{} the last level of cache is overwritten", times(flushed())),
        claim("agreed with the next within {} %", percent(rules.STEADY)),
        claim("by {} clocks: ours,", word(clocks())),
        # The gate
        claim("may err at most {} as much", bound),
        claim("may be at most {} those", bound),
        claim("{} these are allowed", bound),
        # Inference
        claim("Intervals are {} % intervals of the median", percent(rules.CONFIDENCE)),
        claim("bootstrap with {} resamples", plain(rules.RESAMPLES)),
        claim("bootstrap's with {} resamples", plain(rules.RESAMPLES)),
        claim("at least {} as long as that of a bootstrap", times(shortest_over_blocks())),
        claim("cut into {} stretches", word(bootstrap.BATCHES)),
        claim("the {} % interval lies within ±{} %", percent(1 - 2 * rules.ALPHA), equal),
        claim("the {} % interval excludes", percent(rules.CONFIDENCE)),
        claim("at the {} % level finds with a probability of {} %", percent(rules.ALPHA), percent(rules.POWER)),
        claim("$p < {}$", plain(rules.ALPHA)),
        claim(r"|\delta| \ge {}$", plain(rules.CLAIM_DELTA)),
        claim("a speedup of at least {}", f"{rules.CLAIM_SPEEDUP:.2f}"),
        # Arithmetic
        claim("{} times for {} the length", word(more_work("seq_len", 2)), times(2)),
        claim("{} for {} the batch or heads", times(more_work("batch", 2)), times(more_work("heads", 2))),
        claim("is ${}$ FLOPs, or ${}$", formula("4BHS^2D", full), formula("2BHS(S+1)D", masked)),
        claim("`full` {},", formula("4·B·H·S²·D", full)),
        claim("`halved` {} of it", times(causal_share())),
        claim("`masked` {} |", formula("2·B·H·S·(S+1)·D", masked)),
        claim("$F = {}$ FLOPs", formula("4BHS^2D", full)),
        claim("$M = {}$ bytes", formula("4BHSDb", lambda shape: shape.bytes)),
        claim("$F = {}$", formula("2BHS(S+1)D", masked)),
        claim("which is ${}$ of this", formula("S/(S+1)", lambda shape: Fraction(full(shape), 2 * masked(shape)))),
        claim("Others {} the full count instead", {0.5: "halve"}[causal_share()]),
        claim(
            r"F = {}, \qquad M = {},",
            formula("4 B H S^2 D", full),
            formula(r"4 B H S D\, b", lambda shape: shape.bytes),
        ),
        claim("leave ${}$ FLOPs and {} the exponentials", formula("2 B H S (S+1) D", masked), times(causal_share())),
        # Counters
        claim("from {} % of its peak", plain(counters.SATURATED_PCT)),
        claim("used at {} % of their peak", plain(counters.SATURATED_PCT)),
    )


def replace_template(rung: ladder.Rung) -> ladder.Tile:
    """A tile of a rung without template arguments of its own."""
    return rung.tiles[0].model_copy(update={"template": type(rung.tiles[0].template)()})


def swizzle() -> tuple[str, str]:
    """Columns of a box, and the bytes that they span, which the name of the swizzle repeats."""
    (named,) = set(re.findall(r"SWIZZLE_(\d+)B", inspect.getsource(maps._encoded)))
    assert int(named) == maps.BOX_COLUMNS * shapes.BYTES_PER_ELEMENT["float16"]
    return f"{maps.BOX_COLUMNS}", named


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
    kept = PAIR.sub("between", NO_DIFFERENCE.sub(r"\1 unity", one_line(kept)))
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
    ("module", "name", "value", "page", "sentence"),
    [
        (rules, "RESAMPLES", 9_999, "docs/method.md", "bootstrap with 10 000 resamples"),
        (rules, "CLAIM_SPEEDUP", 1.05, "notebooks/report.ipynb", "a speedup of at least 1.10"),
        (cuda_events, "GRAPH_CALLS", 32, "notebooks/report.ipynb", "at most 64 calls"),
        (rules, "GATE_FACTOR", 3.0, "data/README.md", "twice these are allowed"),
        (counters, "SATURATED_PCT", 50, "notebooks/07_profile.ipynb", "used at 60 % of their peak"),
    ],
)
def test_a_constant_that_changes_breaks_its_sentence(monkeypatch, module, name, value, page, sentence):
    monkeypatch.setattr(module, name, value)
    claims.cache_clear()
    try:
        changed = [claim.stated for claim in claims()]
    finally:
        monkeypatch.undo()
        claims.cache_clear()
    found = unheld(text_of(ROOT / page), changed)
    assert found
    assert all(sentence in around for around in found)


def test_the_gate_goes_by_the_factor_that_pages_state():
    framework = Error(1.0, 0.5)
    for share, passes in ((1.0, True), (1.001, False)):
        factor = share * rules.GATE_FACTOR
        assert Check(Error(factor, 0.5), framework).passed is passes
        assert Check(Error(1.0, 0.5 * factor), framework).passed is passes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4BHS^2D", 4 * 2 * 3 * 5**2 * 7),
        ("2·B·H·S·(S+1)·D", 2 * 2 * 3 * 5 * 6 * 7),
        (r"4 B H S D\, b", 4 * 2 * 3 * 5 * 7 * 2),
        ("S/(S+1)", Fraction(5, 6)),
    ],
)
def test_a_formula_is_evaluated(text, value):
    assert evaluated(text, shapes.Shape(2, 3, 5, 7)) == value


@pytest.mark.parametrize("text", ["2BHS^2D", "4BHS^2", "4BHS(S+1)D", "4BHSD"])
def test_a_formula_that_the_code_does_not_follow_is_on_no_page(text):
    assert formula(text, full).startswith(f"({text} is not what the code counts at ")


def test_only_the_one_of_a_ratio_needs_no_claim():
    assert unheld("The interval excludes 1, and the speedup differs from 1.", []) == []
    assert len(unheld("It excludes 1.05 or 1 ms, and differs from 1 %, and from 12.", [])) == 4


def test_the_run_that_pages_speak_of_is_the_one_that_make_shows():
    for page in ("README.md", "data/README.md"):
        assert f"`{PUBLISHED}`" in (ROOT / page).read_text() or f"RUN={PUBLISHED}" in (ROOT / page).read_text()
    assert f"`{PUBLISHED}` is the published run" in one_line((ROOT / "data" / "README.md").read_text())


def test_every_column_of_a_run_is_explained():
    explained = (ROOT / "data" / "README.md").read_text()
    columns = {column for table in schema.COLUMNS.values() for column in table}
    assert {column for column in columns if f"`{column}`" not in explained} == set()
    assert [table for table in schema.TABLES if f"{table}.parquet" not in explained] == []


def test_every_field_of_a_manifest_is_explained():
    explained = (ROOT / "data" / "README.md").read_text()
    fields = {field for path in (ROOT / "data").glob("*/manifest.json") for field in json.loads(path.read_text())}
    assert {field for field in fields if f"`{field}`" not in explained} == set()
