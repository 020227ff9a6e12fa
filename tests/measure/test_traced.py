"""What CUPTI's records say of pieces of work, from records made up."""

from dataclasses import dataclass

import pytest

from attnlab.measuring.clocks import traced
from attnlab.measuring.instruments.tool import SEPARATOR


@dataclass
class Record:
    """A kernel that ran on the device."""

    begin_us: int
    end_us: int
    kernel: str = "attention"

    def name(self):
        return self.kernel

    def start_ns(self):
        return self.begin_us * 1000

    def end_ns(self):
        return self.end_us * 1000


def between(*records):
    """The piece of work whose kernels these are."""
    (piece,) = traced._pieces([Record(0, 1, SEPARATOR), *records, Record(1000, 1001, SEPARATOR)])
    return piece


@pytest.mark.parametrize(
    ("records", "ran_us", "span_us"),
    [
        ([Record(2, 5), Record(7, 11)], 7, 9),
        ([Record(2, 10), Record(3, 18), Record(11, 26)], 24, 24),
        ([Record(2, 20), Record(3, 5), Record(22, 24)], 20, 22),
    ],
    ids=["one after the other", "each launched early", "one within another"],
)
def test_a_piece_of_work_counts_once_what_two_kernels_ran(records, ran_us, span_us):
    assert between(*records) == traced.Piece(ran_us, span_us)
