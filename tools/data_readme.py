"""Keep the column lists of data/README.md equal to the declarations in `attnlab.runs`; as a program, write them."""

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from attnlab.base import paths
from attnlab.readme import markers
from attnlab.runs.tables import AXES, SHARED, TABLES, about

README = paths.ROOT / "data" / "README.md"


def current(text: str) -> str:
    """The text of the README with the currently declared columns between its markers."""
    begin, end = markers("columns")
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return found.sub(lambda _: f"{begin}\n\n{_columns()}\n\n{end}", text)


def _columns() -> str:
    axes = ", ".join(f"`{field.name}`" for field in AXES)
    others = _lines(field for field in SHARED if field not in AXES)
    sections = [f"Most tables have these:\n\n- {axes}: the [shape](../docs/method.md#axes-of-a-shape)\n{others}"]
    above: dict[str, str] = {}
    for name, table in TABLES.items():
        rows, own = table.metadata[b"rows"].decode(), [field for field in table if field not in SHARED]
        again = [f"`{field.name}`" for field in own if above.get(field.name) == about(field, "means")]
        lines = _lines(field for field in own if f"`{field.name}`" not in again)
        repeated = f"\n- as above: {', '.join(again)}" if again else ""
        sections.append(f"## {name}.parquet: {rows}\n\n{lines}{repeated}")
        above |= {field.name: about(field, "means") for field in own}
    return "\n\n".join(sections)


def _lines(columns: Iterable[pa.Field]) -> str:
    return "\n".join(f"- `{each.name}`: {about(each, 'means')}" for each in columns)


def write(readme: Path = README) -> None:
    """Write the columns into the README."""
    readme.write_text(current(readme.read_text()))


if __name__ == "__main__":
    write()
