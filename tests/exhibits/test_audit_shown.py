"""What the page of the audit shows: every claim once, counted, and the points that the documents print."""

import re

import pandas as pd
import pytest

from attnlab.exhibits import audit as shown
from attnlab.literature import audit
from attnlab.literature.audit.reference import DOCUMENTS


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    """Every claim, judged."""
    return audit.audit()


def plain(content) -> str:
    return content._repr_mimebundle_()["text/plain"]


def test_the_counts_add_up(found):
    frame = shown.counted().frame.set_index("document")
    assert frame.loc["all", "claims"] == len(found)
    assert (frame[list(audit.FINDINGS)].sum(axis=1) == frame["claims"]).all()
    columns = shown.counts().figure.axes
    assert [axes.get_title().replace("\n", " ") for axes in columns] == list(audit.FINDINGS)
    assert sum(bar.get_width() for axes in columns for bar in axes.patches) == len(found)
    told = plain(shown.summary())
    fine = int(found["finding"].isin(audit.FINE).sum())
    assert f"Of {len(found)} claims" in told
    assert f"{fine} stand" in told
    assert shown.meanings().frame["claims"].sum() == len(found)


def test_every_claim_is_shown_once(found):
    parts = shown.documents().parts
    assert list(parts) == list(DOCUMENTS)
    assert [len(part.frame) for part in parts.values()] == [int((found["source"] == name).sum()) for name in DOCUMENTS]
    assert len(shown.telling().frame) == found["telling"].notna().sum()
    factors = [float(cell.removesuffix("×")) for cell in shown.furthest().frame["off by"]]
    assert factors == sorted(factors, reverse=True)
    assert min(factors) > 2


def test_the_same_configuration_in_several_documents():
    frame = shown.across().frame
    row = frame[(frame["S"] == "512") & (frame["B"] == 32) & (frame["H"] == 8) & (frame["what"] == "sdpa")].iloc[0]
    assert row["000 (ms)"] == "0.3210"
    assert set(row["003 (ms)"].split("\n")) == {"0.3205", "0.3350", "0.3615"}
    assert set(row["004 (ms)"].split("\n")) == {"0.3195", "0.325", "0.327"}
    assert row["apart"] == "13 %"  # 0.3615 / 0.3195 = 1.131
    assert "0.1 to 40 % apart" in plain(shown.across_summary())  # 0.1393 / 0.0993 = 1.403


def test_the_roofline_with_work_and_peaks_put_right():
    frame = shown.standing().frame
    at = frame[(frame["document"] == "000") & (frame["B, H, S"] == "32, 8, 512")].iloc[0]
    # 17.18 GFLOP / 0.3210 ms, 67.1 MB / 0.3210 ms; the roof is 256 · 0.3 = 76.8 TFLOP/s, and 53.5 / 76.8 = 69.7 %
    assert (at["TFLOP/s"], at["GB/s"], at["FLOP/byte"], at["floor"]) == ("53.5", "209", "256", "memory")
    assert at["of the roof"] == "69.7 %"
    marked = frame[frame["of the roof"].str.contains("†")]
    assert set(zip(marked["document"], marked["B, H, S"], strict=True)) == {
        ("000", "32, 8, 256"),
        ("004", "32, 8, 256"),
    }
    told = plain(shown.roofline_summary())
    assert "at 403 FLOP/byte, not at 100" in told
    assert "its bytes take 0.224 ms, its FLOPs 0.142 ms" in told
    assert re.search(
        r"Two points are above memory's line.*000 at S=256 \(338 GB/s\) and 004 at S=256 \(323 GB/s\)", told
    )
    assert shown.roofline().svg == shown.roofline().svg


def test_what_is_left_of_the_advice():
    told, table = shown.survives().parts.values()
    counts = table.frame["verdict"].value_counts()
    assert f"{counts['stands']} stand, {counts['falls']} fall and {counts['unsupported']} are unsupported" in plain(
        told
    )


def test_points_are_not_repeated():
    points = shown.points()
    assert len(set(points)) == len(points)
    # 000 prints 0.321 and 0.32 besides 0.3210
    shape = next(p.shape for p in points if p.shape.batch == 32 and p.shape.heads == 8 and p.shape.seq_len == 512)
    assert [p.printed for p in points if p.document == "000" and p.shape == shape] == ["0.3210"]
