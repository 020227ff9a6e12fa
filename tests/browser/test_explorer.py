"""The explorer in Chromium: what it shows, that everything chosen can be undone, that keys alone reach all of it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from urllib.parse import quote, quote_plus

import pytest
import synthetic
from synthetic import TARGET, Recipe

from attnlab.exhibits.explore import data, others, recorded
from attnlab.exhibits.explore.explorer import html
from attnlab.exhibits.verdicts.target import supported
from attnlab.infer import cases
from attnlab.infer.results import Results
from browser.conftest import REPORTS

SHAPES = {
    "seq_len": [synthetic.AXES | {"seq_len": [64, 128, 256]}],
    "batch": [synthetic.AXES | {"batch": [1, 2], "seq_len": 128}],
    "causal seq_len": [synthetic.AXES | {"seq_len": [64, 128], "causal": True}],
    "bfloat16 head_dim": [synthetic.AXES | {"seq_len": 128, "head_dim": [64, 128], "dtype": "bfloat16"}],
    "values": [synthetic.AXES | {"seq_len": 128, "values": ["normal", "sd 4"]}],
    "odd seq_len": [synthetic.AXES | {"seq_len": 100}],
    "grouped kv_heads": [synthetic.AXES | {"seq_len": 128, "kv_heads": 2}],
    "decode kv_len": [synthetic.AXES | {"seq_len": 1, "kv_len": 256}],
}
STUDY = {
    "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", "kernel.tiled"],
    "timings": [*synthetic.STUDY["timings"], {"clock": "device", "cache": "cold"}],
    "sweeps": SHAPES,
}
LABELLED = [
    TARGET.resized(seq_len=1, kv_heads=2, kv_len=256, causal=True),
    TARGET.resized(layout="tokens first", causal=True),
    TARGET.resized(scale=0.05),
    TARGET.resized(lengths="spread", causal=True),
    TARGET.resized(direction="training", causal=True),
    TARGET.resized(values="captured early"),
]
"""A shape for each kind of words that a label has."""
LABELS = {
    "implementations": ["sdpa.auto", "sdpa.flash"],
    "timings": synthetic.STUDY["timings"][:1],
    "sweeps": {
        "labels seq_len": [shape.axes for shape in LABELLED],
        **{name: SHAPES[name] for name in ("seq_len", "batch", "grouped kv_heads", "decode kv_len")},
    },
}
ODD = ["peer.a_b__c", "peer.UPPER_Case_2", "peer.naïve漢字", f"peer.{'x' * 195}"]
KINDS_US = {"normal": 40.0, "sd 4": 40.0, "zeros": 30.0}, {"normal": 25.0, "sd 4": 32.0, "zeros": 40.0}
UNSTEADY_US = {"normal": 40.0, "sd 4": 40.0}, {"normal": 25.0, "sd 4": 45.0}
CHANGED = dict.fromkeys(["sdpa.auto", "kernel.tiled"])
"""Said to have changed since the run `before`."""
GONE = ("failed", "before timing, call: error against float64")
CHANGES = {
    "clock": "eager",
    "cache": "cold",
    "mask": "causal",
    "dtype": "bfloat16",
    "dim": "128",
    "values": "sd 4",
    "claim": "lost",
    "axis": "batch",
    "metric": "latency",
    "by": "replicate",
    "baseline": "sdpa.flash",
    "against": "none",
    "run": "before",
}
"""For each select, a value other than the one at first."""


# ---------------------------------------------------------------------------------------------------------- the pages


def made(recipe: Recipe) -> Results:
    return synthetic.infer(recipe)


def altered(of: Results, name: str, **changed: float) -> Results:
    """A run whose latencies of an implementation under a clock are so many times as long."""
    samples = of.run.samples
    latencies = samples["latency_us"]
    for clock, times in changed.items():
        these = samples["implementation"].eq("sdpa.flash") & samples["clock"].eq(clock)
        latencies = latencies.where(~these, times * latencies)
    run = replace(of.run, name=name, samples=samples.assign(latency_us=latencies))
    return Results(run, cases.infer(run))


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """The address of each page: two runs, of which one flips with the clock; and runs that lack much."""
    folder = tmp_path_factory.mktemp("explorers")
    here = altered(made(Recipe(study=STUDY, fates={}, control_pace=1.0)), "synthetic", eager=3.0)
    there = altered(here, "before", device=1.5)
    shapes = here.study.shapes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            synthetic, "PACE", synthetic.PACE | dict.fromkeys(ODD, 0.9) | {"kernel.tiled": 0.5, "sdpa.math": 8.0}
        )
        alone = {
            "ours": made(Recipe(study=synthetic.AT_TARGET | {"implementations": ["sdpa.auto", "kernel.tiled"]})),
            "names": made(Recipe(study=synthetic.AT_TARGET | {"implementations": ["sdpa.auto", *ODD]})),
            "no baseline": made(Recipe(study=STUDY, fates={("sdpa.auto", shape): GONE for shape in shapes})),
            "failures": made(
                Recipe(study=STUDY, fates={(name, one): GONE for name in STUDY["implementations"] for one in shapes})
            ),
            "far": made(
                Recipe(study=synthetic.AT_TARGET | {"implementations": ["sdpa.auto", "sdpa.flash", "sdpa.math"]})
            ),
            "one implementation": synthetic.lonely(),
            "labels": made(Recipe(study=LABELS, fates={})),
            "unsteady": made(
                synthetic.of_kinds(
                    dict(zip(("sdpa.auto", "sdpa.flash"), UNSTEADY_US, strict=True)),
                    sweeps={
                        "values": [synthetic.AXES | {"seq_len": 128, "values": ["normal", "sd 4"]}],
                        "seq_len": [synthetic.AXES | {"seq_len": 64}],
                    },
                )
            ),
            "fp8": made(
                Recipe(
                    study=synthetic.AT_TARGET | {"implementations": ["sdpa.auto", "sdpa.flash", "kernel.fp8"]},
                    latencies_us={("kernel.fp8", TARGET): 20.0},
                )
            ),
            "kinds": made(synthetic.of_kinds(dict(zip(("sdpa.auto", "sdpa.flash"), KINDS_US, strict=True)))),
        }
        blocks = {name: data.payload(of, []) for name, of in alone.items()}
        patch.setattr(recorded.rungs, "stale", lambda run: CHANGED if run.name == "before" else {})
        blocks["two runs"] = data.payload(here, [others.told(there, [there.study.baseline])])
        of = there.run.manifest["device"] | {"name": "NVIDIA H100 80GB HBM3"}
        run = replace(there.run, name="elsewhere", manifest={**there.run.manifest, "device": of})
        elsewhere = others.told(replace(there, run=run), [there.study.baseline])
        blocks["two devices"] = data.payload(here, [elsewhere])
        blocks["three runs"] = data.payload(here, [elsewhere, others.told(there, [there.study.baseline])])
        patch.setattr(data, "MOST_BYTES", len(blocks["ours"]) + 100)
        blocks["no room"] = data.payload(alone["ours"], [elsewhere])
    found = {}
    for name, block in blocks.items():
        path = folder / f"{name}.html"
        path.write_text(html(name, block), encoding="utf-8")
        found[name] = path.as_uri()
    return found


@pytest.fixture
def visit(browser) -> Iterator:
    """Opens a page; afterwards nothing may have been asked for, and nothing complained of."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    asked, complaints = [], []
    context.on("request", lambda request: asked.append(request.url))
    context.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else 0
    )
    context.on("weberror", lambda error: complaints.append(str(error.error)))

    def visit(address: str, hash: str = "", width: int = 1280, scheme: str = "light"):
        opened = context.new_page()
        opened.set_viewport_size({"width": width, "height": 900})
        opened.emulate_media(color_scheme=scheme)
        opened.goto(address + hash)
        opened.wait_for_selector("html[data-drawn]")
        return opened

    yield visit
    context.close()
    assert [url for url in asked if not url.startswith("file:")] == []
    assert complaints == []


@pytest.fixture
def explorer(visit, pages):
    return visit(pages["two runs"])


def text(opened, part: str) -> str:
    return opened.locator(f'[data-part="{part}"]').inner_text()


def everything(opened) -> str:
    """All that is drawn, with what is chosen."""
    chosen = opened.locator("select").evaluate_all("found => found.map((one) => one.value).join()")
    html = opened.locator(".attnlab-explorer").inner_html()
    return chosen + re.sub(r' title="[^"]*"', "", html)  # a cell that was pointed at has one


def cell(opened, candidate: str, row: int):
    column = opened.locator("table.matrix thead th").all_inner_texts().index(candidate)
    return opened.locator("table.matrix tbody tr").nth(row).locator("th, td").nth(column)


# ------------------------------------------------------------------------------------------------------- what is shown


def test_the_matrix_and_the_statement_say_what_was_computed(explorer, pages):
    of = altered(made(Recipe(study=STUDY, fates={}, control_pace=1.0)), "synthetic", eager=3.0)
    assert explorer.locator("table.matrix tbody tr").count() == len(of.study.shapes)
    row = of.study.shapes.index(TARGET)
    assert cell(explorer, "sdpa.flash", row).inner_text() == "★ 1.250"
    assert cell(explorer, "sdpa.cudnn", row).inner_text() == "= 0.995"
    cell(explorer, "sdpa.flash", row).click()
    assert "a speedup of 1.2500 [1.2499, 1.2501]" in text(explorer, "cell")
    assert "Faster, and claimable." in text(explorer, "cell")
    assert "in the order taken" in text(explorer, "cell").lower()


def test_the_rows_are_put_in_order_by_a_column_smallest_first_then_largest(explorer):
    heading = explorer.locator("table.matrix thead th").nth(1)
    rows = explorer.locator("table.matrix tbody th")
    studied = rows.all_inner_texts()
    found = {}
    for order in ("ascending", "descending"):
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == order
        shown = explorer.locator("table.matrix tbody td:nth-child(2)").all_inner_texts()
        found[order] = [float(number.split()[-1]) for number in shown]
    assert found["ascending"] == sorted(found["descending"])
    assert found["descending"] == sorted(found["ascending"], reverse=True)
    assert "order=" in explorer.url
    other = explorer.locator("table.matrix thead th").nth(2)
    other.get_by_role("button").click()
    assert (other.get_attribute("aria-sort"), heading.get_attribute("aria-sort")) == ("ascending", None)
    explorer.go_back()
    heading.get_by_role("button").press("Enter")
    assert rows.all_inner_texts() == studied
    assert "order=" not in explorer.url


def test_another_clock_another_verdict(explorer):
    row = 1
    assert cell(explorer, "sdpa.flash", row).inner_text().startswith("★")
    explorer.get_by_label("clock", exact=True).select_option("eager")
    assert cell(explorer, "sdpa.flash", row).inner_text().startswith("▼")
    assert "faster by device warm" in text(explorer, "flips")
    explorer.locator("#attnlab-baseline").select_option("fastest peer")
    assert "No verdicts were computed against fastest peer." not in text(explorer, "flips")
    assert "faster than fastest peer by one of these" in text(explorer, "flips")
    explorer.locator("#attnlab-baseline").select_option("sdpa.cudnn")
    assert "No verdicts were computed against sdpa.cudnn." in text(explorer, "flips")


def test_a_baseline_without_verdicts_has_ratios_of_medians(explorer):
    explorer.locator("#attnlab-baseline").select_option("sdpa.cudnn")
    assert cell(explorer, "sdpa.flash", 1).inner_text() == "1.256"
    assert "No verdicts were computed against sdpa.cudnn." in text(explorer, "matrix")


def test_of_medians_alone_nothing_is_claimable_and_that_is_said(explorer):
    explorer.locator("#attnlab-claim").select_option("claimable")
    explorer.locator("#attnlab-baseline").select_option("sdpa.cudnn")
    assert "Nothing can be claimed against sdpa.cudnn" in text(explorer, "matrix")
    assert explorer.locator("table.matrix").count() == 0


def test_the_fastest_peer_is_another_at_another_shape_and_the_mean_is_over_what_is_shown(explorer):
    explorer.locator("#attnlab-baseline").select_option("fastest peer")
    assert re.fullmatch(r"base \d+\.\d+", cell(explorer, "sdpa.flash", 1).inner_text())
    assert "base: the fastest peer there, with its median in µs" in text(explorer, "matrix")
    assert cell(explorer, "sdpa.flash", 1).get_attribute("aria-label").endswith("the baseline")
    assert cell(explorer, "sdpa.cudnn", 1).inner_text().startswith("▼ 0.796")
    assert explorer.locator("table.matrix tfoot td").last.inner_text()
    explorer.locator("#attnlab-claim").select_option("lost")
    assert explorer.locator("table.matrix tbody tr").count()
    assert all(
        sign.startswith("▼") for sign in explorer.locator("table.matrix tbody td:nth-child(4)").all_inner_texts()
    )


def test_where_ours_loses_nowhere_the_kernel_is_named_and_the_shapes_are_counted(visit, pages):
    said = "Of 1 shape, each kind of values counted, kernel.tiled is slower at none."
    assert said in text(visit(pages["ours"], "#claim=lost"), "matrix")
    assert "None of our kernels is in this run." in text(visit(pages["one implementation"], "#claim=lost"), "matrix")


def test_in_the_mean_a_shape_counts_once_by_its_worst_kind_of_values(explorer):
    rows, means = explorer.locator("table.matrix tbody tr"), explorer.locator("table.matrix tfoot")
    title = f"geometric mean of {rows.count() - 1} shapes, each by its worst kind of values"
    assert means.locator("th").inner_text() == title
    of_dim = {"dim": "64", "mask": "full", "dtype": "float16"}
    for name, value in of_dim.items():
        explorer.locator(f"#attnlab-{name}").select_option(value)
    column = explorer.locator("table.matrix tbody td:nth-child(2)").all_inner_texts()
    by_shape = dict(zip(rows.locator("th").all_inner_texts(), (float(one.split()[-1]) for one in column), strict=True))
    plain, drawn = (
        next(name for name in by_shape if name.startswith("S=128 ") and (word in name)) for word in ("target", "sd 4")
    )
    by_shape[plain] = min(by_shape[plain], by_shape.pop(drawn))
    assert float(means.locator("td").first.inner_text()) == pytest.approx(geometric_mean(by_shape.values()), rel=1e-3)


def test_zeros_are_no_worst_kind(visit, pages):
    mean = visit(pages["kinds"]).locator("table.matrix tfoot td").last
    assert float(mean.inner_text()) == pytest.approx(40 / 32, rel=0.01)
    zeros = visit(pages["kinds"], "#values=zeros").locator("table.matrix tfoot")
    assert zeros.inner_text() == "no geometric mean: zeros count in none"


def test_an_odd_length_is_a_dot_beside_the_line(explorer):
    shown = explorer.locator('[data-part="lines"] g.line').first
    assert shown.locator("circle.dot").count() == 4
    assert shown.locator("path").first.get_attribute("d").count("L") == 2


def test_what_leads_from_a_line_to_its_name_looks_like_no_line(explorer):
    leads = explorer.locator('[data-part="lines"] svg .lead')
    assert set(leads.evaluate_all("found => found.map((one) => getComputedStyle(one).strokeDasharray)")) == {"1px, 3px"}


def test_a_drawing_is_downloaded_as_it_is_shown(explorer):
    with explorer.expect_download() as started:
        explorer.get_by_text("Download the lines as SVG").click()
    drawing = Path(started.value.path()).read_text()
    assert drawing.startswith("<svg")
    assert 'xmlns="http://www.w3.org/2000/svg"' in drawing
    assert "stroke: rgb(" in drawing
    assert re.search(
        r"run synthetic, NVIDIA H200, 20\d\d-\d\d-\d\d<.*device clock, warm cache; baseline sdpa.auto<", drawing
    )
    with explorer.expect_download() as started:
        explorer.get_by_text("Download the distribution as SVG").click()
    drawing = Path(started.value.path()).read_text()
    for words in (
        "■ sdpa.auto<",
        "■ sdpa.flash<",
        "■ sdpa.auto again (A/A)<",
        "sdpa.flash against sdpa.auto<",
        f"{TARGET.label}<",
    ):
        assert words in drawing


@pytest.mark.parametrize("width", [390, 1120, 1280])
def test_no_table_but_the_matrix_is_wider_than_its_place(visit, pages, width):
    opened = visit(pages["two runs"], "#find=gqa", width=width)
    wider = "found => found.filter((one) => !one.querySelector('.matrix') && one.scrollWidth > one.clientWidth).length"
    assert opened.locator(".scroll").evaluate_all(wider) == 0


def test_one_run_beside_another(explorer):
    told = explorer.locator('[data-part="beside"]').text_content()  # out of sight it has no inner text
    assert "From before (B) to synthetic (A)" in told
    assert "sdpa.flash" in told
    assert "−33.3 %" in told
    assert re.search(r"\d{3}\.\d+ \[[\d., ]+\]\d{2,3}\.\d+ \[[\d., ]+\]−33\.3 % \[.*\]p<0\.0001, n=80\+80", told)
    assert "without a change that can be shown" in told
    titles = explorer.locator('[data-part="beside"] thead th').all_text_contents()
    assert titles[-3:] == ["change [95 %]", "p, n of B + A", "kernel"]
    assert "run" in explorer.locator('[data-part="flips"] td:nth-child(3)').all_text_contents()


@pytest.mark.parametrize(
    ("asked", "differs"), [("S=128 causal fp16", "nothing: as asked"), ("s100 causal bf16", "S=128")]
)
def test_a_shape_is_found_in_words(explorer, asked, differs):
    explorer.get_by_label("Which kernel for").fill(asked)
    explorer.keyboard.press("Enter")
    first = explorer.locator('[data-part="find"] tbody tr').first
    assert differs in first.inner_text()
    assert "sdpa.flash" in first.inner_text()
    first.get_by_role("button").click()
    assert "at (2, 4, 128, 64)" in text(explorer, "cell")


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        ("target", TARGET.label),
        ("(2, 4, 64, 64)", "(2, 4, 64, 64) float16"),
        ("128 causal", "(2, 4, 128, 64) float16, causal"),
        ("gqa", "(2, 4, 128, 64) float16, 2 KV heads"),
        ("decode 256", "(2, 4, 1, 64) float16, 256 keys"),
        ("64 queries", "(2, 4, 64, 64) float16"),
        ("128 keys causal", "(2, 4, 128, 64) float16, causal"),
        ("target SD 4", f"{TARGET.label}, sd 4 values"),
        ("normal target", TARGET.label),
        ("2x4x64x64", "(2, 4, 64, 64) float16"),
    ],
)
def test_numbers_and_kinds_of_attention_name_a_shape(explorer, asked, shape):
    explorer.get_by_label("Which kernel for").fill(asked)
    explorer.keyboard.press("Enter")
    first = explorer.locator('[data-part="find"] tbody tr').first
    assert first.locator("td").all_inner_texts()[:2] == [shape, "nothing: as asked"]


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        *((shape.label, shape.label) for shape in LABELLED),
        ("S = 256", "(2, 4, 256, 64) float16"),
        ("batch 1 heads 4", "(1, 4, 128, 64) float16"),
        ("1 query", "(2, 4, 1, 64) float16, 256 keys"),
        ("1 4 128", "(1, 4, 128, 64) float16"),
        ("captured 128", "(2, 4, 128, 64) float16, captured early values"),
    ],
)
def test_labels_of_the_page_and_words_with_spaces_name_a_shape(visit, pages, asked, shape):
    opened = visit(pages["labels"], f"#find={quote(asked)}")
    first = opened.locator('[data-part="find"] tbody tr').first
    assert first.locator("td").all_inner_texts()[:2] == [shape, "nothing: as asked"]
    assert "Not understood" not in text(opened, "find")


@pytest.mark.parametrize("asked", ["not causal", "non-causal", "full"])
def test_a_mask_that_is_denied_is_not_asked_for(visit, pages, asked):
    opened = visit(pages["two runs"], f"#find={asked} 128")
    as_asked = opened.locator('[data-part="find"] tbody tr', has_text="as asked").locator("td:first-child")
    assert as_asked.count()
    assert not [label for label in as_asked.all_inner_texts() if "causal" in label]


def test_nothing_is_as_asked_where_a_word_was_not_understood(visit, pages):
    opened = visit(pages["two runs"], "#find=128 causal fast")
    assert "Not understood: fast." in text(opened, "find")
    assert "Measured as far as that was understood" in text(opened, "find")
    assert "as asked" not in text(opened, "find")


def test_decoding_may_share_heads_of_keys_and_plain_shapes_come_first(visit, pages):
    asked = visit(pages["labels"], "#find=decode").locator('[data-part="find"] tbody tr', has_text="as asked")
    decoding = ["(2, 4, 1, 64) float16, 256 keys", LABELLED[0].label]
    assert asked.locator("td:first-child").all_inner_texts() == decoding


def test_others_in_the_interval_of_the_smallest_median_are_named(visit, pages):
    opened = visit(pages["names"])
    assert "In that interval are those of" in text(opened, "find")
    assert 1 < text(opened, "find").count("peer.") <= len(ODD)


def test_speedups_far_below_one_stand_in_the_table_alone(visit, pages):
    opened = visit(pages["far"])
    assert "Where below 0.25, in the table alone: sdpa.math." in text(opened, "lines")
    assert "sdpa.math" not in opened.locator('[data-part="lines"] svg text.name').all_inner_texts()
    assert "sdpa.math" in opened.locator('[data-part="lines"] details').text_content()
    assert "Where below" not in text(visit(pages["ours"]), "lines")


def test_another_kind_of_values_keeps_the_cell(explorer):
    explorer.locator("td[data-at$='/sdpa.cudnn']").nth(2).click()
    explorer.locator("#attnlab-values").select_option("sd 4")
    marked = explorer.locator('table.matrix [aria-selected="true"]')
    assert marked.get_attribute("data-at").endswith("/sdpa.cudnn")
    assert "sd 4" in marked.locator("xpath=..").locator("th").inner_text()


def test_what_is_as_asked_stands_apart_from_what_is_nearest(visit, pages):
    opened = visit(pages["labels"], "#find=gqa")
    tables = opened.locator('[data-part="find"] table')
    assert opened.locator('[data-part="find"] h3').all_inner_texts() == ["Measured as asked", "The nearest beside"]
    grouped = tables.first.locator("tbody td:first-child").all_inner_texts()
    assert grouped == ["(2, 4, 128, 64) float16, 2 KV heads"]
    nearest = tables.last.locator("tbody td").all_inner_texts()
    assert nearest[:2] == ["(2, 4, 1, 64) float16, causal, 2 KV heads, 256 keys", "256 keys"]
    assert "no gqa" in nearest


def test_a_request_is_answered_by_the_worst_kind_of_values(visit, pages):
    opened = visit(pages["kinds"], "#find=target")
    row = opened.locator('[data-part="find"] tbody tr').first.locator("td").all_inner_texts()
    assert row[2] == "sdpa.flash"
    assert re.fullmatch(r"32\.\d+ \[.*\], on sd 4, its worst of 2 kinds", row[3])
    assert "on sd 4, its worst of 2 kinds" in text(visit(pages["kinds"]), "find")
    own = visit(pages["kinds"], "#find=target normal").locator('[data-part="find"] tbody tr').first
    assert re.fullmatch(r"25\.\d+ \[.*\]", own.locator("td").nth(3).inner_text())


def test_the_answer_goes_by_the_kind_of_values_and_the_candidates_that_are_chosen(visit, pages):
    normal = text(visit(pages["kinds"], "#values=normal"), "find")
    assert re.search(r"sdpa\.flash has the smallest median, 25\.\d+ \[.*\] µs\.", normal)
    opened = visit(pages["two runs"], "#candidates=kernel.tiled")
    assert "has the smallest median of what is chosen" in text(opened, "find")
    assert "sdpa.flash" not in text(opened, "find")
    found = visit(pages["two runs"], "#candidates=kernel.tiled&find=target")
    assert "Only the candidates that are chosen count, and the baseline." in text(found, "find")
    answers = found.locator('[data-part="find"] tbody td:nth-child(3)').all_inner_texts()
    assert not any("sdpa.flash" in one or "sdpa.cudnn" in one for one in answers)


def test_what_was_found_beyond_a_dozen_is_folded_away_and_counted(explorer):
    explorer.locator("#attnlab-find").fill("float16")
    explorer.keyboard.press("Enter")
    part = explorer.locator('[data-part="find"]')
    assert part.locator("tbody").first.locator("tr").count() == 12
    more = int(part.locator("summary").inner_text().removesuffix(" more"))
    part.locator("summary").click()
    rows = part.locator("details tbody tr")
    rows.last.wait_for()  # they are drawn once the browser tells of the click
    assert rows.count() == more


def test_the_baseline_that_is_chosen_stays_with_a_shape_that_was_found(visit, pages):
    opened = visit(pages["two runs"], "#baseline=sdpa.cudnn&find=target")
    assert opened.locator('[data-part="find"] thead th').nth(4).inner_text() == "against sdpa.cudnn"
    assert "a ratio of medians of" in opened.locator('[data-part="find"] tbody td:nth-child(5)').first.inner_text()
    opened.locator('[data-part="find"] tbody button').first.click()
    assert opened.locator("#attnlab-baseline").input_value() == "sdpa.cudnn"
    assert "This is a ratio of medians of" in text(opened, "cell")


def test_reset_leads_back_to_what_was_shown_first(explorer):
    before = everything(explorer)
    explorer.locator("#attnlab-mask").select_option("causal")
    cell(explorer, "sdpa.cudnn", 1).click()
    explorer.get_by_role("button", name="reset").click()
    assert everything(explorer) == before
    assert "#" not in explorer.url or explorer.url.endswith("#")


def test_what_goes_by_the_values_is_passed_over_where_one_kind_was_timed(visit, pages):
    opened = visit(pages["unsteady"], "#find=S=64")
    row = opened.locator('[data-part="find"] tbody tr').first.locator("td").all_inner_texts()
    assert row[2] == "sdpa.auto (sdpa.flash passed over)"
    assert re.search(r"sdpa\.flash takes 1\.\d+× as long on sd 4 values as on its fastest", text(opened, "find"))
    here = text(visit(pages["unsteady"], "#shape=" + quote(str(TARGET.resized(seq_len=64)))), "find")
    assert re.search(r"sdpa\.auto has the smallest median, [\d.]+ \[.*\] µs, on normal values alone\.", here)
    assert "sdpa.flash takes 1." in here


def test_a_shape_that_was_found_is_shown_with_its_answer(visit, pages):
    opened = visit(pages["fp8"], "#find=target")
    assert "kernel.fp8 against sdpa.auto" in text(opened, "cell")
    opened.locator('[data-part="find"] tbody button').first.click()
    assert "sdpa.flash against sdpa.auto" in text(opened, "cell")


def test_fp8_answers_only_who_asks_for_it(visit, pages):
    opened = visit(pages["fp8"], "#find=target")
    assert "FP8 are left out: ask for fp8." in text(opened, "find")
    assert "kernel.fp8" not in text(opened, "find")
    assert "sdpa.flash has the smallest median in 16 bits" in text(visit(pages["fp8"]), "find")
    opened = visit(pages["fp8"], "#find=target fp8")
    assert opened.locator('[data-part="find"] tbody td:nth-child(3)').all_inner_texts() == ["kernel.fp8, changed since"]
    assert "in e4m3: quantising them isn't timed" in text(opened, "find")


def test_thousands_are_of_1024_and_the_run_that_is_shown_comes_first(explorer):
    explorer.locator("#attnlab-run").select_option("before")
    for asked in ("S=16k", "16384"):
        explorer.get_by_label("Which kernel for").fill(asked)
        explorer.keyboard.press("Enter")
        first = explorer.locator('[data-part="find"] tbody tr').first.locator("td")
        assert "Not understood" not in text(explorer, "find")
        assert first.nth(1).inner_text() == "S=256"
        assert first.last.inner_text().startswith("before, 20")  # and the rest of its date


def test_a_kernel_that_has_changed_since_its_run_is_said_where_its_numbers_are(explorer):
    changed = "sdpa.auto and kernel.tiled changed since"
    assert changed not in explorer.locator("header").inner_text()
    explorer.locator("#attnlab-run").select_option("before")
    assert changed in explorer.locator("header").inner_text()
    assert re.fullmatch(r"before, 20\d\d-\d\d-\d\d", explorer.locator("#attnlab-run option:checked").inner_text())
    explorer.get_by_label("Which kernel for").fill("target")
    explorer.keyboard.press("Enter")
    rows = explorer.locator('[data-part="find"] tbody tr').all_inner_texts()
    assert any("sdpa.auto, changed since" in row for row in rows)
    assert all("before, " in row for row in rows if ", changed since" in row)


@pytest.mark.parametrize(
    ("asked", "runs"),
    [("target h100", {"elsewhere"}), ("hbm3 128", {"elsewhere"}), ("H=100", {"elsewhere", "synthetic"})],
)
def test_a_device_in_a_request_is_that_of_the_runs(visit, pages, asked, runs):
    opened = visit(pages["two devices"])
    opened.get_by_label("Which kernel for").fill(asked)
    opened.keyboard.press("Enter")
    found = opened.locator('[data-part="find"] tbody td:last-child').all_inner_texts()
    assert {words.split(",")[0] for words in found} == runs
    assert "Not understood" not in text(opened, "find")


def test_of_shapes_as_far_away_those_on_the_device_that_is_shown_come_first(visit, pages):
    opened = visit(pages["two devices"], "#find=128")
    found = opened.locator('[data-part="find"] tbody td:last-child').all_inner_texts()
    exact = opened.locator('[data-part="find"] tbody tr', has_text="nothing: as asked").count()
    assert exact >= 2
    assert [words.split(",")[0] for words in found[:exact]] == ["synthetic"] * (exact // 2) + ["elsewhere"] * (
        exact // 2
    )


def test_a_device_that_no_run_is_of_is_said(explorer):
    explorer.get_by_label("Which kernel for").fill("target h100")
    explorer.keyboard.press("Enter")
    assert "No run of an H100 is in this page." in text(explorer, "find")


def test_a_run_that_was_left_out_for_its_size_is_named(visit, pages):
    opened = visit(pages["no room"], "#find=h100")
    assert "No run of an H100 is in this page. Left out for size: elsewhere (NVIDIA H100 80GB HBM3)." in text(
        opened, "find"
    )
    assert "Left out for size: elsewhere (NVIDIA H100" in opened.locator('[data-part="beside"]').text_content()


def test_a_run_of_the_same_device_is_run_b_before_one_of_another(visit, pages):
    assert visit(pages["three runs"]).locator("#attnlab-against").input_value() == "before"


def test_the_statement_on_a_cell_is_that_of_06_verdicts(explorer):
    of, pair = (
        altered(made(Recipe(study=STUDY, fates={}, control_pace=1.0)), "synthetic", eager=3.0),
        ("sdpa.auto", "sdpa.flash"),
    )
    statement = supported(of, pair, TARGET, of.headline, of.under_each("sdpa.flash", TARGET))
    assert re.sub("[`*]", "", statement) == explorer.locator('[data-part="cell"] .statement').inner_text()


@pytest.mark.parametrize("asked", ["fast please", "S=0", "1 2", "constructor"])
def test_words_that_name_no_shape_are_said(explorer, asked):
    explorer.get_by_label("Which kernel for").fill(asked)
    explorer.keyboard.press("Enter")
    assert f"Not understood: {', '.join(asked.lower().split())}." in text(explorer, "find")
    assert "as asked" not in text(explorer, "find")


def test_a_matrix_of_many_columns_is_whole_beside_its_cell_on_a_wide_screen(visit, pages):
    opened = visit(pages["two runs"], width=1500)
    widths = "[...document.querySelectorAll('.columns > div')].map((one) => one.clientWidth)"
    matrix, beside = opened.evaluate(widths)
    assert matrix >= 1043  # the published run's 17 columns with a scroll bar
    assert beside >= 22 * 16


@pytest.mark.parametrize(("width", "columns"), [(1280, 10), (1920, 18)])
def test_the_titles_of_rows_take_two_lines_at_most_and_leave_room_for_columns(visit, width, columns, pages):
    opened = visit(pages["two runs"], width=width)
    titles = opened.locator("table.matrix tbody th div")
    heights = titles.evaluate_all(
        "found => found.map((one) => one.offsetHeight / parseFloat(getComputedStyle(one).lineHeight))"
    )
    assert max(heights) <= 2.1
    room = opened.locator("[data-part=matrix]").evaluate("one => one.clientWidth")
    assert room >= 192 + 54 * columns  # the widest title, and the published run's columns


def test_on_paper_the_matrix_is_whole_and_in_colour_and_nothing_is_left_to_press(explorer):
    explorer.emulate_media(media="print", color_scheme="dark")
    scroll = explorer.locator(".scroll:has(.matrix)")
    assert scroll.evaluate("one => [getComputedStyle(one).overflow, getComputedStyle(one).maxHeight]") == [
        "visible",
        "none",
    ]
    colours = explorer.locator("td[data-kind]").first.evaluate("one => getComputedStyle(one).printColorAdjust")
    assert colours == "exact"
    assert explorer.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert explorer.locator("select:visible, input:visible").count() == 0


def test_a_point_of_a_line_says_how_it_was_measured(explorer):
    explorer.locator("svg .touch").first.hover()
    assert re.search(r"n = 80, SM clock 1,9\d\d MHz, throttled 2\.5 %", explorer.locator(".tip").inner_text())


def test_the_samples_that_are_drawn_are_named_with_their_error(explorer):
    assert re.search(r"Every sample is drawn, rounded by at most [\d.e-]+ %", text(explorer, "cell"))


def test_the_table_is_downloaded(explorer):
    with explorer.expect_download() as started:
        explorer.get_by_text("Download what the matrix shows as CSV").click()
    lines = Path(started.value.path()).read_text().splitlines()
    assert lines[0].startswith("run,implementation,batch,heads,seq_len")
    assert any(line.startswith("synthetic,sdpa.flash,2,4,128,64,false,float16") for line in lines)


# -------------------------------------------------------------------------------------------------- choose, undo, link


@pytest.mark.parametrize("name", CHANGES)
def test_a_control_changes_the_view_and_the_address_and_can_be_undone(explorer, name):
    before, address = everything(explorer), explorer.url
    explorer.locator(f"#attnlab-{name}").select_option(CHANGES[name])
    after = everything(explorer)
    assert after != before
    assert f"{name}={quote_plus(CHANGES[name])}" in explorer.url
    linked = explorer.url
    explorer.go_back()
    assert explorer.url == address
    explorer.wait_for_function(
        "(value) => document.getElementById(value[0]).value !== value[1]", arg=[f"attnlab-{name}", CHANGES[name]]
    )
    assert everything(explorer) == before
    explorer.go_forward()
    explorer.wait_for_function(
        "(value) => document.getElementById(value[0]).value === value[1]", arg=[f"attnlab-{name}", CHANGES[name]]
    )
    assert (explorer.url, everything(explorer)) == (linked, after)


def test_another_run_keeps_what_is_chosen_where_it_has_it(explorer):
    kept = {"baseline": "sdpa.flash", "clock": "eager", "mask": "causal", "claim": "lost"}
    for name, value in kept.items():
        explorer.locator(f"#attnlab-{name}").select_option(value)
    explorer.locator("#attnlab-run").select_option("before")
    assert {name: explorer.locator(f"#attnlab-{name}").input_value() for name in kept} == kept
    assert explorer.locator("p.notice[role=status]").inner_text() == ""


def test_so_do_the_boxes(explorer):
    before = everything(explorer)
    explorer.locator("summary", has_text="candidates (3 of 3)").click()
    for name in ("sdpa.cudnn", "kernel.tiled"):
        explorer.locator(".checks").get_by_label(name).uncheck()
    assert "candidates=sdpa.flash" in explorer.url
    assert explorer.locator("table.matrix thead th").all_inner_texts() == ["shape", "sdpa.flash"]
    explorer.go_back()
    explorer.go_back()
    explorer.locator("summary", has_text="candidates (3 of 3)").click()
    assert everything(explorer) == before


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("none", []),
        ("ours", ["kernel.tiled"]),
        ("peers", ["sdpa.cudnn", "sdpa.flash"]),
        ("all", ["kernel.tiled", "sdpa.cudnn", "sdpa.flash"]),
    ],
)
def test_candidates_are_chosen_together_and_one_is_alone_after_two_clicks(explorer, link, shown):
    explorer.locator("summary", has_text="candidates (3 of 3)").click()
    checks = explorer.locator(".checks")
    checks.get_by_role("button", name="none").click()
    assert "No candidate is chosen." in text(explorer, "matrix")
    checks.get_by_label("sdpa.cudnn").check()
    assert explorer.locator("table.matrix thead th").all_inner_texts() == ["shape", "sdpa.cudnn"]
    checks.get_by_role("button", name=link).click()
    boxes = checks.locator("input:checked").evaluate_all("found => found.map((one) => one.value)")
    assert sorted(boxes) == shown
    assert ("candidates=" in explorer.url) == (link != "all")


def test_an_address_shows_the_same_elsewhere(visit, pages, explorer):
    cell(explorer, "sdpa.cudnn", 2).click()
    explorer.locator("#attnlab-clock").select_option("eager")
    other = visit(explorer.url)
    assert everything(other) == everything(explorer)


def test_what_an_address_asks_for_in_vain_falls_back_and_is_said_in_one_line(visit, pages):
    opened = visit(pages["two runs"], "#clock=sundial&shape=round&candidates=nobody&colour=red&run=%3Cb%3E")
    (line,) = opened.locator("p.notice[role=status]").all_inner_texts()
    assert "\n" not in line
    for words in ("“sundial” is not here, “device” is shown", "“round”", "“nobody”", "no setting “colour”", "“<b>”"):
        assert words in line
    assert opened.locator("#attnlab-clock").input_value() == "device"


@pytest.mark.parametrize("width", [400, 1280])
def test_what_is_said_of_a_cell_that_is_chosen_comes_into_view(visit, pages, width):
    opened = visit(pages["two runs"], "#find=gqa", width=width)
    top = '() => document.querySelector("[data-part=cell] h2").getBoundingClientRect().top'
    opened.locator('[data-part="find"] tbody button').first.click()
    assert -1 < opened.evaluate(top) < 450
    cell(opened, "sdpa.flash", 0).click()
    assert -1 < opened.evaluate(top) < 450
    assert "at (2, 4, 64, 64)" in text(opened, "cell")


@pytest.mark.parametrize(("page", "hash"), [("two runs", "#mask=causal&dtype=bfloat16"), ("ours", "#claim=lost")])
def test_where_no_shape_is_left_no_cell_is_shown(visit, pages, page, hash):
    opened = visit(pages[page], hash)
    words = "What is chosen leaves no shape, and so no cell to show."
    assert text(opened, "cell") == f"The selected cell\n\n{words}"
    assert text(opened, "lines") == ""
    assert words in text(opened, "find")
    assert "smallest median" not in text(opened, "find")
    assert "Shape(" not in text(opened, "cite")


def test_another_baseline_keeps_the_candidates_and_the_cell(visit, pages):
    chosen = "#candidates=sdpa.flash&candidates=sdpa.cudnn&candidate=sdpa.cudnn&order=sdpa.flash+ascending"
    opened = visit(pages["two runs"], chosen)
    opened.locator("#attnlab-baseline").select_option("fastest peer")
    heads = opened.locator("table.matrix thead th")
    assert [one.strip("↑") for one in heads.all_inner_texts()] == ["shape", "sdpa.flash", "sdpa.cudnn"]
    assert "sdpa.cudnn against sdpa.flash" in text(opened, "cell")
    opened.locator("#attnlab-baseline").select_option("sdpa.flash")
    assert heads.all_inner_texts() == ["shape", "sdpa.cudnn"]
    assert "sdpa.cudnn against sdpa.flash" in text(opened, "cell")
    assert opened.locator("p.notice[role=status]").inner_text() == ""


def test_our_kernel_as_the_baseline_is_said_to_be_ours(visit, pages):
    opened = visit(pages["ours"], "#claim=lost&baseline=kernel.tiled")
    assert "The baseline kernel.tiled is ours: choose another" in text(opened, "matrix")
    label = visit(pages["ours"]).locator("#attnlab-claim option").last.inner_text()
    assert label == "only where ours loses (kernel.tiled)"


def test_a_long_request_is_not_echoed_whole(visit, pages):
    opened = visit(pages["ours"], f"#find={'x' * 20_000}")
    assert "Not understood: xxx" in text(opened, "find")
    assert len(text(opened, "find")) < 1000


# ----------------------------------------------------------------------------------------------------- what it means


def test_terms_are_explained_and_a_link_leads_to_how_verdicts_are_made(explorer):
    link = explorer.get_by_role("link").get_attribute("href")
    page, anchor = link.split("#")
    assert f'id="{anchor}"' in (REPORTS / page).read_text(encoding="utf-8")
    assert "in reports/synthetic/" in text(explorer, "matrix")
    titles = dict(explorer.locator("abbr").evaluate_all("found => found.map((one) => [one.textContent, one.title])"))
    assert titles["faster, claimable"].startswith("Claimable: faster, the intervals of the medians apart, a speedup")
    assert titles["equivalent"].startswith("Equivalent: within ±2 %")
    assert titles["regime"].startswith("Regime: burst if")


def test_a_verdict_that_another_kind_of_values_turns_says_so(visit, pages):
    opened = visit(pages["unsteady"], "#candidate=sdpa.flash")
    assert "Faster, and claimable." in text(opened, "cell")
    worst = r"On sd 4 values, the worst of 2 kinds timed at this shape: slower \(0\.8\d+ \[.*\]\)\."
    assert re.search(worst, text(opened, "cell"))
    assert "the worst of" not in text(visit(pages["kinds"], "#candidate=sdpa.flash"), "cell")


# ------------------------------------------------------------------------------------------------------------ by keys


def test_keys_alone_reach_every_control_and_every_cell(explorer):
    reached = set()
    for _ in range(120):
        explorer.keyboard.press("Tab")
        reached.add(
            explorer.evaluate(
                "document.activeElement.id || document.activeElement.dataset.at || document.activeElement.textContent"
            )
        )
    controls = set(explorer.locator("select, input[type=search]").evaluate_all("found => found.map((one) => one.id)"))
    assert controls <= reached
    assert "Find" in reached
    assert "Download what the matrix shows as CSV" in reached
    inside = [one for one in reached if re.fullmatch(r"\d+/sdpa\.\w+", one)]
    assert len(inside) == 1  # the matrix is one stop, arrows move within it


def test_the_published_matrix_begins_with_the_ladders_best_and_shows_its_selected_cell(visit):
    opened = visit((REPORTS / "explore.html").as_uri())
    assert opened.locator("table.matrix thead th").nth(1).text_content() == "kernel.best"
    beyond = """() => {
      const cell = document.querySelector('table.matrix td[aria-selected="true"]'),
        { left, right } = cell.getBoundingClientRect();
      return [
        cell.parentElement.firstElementChild.getBoundingClientRect().right - left,
        right - cell.closest(".scroll").getBoundingClientRect().right,
      ];
    }"""
    assert max(opened.evaluate(beyond)) <= 1


def test_arrows_move_in_the_matrix_and_enter_selects(explorer):
    cell(explorer, "sdpa.flash", 0).focus()
    explorer.keyboard.press("ArrowRight")
    explorer.keyboard.press("ArrowDown")
    explorer.keyboard.press("Enter")
    selected = explorer.locator('td[aria-selected="true"]')
    assert selected.get_attribute("data-at") == "1/sdpa.cudnn"
    assert explorer.evaluate("document.activeElement.dataset.at") == "1/sdpa.cudnn"
    explorer.keyboard.press("Home")
    explorer.keyboard.press("ArrowUp")
    explorer.keyboard.press(" ")
    assert selected.get_attribute("data-at") == "0/sdpa.flash"


def test_what_is_drawn_has_words_for_who_cannot_see_it(explorer):
    assert explorer.locator("svg:not([role=img][aria-label])").count() == 0
    assert explorer.locator("select:not([id]), input:not([id], .checks input)").count() == 0
    assert all(explorer.locator("td[role=gridcell]").evaluate_all("found => found.map((one) => one.ariaLabel)"))


# ------------------------------------------------------------------------------------------------------ every screen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 768, 1280])
@pytest.mark.parametrize("name", ["two runs", "names", "no baseline", "failures", "one implementation"])
def test_no_page_is_wider_than_the_screen(visit, pages, name, width, scheme):
    opened = visit(pages[name], width=width, scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    sizes = opened.locator("svg text").evaluate_all("found => found.map((one) => one.getBoundingClientRect().height)")
    assert min(sizes, default=12) >= 9
    ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(23, 24, 26)")


CONTRAST = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parse(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (parse(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const worst = [...document.querySelectorAll(".attnlab-explorer *")]
    .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
    .filter((one) => !one.closest("svg, style, option") && one.offsetParent)
    .map((one) => [light(getComputedStyle(one).color), light(ground(one)), one.textContent])
    .map(([ink, paper, words]) => [(Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05), words]);
  return worst.sort((one, other) => one[0] - other[0])[0];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit, pages, scheme):
    ratio, words = visit(pages["two runs"], "#clock=sundial&claim=claimable", scheme=scheme).evaluate(CONTRAST)
    assert ratio >= 4.5, words


# --------------------------------------------------------------------------------------------------------- bad input


def test_names_are_shown_as_they_are(visit, pages):
    opened = visit(pages["names"])
    assert opened.locator("table.matrix thead th").all_inner_texts() == ["shape", *ODD]
    assert opened.locator("b", has_text="tag").count() == 0
    cell(opened, ODD[2], 0).click()
    assert f"{ODD[2]} against sdpa.auto" in text(opened, "cell")
    assert opened.url.endswith(f"candidate={quote(ODD[2], safe='')}".replace("%20", "+"))


def test_a_run_without_a_baseline_says_so_and_shows_latencies(visit, pages):
    opened = visit(pages["no baseline"])
    assert "This run holds no comparison with sdpa.auto." in text(opened, "matrix")
    assert "sdpa.auto has no latency here: failed, before timing" in text(opened, "cell")
    assert re.search(r"\d", cell(opened, "sdpa.flash", 0).inner_text())


def test_a_run_of_failures_says_why(visit, pages):
    opened = visit(pages["failures"])
    assert "Nothing has a latency in this run" in text(opened, "matrix")
    assert "failed, before timing, call: error against float64" in text(opened, "cell")


def test_a_run_of_one_implementation_has_no_candidate(visit, pages):
    opened = visit(pages["one implementation"])
    assert "No candidate is chosen." in text(opened, "matrix")
    assert "It is the baseline." in text(opened, "find")
