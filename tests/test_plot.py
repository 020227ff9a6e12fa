"""Figures have the numbers of their frames, show once in a notebook, and raise on rows that were pooled by accident."""

import io
import re
import warnings
import xml.etree.ElementTree as ET

import nbclient
import nbformat
import numpy as np
import pandas as pd
import pytest
from conftest import told
from matplotlib.figure import Figure

from attnlab import plot

HOSTILE = "<script>$x_{</script>&"


@pytest.fixture
def cases() -> pd.DataFrame:
    """2 implementations at 3 lengths, with and without a mask."""
    grid = pd.MultiIndex.from_product(
        [["sdpa.auto", HOSTILE], [True, False], [1024, 64, 509]], names=["implementation", "causal", "seq_len"]
    )
    cases = grid.to_frame(index=False).assign(head_dim=64, dtype="float16", clock="device")
    cases["median_us"] = np.arange(1.0, 13.0)
    cases["low_us"], cases["high_us"] = cases.median_us - 0.25, cases.median_us + 0.5
    cases["intensity"], cases["throughput_tflops"] = cases.seq_len / 2, cases.seq_len * 0.5
    return cases


def drawn(figure: Figure) -> dict[tuple[str, str], dict[float, float]]:
    """The points of each line, by the panel's title and the line's label."""
    return {
        (axes.get_title(), bars.get_label()): dict(zip(*bars.lines[0].get_data(), strict=True))
        for axes in figure.axes
        for bars in axes.containers
    }


def test_lines_are_the_numbers_of_the_frame(cases: pd.DataFrame) -> None:
    figure = plot.lines(cases, "seq_len", "median_us", col="causal", low="low_us", high="high_us", log="xy")
    for (name, causal), rows in cases.groupby(["implementation", "causal"]):
        points = drawn(figure)["causal" if causal else "no mask", name]
        assert points == dict(zip(rows.seq_len, rows.median_us, strict=True))
    segments = figure.axes[0].containers[0].lines[2][0].get_segments()
    assert [list(np.diff(segment[:, 1])) for segment in segments] == [[0.75]] * 3
    assert figure.axes[0].get_ylabel() == "median latency (µs)"
    assert figure.get_supxlabel() == "sequence length S"
    assert "causal, sdpa.auto 2.00 at 64 to 1.00 at 1,024;" in figure.alt


def test_labels_of_near_sizes_do_not_touch_and_texts_keep_their_order(cases: pd.DataFrame) -> None:
    near = pd.concat([cases, cases.assign(seq_len=cases.seq_len + 3)]).replace(HOSTILE, "b")
    figure = plot.lines(near, "seq_len", "median_us", col="causal")
    shown = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert shown == ["64", "", "509", "", "1,024", ""]
    axes = plot.lines(cases[cases.causal].astype({"seq_len": str}), "seq_len", "median_us").axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1024", "64", "509"]
    assert axes.containers[0].lines[0].get_linestyle() == "None"


def test_a_line_with_several_rows_at_one_place_is_refused(cases: pd.DataFrame) -> None:
    pooled = pd.concat([cases, cases.assign(clock="eager", samples=3)])
    said = told(lambda: plot.lines(pooled, "seq_len", "median_us"))
    assert re.match(r"4 rows .* sdpa.auto, seq_len 1024; they differ in causal, clock: ", said)
    assert "differ in clock" in told(lambda: plot.lines(pooled, "seq_len", "median_us", col="causal"))
    plot.lines(pooled[pooled.causal], "seq_len", "median_us", col="clock")
    said = told(lambda: plot.dots(cases, "median_us", "implementation", "low_us", "high_us"))
    assert "pooled at implementation sdpa.auto" in said


def test_a_wrong_column_and_an_empty_frame_are_refused(cases: pd.DataFrame) -> None:
    assert "no column 'median_u'; did you mean 'median_us'" in told(lambda: plot.lines(cases, "seq_len", "median_u"))
    said = told(lambda: plot.lines(cases.replace(HOSTILE, None), "seq_len", "median_us"))
    assert "implementation or seq_len has missing values: leave these rows out" in said
    assert "nothing to draw" in told(lambda: plot.lines(cases.head(0), "seq_len", "median_us"))
    assert "nothing to draw" in told(lambda: plot.heatmap(pd.DataFrame()))


def test_a_file_holds_text_of_7_points_and_more_and_its_alt_text(cases: pd.DataFrame) -> None:
    figure, again = (plot.lines(cases, "seq_len", "median_us", col="causal", log="xy") for _ in range(2))
    svg = figure.svg()
    root = ET.fromstring(svg)
    assert root.findtext("{http://www.w3.org/2000/svg}title") == figure.alt
    assert f"7.00 {HOSTILE}" in {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert "<script" not in svg
    assert float(root.get("width", "").removesuffix("pt")) <= 6.5 * 72
    assert min(float(size) for size in re.findall(r"font(?:-size)?: ?([\d.]+)px", svg)) >= 7
    assert svg == again.svg()
    figure.savefig(file := io.BytesIO(), format="pdf")
    assert b"/FontFile2" in file.getvalue()
    assert b"/Type3" not in file.getvalue()


def test_a_notebook_shows_a_figure_once_also_after_a_change() -> None:
    source = (
        "import pandas as pd\nimport matplotlib.pyplot\nfrom attnlab import plot\n"
        "frame = pd.DataFrame({'implementation': 'a', 'seq_len': [1, 2], 'median_us': [3.0, 4.0]})\n"
        "figure = plot.lines(frame, 'seq_len', 'median_us')\n"
        "figure.axes[0].set_title('changed')\nfigure"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    (output,) = [output for output in notebook.cells[0].outputs if "data" in output]
    assert ">changed</text>" in output.data["image/svg+xml"]
    assert output.metadata["image/svg+xml"]["alt"] == output.data["text/plain"]


def test_an_implementation_keeps_its_colour(cases: pd.DataFrame) -> None:
    colours = []
    for rows in (cases[cases.causal], cases[::6][:1]):
        bars = plot.lines(rows, "seq_len", "median_us").axes[0].containers
        colours.append({each.get_label(): each.lines[0].get_color() for each in bars})
    assert colours == [{"sdpa.auto": "#000000", HOSTILE: plot.OTHERS[0][0]}, {"sdpa.auto": "#000000"}]
    many = [cases[::6][:1].assign(implementation=f"mine.{n}") for n in range(30)]
    bars = plot.lines(pd.concat([cases[::6][:1], *many]), "seq_len", "median_us").axes[0].containers
    assert len({(each.lines[0].get_color(), each.lines[0].get_marker()) for each in bars}) == 31
    assert len(set(plot.LOOKS.values()) | set(plot.OTHERS)) == len(plot.LOOKS) + len(plot.OTHERS)


def test_every_dot_and_every_cell_is_shown_once_in_the_order_of_the_frame() -> None:
    frame = pd.DataFrame({"candidate": ["b", "a"], "speedup": [1.2, 0.8], "low": [1.1, 0.7], "high": [1.3, 0.9]})
    axes = plot.dots(frame, "speedup").axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["b", "a"]
    points = {bars.get_label(): [values[0] for values in bars.lines[0].get_data()] for bars in axes.containers}
    assert points == {"a": [0.8, 1], "b": [1.2, 0]}
    near = plot.dots(frame.head(1).assign(speedup=1.06), "speedup", low=None, high=None).axes[0]
    assert sum(1 < tick < 1.06 for tick in near.get_xticks()) > 1
    wide = plot.heatmap(pd.DataFrame(np.arange(1.0, 41.0).reshape(2, 20)), centre=20, text="{:.0f}")
    assert len(wide.axes) > 1
    assert sorted(int(text.get_text()) for axes in wide.axes for text in axes.texts) == list(range(1, 41))
    plot.dots(frame.astype({"candidate": "category"}), "speedup")
    with warnings.catch_warnings(action="error"):
        gap = plot.heatmap(pd.DataFrame([[1.0, np.nan, 0.0]]))
    assert [text.get_text() for text in gap.axes[0].texts] == ["1.00", "—", "0.00"]


def test_a_roof_is_the_lower_of_two_ceilings_that_anyone_may_state(cases: pd.DataFrame) -> None:
    rates = {"copy": 2000.0, "matmul.float16": 300.0, "wgmma.float16": 400.0, "exponentials": 1000.0}
    parts = [part.reset_index(drop=True) for _, part in cases.groupby("causal")]
    axes = plot.roofline(pd.concat(parts), rates).axes[0]
    roof = next(line for line in axes.get_lines() if "memory 2,000 GB/s" in str(line.get_label()))
    assert np.allclose(roof.get_ydata(), np.minimum(400.0, 2.0 * roof.get_xdata()))
    exponentials = next(line for line in axes.get_lines() if "exponentials, D = 64" in str(line.get_label()))
    assert set(exponentials.get_ydata()) == {256.0}
    assert told(lambda: plot.roofline(cases, {"copy": 2000.0})).endswith("copy and matmul.float16; there are copy")
    assert "several dtypes" in told(lambda: plot.roofline(pd.concat([cases, cases.assign(dtype="float32")]), rates))
