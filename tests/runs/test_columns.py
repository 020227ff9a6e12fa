"""The declared columns, and what follows from them."""

import dataclasses

import pytest
from tools import data_readme

from attnlab.runs import schema
from attnlab.runs.tables import AXES, MODEL_TABLES, TABLES
from attnlab.study.shapes import Shape


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
