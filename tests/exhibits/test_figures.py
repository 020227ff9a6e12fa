"""What is drawn of the synthetic runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bs4 import BeautifulSoup
from matplotlib.testing.compare import compare_images
from reading import exhibit
from synthetic import inferred

from attnlab.exhibits import style
from attnlab.exhibits.catalogue import Show

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
