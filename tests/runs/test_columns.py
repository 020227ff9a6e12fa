"""The declared columns and what follows from them; words that both halves spell alike, each once in ``runs/``."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools import data_readme

from attnlab.base import paths, rules
from attnlab.runs import methods, schema
from attnlab.runs.tables import AXES, MODEL_TABLES, TABLES
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL


def test_the_tables_of_the_readme_are_as_declared():
    text = data_readme.README.read_text()
    assert data_readme.current(text) == text, "run `make readme`"
    assert [table for table in TABLES.values() if f"## {table.name}.parquet: {table.rows}\n" not in text] == []
    assert [name for name in data_readme.declared() if f"<!-- /{name} -->" not in text] == []


def test_the_axes_are_those_of_a_shape_and_the_tables_those_of_a_run():
    assert tuple(column.name for column in AXES) == Shape.AXES
    assert [field.name for field in dataclasses.fields(schema.Run)][2:] == list(TABLES)


@pytest.mark.parametrize(
    "table", [*TABLES.values(), *MODEL_TABLES.values()], ids=[*TABLES, *map("models.{}".format, MODEL_TABLES)]
)
def test_a_table_has_its_types_also_where_it_is_empty_or_knows_nothing(table):
    stated = {column.name: column.dtype for column in table.columns}
    assert table.frame([]).dtypes.astype(str).to_dict() == stated
    unknown = table.frame([{}, {}]).dtypes.astype(str)
    assert {column.name: unknown[column.name] for column in table.columns if column.empty} == {
        column.name: column.dtype for column in table.columns if column.empty
    }


def test_what_has_to_be_there_keeps_no_type_that_hides_that_it_is_missing():
    passed = TABLES["checks"].frame([{"passed": None}, {"passed": True}])["passed"]
    assert passed.tolist()[0] is None
    assert not TABLES["checks"]["passed"].kind.holds(passed).iloc[0]


def test_a_unit_is_that_of_the_name():
    units = {name: TABLES["samples"][name].unit for name in ("latency_us", "started_s", "sm_clock_mhz", "launches")}
    assert units == {"latency_us": "µs", "started_s": "s", "sm_clock_mhz": "MHz", "launches": ""}
    assert TABLES["resources"]["local_bytes"].unit == "bytes"


LIB = paths.ROOT / "lib" / "attnlab"
SOURCES = sorted(path for path in LIB.rglob("*.py") if path.parent != LIB / "runs")
CLOCKS = {methods.EAGER, methods.DEVICE}
"""These name a clock of a study as well, and are spelled in many places."""
TOOLS = {methods.NCU, methods.CUPTI}
"""These name a tool as well."""


def strings(path: Path) -> Iterator[tuple[int, str, str]]:
    """The string constants of a file but for its docstrings: line, content, and the line's text."""
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines()
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value, lines[node.lineno - 1]


def test_what_both_halves_spell_alike_is_spelled_once():
    names = {method.name for method in methods.METHODS} - CLOCKS - TOOLS
    found = [
        f"{path.relative_to(LIB)}:{number}: {value}"
        for path in SOURCES
        for number, value, line in strings(path)
        if value in names
        or re.search(r"\b(gpu|sm|smsp|l1tex|lts|dram|launch)__\w", value)
        or value in (schema.OUT_OF_MEMORY, *schema.EXTREMES)
        or (value in schema.STATUSES and "status" in line)
        or (value == NORMAL and "inputs" in line)
    ]
    assert found == []


def test_every_rule_is_recorded_under_its_name():
    recorded = rules.recorded()
    assert recorded["gate_factor"] == rules.GATE_FACTOR == 2.0
    assert recorded["steady"] == rules.STEADY == 0.02
    assert recorded["seed"] == rules.SEED == 42
    stated = {node.targets[0].id.lower() for node in ast.parse((LIB / "runs" / "rules.py").read_text()).body
              if isinstance(node, ast.Assign)}  # fmt: skip
    assert set(recorded) == stated
