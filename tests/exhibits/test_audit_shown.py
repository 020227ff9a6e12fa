"""The page of the audit: every claim once, counted, and the points that the documents print."""

import pandas as pd
import pytest

from attnlab.exhibits import audit as shown
from attnlab.exhibits.quantities import Marked
from attnlab.literature import audit
from attnlab.literature.audit.reference import DOCUMENTS


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    """Every claim, judged."""
    return audit.audit()


def test_the_counts_add_up(found):
    counts, telling, *documents = shown.documents().parts.values()
    frame = counts.frame.set_index("finding")
    assert tuple(frame.index) == audit.FINDINGS
    assert frame["all"].sum() == len(found)
    assert (frame[list(DOCUMENTS)].sum(axis=1) == frame["all"]).all()
    assert len(telling.frame) == found["telling"].notna().sum()
    assert [len(part.frame) for part in documents] == [int((found["source"] == name).sum()) for name in DOCUMENTS]


def test_the_same_configuration_in_several_documents():
    frame = shown.across().frame
    row = frame[(frame["S"] == 512) & (frame["B"] == 32) & (frame["H"] == 8) & (frame["what"] == "sdpa")].iloc[0]
    assert row["000 (ms)"] == "0.3210"
    assert set(row["003 (ms)"].split("\n")) == {"0.3205", "0.3350", "0.3615"}
    assert set(row["004 (ms)"].split("\n")) == {"0.3195", "0.325", "0.327"}
    assert row["apart"] == pytest.approx(100 * (0.3615 / 0.3195 - 1))


def test_the_roofline_with_work_and_peaks_put_right():
    told, points = shown.roofline().parts.values()
    frame = points.frame
    sizes = frame[["B", "H", "S"]].apply(tuple, axis=1)
    at = frame[(frame["document"] == "000") & (sizes == (32, 8, 512))].iloc[0]
    # 17.18 GFLOP / 0.3210 ms, 67.1 MB / 0.3210 ms; the roof is 256 · 0.3 = 76.8 TFLOP/s
    assert at["throughput_tflops"] == pytest.approx(53.52, abs=0.01)
    assert at["bandwidth_gbs"] == pytest.approx(209.06, abs=0.01)
    assert (at["intensity"], at["floor"]) == (256, "memory")
    assert at["of the roof (%)"] == pytest.approx(100 * 53.52 / 76.8, abs=0.01)
    marked = frame["of the roof (%)"].map(lambda cell: isinstance(cell, Marked))
    assert list(frame["document"][marked]) == ["000", "004"]
    assert set(sizes[marked]) == {(32, 8, 256)}
    assert "000 at S=256 (338 GB/s) and 004 at S=256 (323 GB/s) whose tensors fit the L2." in told.markdown
