"""What a kernel that takes views is told, and its divisions."""

import ctypes
import re

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from attnlab.base import paths
from attnlab.measure.subjects.problem import Divisor, Problem


@pytest.mark.parametrize(("structure", "size"), [(Divisor, 12), (Problem, 56)])
def test_a_problem_is_what_the_header_declares(structure, size):
    source = (paths.kernels() / "hopper.cuh").read_text()
    declared = source.split(f"struct {structure.__name__} {{")[1].split("};")[0]
    fields = re.findall(r"^    (?:int|unsigned|float|Divisor) ([\w, ]+);", declared, re.MULTILINE)
    assert ", ".join(fields).split(", ") == [name for name, _ in structure._fields_]
    assert ctypes.sizeof(structure) == size


@given(number=st.integers(0, 2**31 - 1), by=st.integers(1, 2**31 - 1))
@example(number=2**31 - 1, by=1)
@example(number=2**31 - 1, by=2**31 - 1)
@example(number=2**31 - 2, by=2**31 - 1)
@example(number=2**31 - 1, by=2**30 + 1)
def test_a_quotient_is_a_product(number, by):
    divisor = Divisor.of(by)
    for small in (number, number % 2**16, number // by * by):
        assert (2 * small * divisor.factor >> 32) >> divisor.shift == small // by
    assert 2 * number < 2**32 > divisor.factor


def test_a_problem_counts_heads_keys_and_work_items():
    problem = Problem.of(torch.empty(2, 12, 300, 64), torch.empty(2, 3, 500, 64), 64, 0.5)
    assert (problem.batch, problem.heads.by, problem.sharing.by, problem.items.by) == (2, 12, 4, 5)
    assert (problem.queries, problem.keys, problem.earlier, problem.scale) == (300, 500, 200, 0.5)
