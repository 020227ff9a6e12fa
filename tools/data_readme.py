"""The tables of data/README.md as `attnlab.runs` declares them; as a program, writes them between their markers."""

import re
from collections.abc import Iterable
from pathlib import Path

from attnlab.base import paths
from attnlab.readme import markers
from attnlab.runs.tables import SHARED, TABLES, Column

README = paths.ROOT / "data" / "README.md"


def current(text: str) -> str:
    """The text of the README with each table between its markers as it is declared now."""
    for name, columns in declared().items():
        begin, end = markers(name)
        block = f"{begin}\n\n{_table(columns)}\n\n{end}"
        for held in re.findall(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL):
            text = text.replace(held, block)
    return text


def declared() -> dict[str, list[Column]]:
    """The columns of each table in the README, by the word in its markers."""
    own = {table.name: [each for each in table.columns if each not in SHARED] for table in TABLES.values()}
    return {"shared": list(SHARED)} | own


def _table(columns: Iterable[Column]) -> str:
    rows = [f"| `{each.name}` | {each.means} | {_values(each)} |" for each in columns]
    return "\n".join(["| column | holds | values |", "|---|---|---|", *rows])


def _values(column: Column) -> str:
    unit = f", in {column.unit}" if column.unit else ""
    return f"{column.kind.words}{unit}{'; may be empty' if column.empty else ''}"


def write(readme: Path = README) -> None:
    """Write the tables into the README."""
    readme.write_text(current(readme.read_text()))


if __name__ == "__main__":
    write()
