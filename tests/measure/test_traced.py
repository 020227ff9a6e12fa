"""Latencies from CUPTI's records of kernels, with synthetic records."""

from itertools import starmap
from types import SimpleNamespace

import pytest

from attnlab.measuring.clocks import traced
from attnlab.measuring.instruments.tool import SEPARATOR


def record(begin_us, end_us, kernel="attention"):
    """The record of a kernel on the device."""
    return SimpleNamespace(name=lambda: kernel, start_ns=lambda: begin_us * 1000, end_ns=lambda: end_us * 1000)


@pytest.mark.parametrize(
    ("records", "ran_us", "span_us"),
    [
        ([(2, 5), (7, 11)], 7, 9),
        ([(2, 10), (3, 18), (11, 26)], 24, 24),
        ([(2, 20), (3, 5), (22, 24)], 20, 22),
        ([(2, 3, "Memset (Device)"), (4, 9)], 5, 7),
    ],
    ids=["one after the other", "each launched early", "one within another", "memory cleared before"],
)
def test_a_piece_of_work_counts_once_what_two_kernels_ran(records, ran_us, span_us):
    around = (record(at, at + 1, SEPARATOR) for at in (0, 1000))
    (piece,) = traced._pieces([next(around), *starmap(record, records), next(around)])
    assert piece == traced.Piece(ran_us, span_us)
