"""The declared columns, the checks derived from them, and the rules that a run records."""

import ast
import dataclasses
from pathlib import Path

from tools import data_readme

from attnlab.base import rules
from attnlab.runs import checks, schema
from attnlab.runs.tables import AXES, TABLES, dtype, frame_of
from attnlab.study.shapes import Shape


def test_the_columns_of_the_readme_are_as_declared():
    text = data_readme.README.read_text()
    assert data_readme.current(text) == text, "run tools/data_readme.py"
    assert [name for name in TABLES if f"## {name}.parquet: " not in text] == []


def test_the_axes_are_those_of_a_shape_and_the_tables_those_of_a_run():
    assert tuple(field.name for field in AXES) == Shape.AXES
    assert [field.name for field in dataclasses.fields(schema.Run)][2:] == [*TABLES, "ceilings"]


def test_a_table_has_its_types_also_where_it_is_empty_or_knows_nothing():
    for table in TABLES.values():
        for frame in (frame_of(table, []), checks.frame_of_files({}, table).drop(columns=checks.PLACE)):
            assert frame.dtypes.astype(str).to_dict() == {field.name: dtype(field) for field in table}
        unknown = frame_of(table, [{}, {}]).dtypes.astype(str)
        assert all(unknown[field.name] == dtype(field) for field in table if field.nullable)


def test_every_rule_is_recorded_under_its_name():
    recorded = rules.recorded()
    assert recorded["gate_factor"] == rules.GATE_FACTOR == 2.0
    assert recorded["steady"] == rules.STEADY == 0.02
    assert recorded["seed"] == rules.SEED == 42
    stated = {node.targets[0].id.lower() for node in ast.parse(Path(rules.__file__).read_text()).body
              if isinstance(node, ast.Assign)}  # fmt: skip
    assert set(recorded) == stated
