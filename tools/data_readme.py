"""The columns of data/README.md as `attnlab.runs` declares them; as a program, writes them between their markers."""

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from attnlab.base import paths
from attnlab.readme import markers
from attnlab.runs.tables import SHARED, TABLES, about

README = paths.ROOT / "data" / "README.md"


def current(text: str) -> str:
    """The text of the README with the columns between its markers as they are declared now."""
    begin, end = markers("columns")
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return found.sub(lambda _: f"{begin}\n\n{_columns()}\n\n{end}", text)


def _columns() -> str:
    sections = [f"Most tables have these:\n\n{_lines(SHARED)}"]
    for name, table in TABLES.items():
        rows = table.metadata[b"rows"].decode()
        sections.append(f"## {name}.parquet: {rows}\n\n{_lines(field for field in table if field not in SHARED)}")
    return "\n\n".join(sections)


def _lines(columns: Iterable[pa.Field]) -> str:
    return "\n".join(f"- `{each.name}`: {about(each, 'means')}" for each in columns)


def write(readme: Path = README) -> None:
    """Write the columns into the README."""
    readme.write_text(current(readme.read_text()))


if __name__ == "__main__":
    write()
