"""What notebooks show: escaped, aligned, described, and the same bytes each time."""

import base64
import os
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from matplotlib.colors import to_rgb
from matplotlib.testing.compare import compare_images
from nbclient import NotebookClient
from nbformat import v4
from reading import exhibit, html, plain
from synthetic import inferred

from attnlab.base import paths
from attnlab.exhibits import drawing as page_drawing
from attnlab.exhibits import style
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Figure, Group, Prose, Table, files
from attnlab.exhibits.markdown import Inline
from attnlab.exhibits.quantities import Marked, Named
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.stats import Interval
from attnlab.study.implementations import DISPATCH, PEERS, SDPA
from attnlab.study.ladder import BEST


def drawing():
    figure, axes = plt.subplots(figsize=(2, 1))
    axes.plot([1, 2, 3], [3, 1, 2], marker="o")
    axes.fill_between([1, 2, 3], 1, 2, hatch="//")
    return figure


def test_a_figure_is_a_drawing_with_caption_and_description():
    figure = Figure(drawing(), "Up, **then** $x^2$ & down", 'a "line" <falls>')
    soup = html(figure, "kernels.line")
    assert soup.figure["id"] == "kernels.line"
    assert "id" not in html(figure).figure.attrs
    assert soup.figure["class"] == ["plot"]
    assert (soup.svg["role"], soup.svg["aria-label"]) == ("img", 'a "line" <falls>')
    assert "<strong>then</strong>" in str(soup.figcaption)
    assert soup.figcaption.find("msup").get_text() == "x2"
    assert figure._repr_mimebundle_()["text/plain"] == 'a "line" <falls>'


def test_a_drawing_on_a_page_has_text_the_colours_of_the_theme_and_ids_of_its_own():
    figure = Figure(drawing(), "", "")
    soup = html(figure, "kernels.line")
    assert [text.get_text() for text in soup.select("svg text")] == ["1", "2", "3"] * 2
    colours = re.findall(r"#[0-9a-f]{6}", str(soup.svg))
    assert colours
    assert len(re.findall(r"var\(--c([0-9a-f]{6}), #\1\)", str(soup.svg))) == len(colours)
    ids = {element["id"] for element in soup.select("svg [id]")}
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', str(soup.svg)))
    assert used == ids
    assert all(name.startswith("kernels-line-") for name in ids)


def test_a_drawing_on_a_page_says_each_style_once_in_classes_of_its_own_and_groups_only_what_belongs_together():
    soup = html(Figure(drawing(), "", ""), "kernels.line").svg
    rules = dict(re.findall(r"^\.(\S+) \{(.*)\}$", soup.style.get_text(), re.MULTILINE))
    assert len(set(rules.values())) == len(rules) > 3
    assert {name for element in soup.select("[class]") for name in element["class"]} == set(rules)
    assert all(name.startswith("kernels-line-s") for name in rules)
    assert not soup.select("[style]")
    assert all(group.attrs for group in soup.select("g"))
    placed = " ".join(element[at] for at in ("d", "x", "y", "transform") for element in soup.select(f"[{at}]"))
    assert max(len(decimals) for decimals in re.findall(r"\.(\d+)", placed)) == 2


def test_the_dark_theme_turns_lightness_round_and_keeps_the_hue():
    rules = dict(re.findall(r"--c(\w+): #(\w+);", page_drawing.dark("var(--c000000, #000000) var(--cffffff, #ffffff)")))
    assert rules == {"000000": "e6e6e6", "ffffff": "181818"}
    for colour, _ in (*style.LOOKS.values(), *style.OTHERS):
        (found,) = re.findall(r": #(\w+);", page_drawing.dark(f"var(--c{colour[1:].lower()}, {colour.lower()})"))
        assert max(bytes.fromhex(found)) + min(bytes.fromhex(found)) >= 255
    (orange,) = re.findall(r": #(\w+);", page_drawing.dark("var(--cd55e00, #d55e00)"))
    red, green, blue = bytes.fromhex(orange)
    assert red > green > blue


def test_a_tint_becomes_a_shade_of_no_more_colour_and_white_one_of_none():
    turned = {tint: bytes.fromhex(page_drawing.inverted(tint)[1:]) for tint in ("ffffff", "f9eeea", "f4a582")}
    chromas = {tint: max(parts) - min(parts) for tint, parts in turned.items()}
    assert chromas == {tint: max(parts) - min(parts) for tint in turned for parts in [bytes.fromhex(tint)]}


def linear(colour: str) -> np.ndarray:
    """How much light of red, green and blue a colour is, 0 to 1."""
    parts = np.array(to_rgb(colour))
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(light: np.ndarray) -> np.ndarray:
    """Lightness and two axes of colour, 0 to 1, in which distances are as large as they look (Ottosson 2020, Oklab)."""
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]]) @ light
    return np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]) @ np.cbrt(cones)


def test_what_stands_in_one_figure_differs_in_marker_and_in_colour_on_both_grounds():
    together = (*SDPA, *PEERS, DISPATCH, "kernel.lazy", "kernel.few", BEST)
    looks = [(look["color"], look["marker"]) for look in map(style.look, together)]
    light, markers = zip(*looks, *style.OTHERS, strict=True)
    assert len(set(markers)) == len(markers)
    for colours in (light, [page_drawing.inverted(colour[1:].lower()) for colour in light]):
        for one, other in combinations(map(oklab, map(linear, colours)), 2):
            assert np.linalg.norm(one - other) > 0.08


COLOUR_BLIND = {
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.052]],
    "no green": [[0.3673, 0.8606, -0.228], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.969]],
    "no blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
"""What who lacks a kind of cones sees of linear red, green and blue (Machado, Oliveira and Fernandes 2009)."""


@pytest.mark.parametrize("seen", COLOUR_BLIND)
def test_a_kernel_that_is_often_beside_the_baseline_is_told_from_it_and_the_others_whoever_looks(seen):
    def looks(colour: str) -> np.ndarray:
        return oklab(np.clip(np.array(COLOUR_BLIND[seen]) @ linear(colour), 0, 1))

    of = {name: looks(style.look(name)["color"]) for name in style.LOOKS}
    apart = {name: np.linalg.norm(of["kernel.bounded"] - other) for name, other in of.items()}
    assert apart.pop("kernel.bounded") == 0
    assert apart["sdpa.auto"] > 0.4
    assert min(apart.values()) > 0.04


def test_a_figure_is_a_pdf_of_the_same_bytes_that_its_latex_includes():
    figure = Figure(drawing(), "Up, **then** $x^2$ & 100 %", "")
    ((name, file),) = files(figure, "kernels.line").items()
    assert name == "kernels-line.pdf"
    assert base64.b64decode(file).startswith(b"%PDF")
    assert base64.b64decode(file) == Figure(drawing(), "", "").pdf
    assert files(Group({"line": figure, "words": Prose("x")}), "kernels") == {name: file}
    latex = figure.bundle("kernels.line")["text/latex"]
    assert r"\includegraphics[width=2.000in]{figures/kernels-line.pdf}" in latex
    assert r"\caption{Up, \textbf{then} $x^2$ \& 100~\%}\label{kernels.line}" in latex


def test_a_figure_is_not_left_open_to_be_shown_again():
    before = plt.get_fignums()
    Figure(drawing(), "", "")
    assert plt.get_fignums() == before


SHOWS_A_FIGURE = """
import matplotlib
import matplotlib.pyplot as plt
from attnlab.exhibits.catalogue import Show, exhibit
from attnlab.exhibits.display import Figure
before = matplotlib.rcParams.copy()

@exhibit("kernels.drawn")
def drawn():
    plt.subplots()
    return Figure(plt.gcf(), "", "")

Show()("kernels.drawn")
"""
CHANGED_SETTINGS = "{name for name in before if name != 'interactive' and before[name] != matplotlib.rcParams[name]}"


def test_plots_of_your_own_appear_after_a_figure_was_shown():
    cells = [v4.new_code_cell(source) for source in (SHOWS_A_FIGURE, "plt.plot([1, 2])", CHANGED_SETTINGS)]
    path = os.pathsep.join([str(paths.ROOT / "lib"), os.environ.get("PYTHONPATH", "")])
    NotebookClient(v4.new_notebook(cells=cells)).execute(env=os.environ | {"PYTHONPATH": path})
    shown, own, changed = ([output.data for output in cell.outputs] for cell in cells)
    assert ["image/png" in data for data in shown] == [False]
    assert ["image/png" in data for data in own] == [False, True]
    assert [data["text/plain"] for data in changed] == ["set()"]


def test_a_column_with_one_value_is_said_once_below_the_table():
    frame = pd.DataFrame({"of": ["a", "a", "a"], "share\nof": ["50 %"] * 3, "lost": [None] * 3, "n": [1, 2, 2]})
    table = Table(frame, "Shares", "Note.")
    soup = html(table)
    assert [title.get_text() for title in soup.select("th")] == ["of", "lost", "n"]
    assert soup.select_one("p.note").get_text() == "Note. The same in every row: share of 50 %."
    assert table.grid.splitlines()[0] == "| of | lost | n |"
    assert table.markdown.endswith("Note. The same in every row: share of 50 %.")
    assert "50 %" not in plain(table)
    few = html(Table(frame.head(2), "Shares"))
    assert len(few.select("th")) == 4
    assert few.select_one("p.note") is None


def test_cells_are_escaped_and_nothing_is_a_dash():
    frame = pd.DataFrame({"a<b": ["<b>x</b> & y", None], "rate": [1.5, np.nan], "when": [pd.NaT, pd.NaT]})
    soup = html(Table(frame, "Rates"))
    assert [cell.get_text() for cell in soup.select("td")] == ["<b>x</b> & y", "1.50", "—", "—", "—", "—"]
    assert soup.td.b is None
    assert [title.get_text() for title in soup.select("th")] == ["a<b", "rate", "when"]
    assert {title["scope"] for title in soup.select("th")} == {"col"}


@pytest.mark.parametrize(
    "cells", [[1, 2.5], [np.int64(1)], [Interval(47.5, 47.4, 47.6), None], [Marked(109.0, "† above the ceiling"), 2.5]]
)
def test_columns_of_numbers_are_set_right(cells):
    soup = html(Table(pd.DataFrame({"name": ["sdpa.flash"] * len(cells), "x": cells}), ""))
    assert soup.table["class"] == ["n2"]
    assert ".n2 tr > :nth-child(2)" in (paths.ROOT / "lib/attnlab/paper/template/attnlab/style.css").read_text()


@pytest.mark.parametrize("cells", [["sdpa.flash"], [12, "n/a"], ["2026-11-21"], ["12"], [True, False], [None]])
def test_other_columns_are_not(cells):
    assert not html(Table(pd.DataFrame({"x": cells}), "")).table["class"]


def test_a_table_has_caption_note_and_one_highlighted_row():
    frame = pd.DataFrame({"x": ["a", "b"]}, index=[7, 7])
    soup = html(Table(frame, "Two rows", "see [](#kernels.a) & `b`", highlight=1), "kernels.rows")
    assert soup.figure["id"] == "kernels.rows"
    assert [child.name for child in soup.figure.children] == ["figcaption", "div", "p"]
    assert soup.select_one("p.note a")["href"] == "#kernels.a"
    assert [row.get_text() for row in soup.select("tr.target")] == ["b"]
    assert not html(Table(frame, "Two rows")).select(".note, .target")


def test_a_cell_in_markdown_is_rendered_and_no_other():
    table = Table(pd.DataFrame({"source": [Inline("[](#ref-a)")], "text": ["[](#ref-a)"]}), "A.")
    assert '<td><a href="#ref-a"></a></td><td>[](#ref-a)</td>' in table._repr_mimebundle_()["text/html"]


def test_a_column_named_like_a_quantity_is_printed_as_that_says():
    cells = {"median_us": [Interval(47.46, 47.41, 47.52)], "throughput_tflops": [Marked(109.0, "† above the ceiling")]}
    table = Table(pd.DataFrame(cells | {"cv_pct": [0.5], "samples": [1200]}), "A.", "Note.")
    titles, _, values = table.grid.splitlines()
    assert titles == "| median (µs) [95 %] | throughput (TFLOP/s) | CV | samples |"
    assert values == "| 47.46 [47.41, 47.52] | 109 † | 0.5 % | 1,200 |"
    assert table.legend == "Note. † above the ceiling."


@pytest.mark.parametrize(
    ("columns", "shown"), [(5, "2.00 [1.00, 3.00]"), (9, "2.00\n[1.00, 3.00]"), (13, "2.00\n[1.00,\n3.00]")]
)
def test_intervals_take_as_many_lines_as_the_width_of_the_table_needs(columns, shown):
    table = Table(pd.DataFrame({f"c{n}": [Interval(2.0, 1.0, 3.0)] for n in range(columns)}), "")
    assert html(table).td.get_text() == shown
    assert table.grid.splitlines()[-1].startswith("| 2.00 [1.00, 3.00] |")


def test_what_a_number_is_of_stands_below_it_in_short_lines():
    cell = Named(Interval(2.0, 1.0, 3.0), "room for shared memory and XU")
    soup = html(Table(pd.DataFrame({"x": [cell, None]}), ""))
    assert soup.td.get_text() == "2.00 [1.00, 3.00]\nroom for shared memory\nand XU"
    assert soup.table["class"] == ["n1"]


def test_long_cells_may_be_broken_and_texts_have_wider_lines():
    cells = ["kernel.naive", "(2, 4, 8, 64) float16", "words " * 12, Inline("[](#ref-somebody-2026)")]
    soup = html(Table(pd.DataFrame({"x": cells}), ""))
    assert [cell.get("class") for cell in soup.select("td")] == [None, ["long"], ["text"], None]
    assert not html(Table(pd.DataFrame({"x": [Interval(1234.5, 1230.1, 1240.2)]}), "")).td.attrs


def test_a_title_is_broken_within_names_and_never_before_a_percent_sign():
    table = Table(pd.DataFrame({"over sdpa.flash [95 %]": [1]}), "")
    assert "over sdpa.<wbr>flash [95\u00a0%]" in table._repr_mimebundle_()["text/html"]


def test_a_table_without_rows_is_not_there():
    with pytest.raises(NotMeasured, match=r"^Nothing was measured for “Latencies of `x`”$"):
        Table(pd.DataFrame(), "Latencies of `x`.")


def test_a_group_shows_its_parts_in_order():
    table = Table(pd.DataFrame({"a": [1]}), "One.")
    group = Group({"first": Prose("First, *then*"), "one": table, "last": Prose("last")})
    soup = html(group, "kernels.both")
    found = [(tag.name, tag["id"]) for tag in soup.find_all(["p", "figure"])]
    assert found == [("p", "kernels.both.first"), ("figure", "kernels.both.one"), ("p", "kernels.both.last")]
    assert soup.em.get_text() == "then"
    assert plain(group).startswith("First, *then*\n\n")


def test_a_table_in_markdown_keeps_each_row_on_a_line():
    frame = pd.DataFrame({"name": ["a|b", None], "µs": [Interval(1.0, 0.9, 1.1), 2]})
    table = Table(frame, "Caption.", "Note.")
    rows = ["| name | µs |", "| --- | ---: |", "| a\\|b | 1.00 [0.90, 1.10] |", "| — | 2 |"]
    assert table.grid.splitlines() == rows
    assert table.markdown == "\n\n".join(["**Caption.**", "\n".join(rows), "Note."])


# What is drawn of the synthetic runs


TOLERANCE = 1.0
"""Root mean square of the differences between two pictures, of 255: a line less is 3, solid for dashed 1.4."""
LENGTHS = [32, 64, 128, 256]
DRAWN = ["baseline.latency", "baseline.throughput", "roofline.speed_of_light", "baseline.memory", "roofline.roofline"]


def lines(axes) -> dict[str, list[tuple[float, float]]]:
    """The points of the lines that a legend names."""
    named = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in named}


@pytest.mark.parametrize("id", DRAWN)
def test_a_figure_is_described_and_the_same_bytes_whenever_it_is_drawn(id):
    shown = Show(inferred())(id)
    bundle, _ = shown._repr_mimebundle_()
    assert BeautifulSoup(bundle["text/html"], "html.parser").figure["id"] == id
    figure = shown.content
    assert figure.caption.endswith(".")
    assert figure.alt.endswith(".")
    assert "nan" not in figure.caption + figure.alt
    assert figure.svg.startswith(b"<?xml")
    assert figure.svg == exhibit(inferred, id).svg


def test_a_figure_looks_as_it_did(tmp_path):
    drawn, kept = tmp_path / "latency.png", Path(__file__).parent / "data" / "latency.png"
    exhibit(inferred, "baseline.latency").figure.savefig(drawn, dpi=50)
    assert compare_images(str(kept), str(drawn), tol=TOLERANCE) is None


def panels(figure) -> dict[str, Any]:
    """The panels of small multiples, by the implementation in their titles."""
    return {axes.get_title(): axes for axes in figure.figure.axes if axes.get_visible()}


@pytest.mark.parametrize(
    ("count", "labels"), [(3, ["64", "128", "256"]), (8, ["64", "", "256", "", "1024", "", "4096", ""])]
)
def test_of_many_sizes_every_second_has_a_label(count, labels):
    figure, axes = plt.subplots()
    style.powers_of_two(axes, [64 * 2**power for power in range(count)])
    plt.close(figure)
    assert [label.get_text() for label in axes.get_xticklabels()] == labels


@pytest.mark.parametrize(
    ("heights", "spread"),
    [([], []), ([0.5], [0.5]), ([0.5, 0.5], [0.45, 0.55]), ([0, 0, 0.9], [0, 0.1, 0.9]), ([0.98, 1.0], [0.9, 1.0])],
)
def test_labels_move_no_more_than_they_need(heights, spread):
    assert style._spread(heights, 0.1) == pytest.approx(spread)


def test_throughput_and_speed_of_light():
    full = exhibit(inferred, "baseline.throughput").figure.axes[0]
    assert [rate for _, rate in lines(full)["sdpa.auto"]] == pytest.approx([0.8388608] * 4)
    assert full.get_ylim()[0] == 0
    light = panels(exhibit(inferred, "roofline.speed_of_light"))["sdpa.auto"]
    assert [share for _, share in light.get_lines()[4].get_xydata()] == pytest.approx([41.94304] * 4)


def test_memory_stands_beside_what_the_tensors_need():
    figure = exhibit(inferred, "baseline.memory")
    drawn = lines(panels(figure)["sdpa.math"])
    assert list(drawn) == ["sdpa.math", "Q, K, V and O"]
    assert drawn["Q, K, V and O"] == list(zip(LENGTHS, [0.125, 0.25, 0.5, 1.0], strict=True))
    assert drawn["sdpa.math"][:3] == list(zip(LENGTHS, [0.25, 0.5, 1.0], strict=False))
    assert figure.caption.startswith("`sdpa.math` allocates 2.00× the size of its tensors at S=128, the most of all.")


def test_the_roofline_draws_points_and_ceilings():
    axes = panels(exhibit(inferred, "roofline.roofline"))["sdpa.auto"]
    full, causal = (line for line in axes.get_lines() if line.get_linestyle() == "None")
    # at S, intensity S/2; at B=1 and H=8 that of the target again
    assert sorted(full.get_xdata()) == [16, 32, 64, 64, 64, 128]
    assert causal.get_markerfacecolor() == "none"
    assert sorted(causal.get_xdata()) == pytest.approx([64 * 65 / 64 / 4, 128 * 129 / 128 / 4])
    measured, within, datasheet = (line for line in axes.get_lines() if len(line.get_xdata()) == 200)
    assert max(measured.get_ydata()) == pytest.approx(2.0)
    np.testing.assert_allclose(measured.get_ydata(), np.minimum(measured.get_xdata() * 0.1, 2.0))
    np.testing.assert_allclose(within.get_ydata(), np.minimum(within.get_xdata() * 0.4, 2.0))
    np.testing.assert_allclose(datasheet.get_ydata(), np.minimum(datasheet.get_xdata() * 4.8, 989))
    (exponentials,) = (line for line in axes.get_lines() if line.get_linestyle() == ":")
    assert list(exponentials.get_ydata()) == pytest.approx([25.6] * 2)  # 4·64 FLOPs an exponential, 100 G of them
