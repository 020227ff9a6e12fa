"""The latencies that the documents print, against hand-worked ceilings."""

import pytest

from attnlab.literature.audit import latencies


def test_points_are_not_repeated():
    points = latencies.points()
    assert len(set(points)) == len(points)
    # 000 prints 0.321 and 0.32 besides 0.3210
    mine = [point for point in points if point.document == "000" and point.shape == latencies.TARGET]
    assert [point.printed for point in mine] == ["0.3210"]


def test_one_configuration_in_several_documents():
    apart = {(one.points[0].subject, one.points[0].shape): one.apart_pct for one in latencies.repeated()}
    assert apart["sdpa", latencies.TARGET] == pytest.approx(100 * (0.3615 / 0.3195 - 1))
    assert max(apart.values()) == pytest.approx(100 * (0.1393 / 0.0993 - 1))


def test_the_roofline_with_the_datasheets_ceilings():
    found = latencies.corrected()
    # 121 TFLOP/s over 300 GB/s; the documents state 30 TFLOP/s
    assert (found.roof.ridge, found.theirs.ridge) == (pytest.approx(403.33, abs=0.01), 100)
    # 67.1 MB at 300 GB/s, 17.18 GFLOP at 121 TFLOP/s
    assert found.memory_ms == pytest.approx(0.2237, abs=1e-4)
    assert found.compute_ms == pytest.approx(0.1420, abs=1e-4)
    assert found.cached_ms == found.compute_ms
    assert (found.best.printed, found.best.document) == ("0.3195", "004")
    assert [(point.document, point.shape.seq_len) for point in found.over] == [("000", 256), ("004", 256)]
