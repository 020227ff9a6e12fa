"""The README's first screen: one picture and one table of a recorded run, between two markers."""

import re
from pathlib import Path

from attnlab import paths, runs
from attnlab.analyse import figures, tables
from attnlab.analyse.display import MISSING, Figure, Table
from attnlab.analyse.results import Results, of
from attnlab.errors import UserError

BEGIN, END = "<!-- run: written by `make readme` -->", "<!-- /run -->"
SWEEP = "seq_len"
ALT = "Throughput of each SDPA backend over the sequence length, without and with the causal mask."


def update(path: Path, run: str) -> None:
    """Draw the picture into figures/ and write what lies between the markers of a README.

    Raises:
        UserError: the run isn't there or has no sweep of lengths, or the file has no markers.
    """
    results = of(runs.load(run))
    if SWEEP not in results.study.sweeps:
        raise UserError(f"the study of {run!r} has no sweep {SWEEP!r} to show: name another run")
    text = path.read_text()
    if not _between(text):
        raise UserError(f"{paths.shown(path)} has no lines {BEGIN} and {END} to write between: put them in")
    drawing = picture(results)
    written = path.parent / location(run)
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_bytes(drawing.svg)
    path.write_text(text.replace(current(text), block(results)))
    print(f"wrote {paths.shown(path)} and {paths.shown(written)} from {run}")


def picture(results: Results) -> Figure:
    """What the README opens with: throughput over length, under full attention and under the causal mask."""
    drawing = figures.throughput(results, [SWEEP, f"causal {SWEEP}"])
    assert isinstance(drawing, Figure)
    return drawing


def block(results: Results) -> str:
    """What stands between the markers, and the markers."""
    drawing, table = picture(results), tables.sweep(results, SWEEP, results.study.baseline)
    assert isinstance(table, Table)
    environment = results.run.manifest["environment"]
    device = f"{results.run.manifest['device']['name']}, PyTorch {environment['packages']['torch']}"
    if environment["driver"]:
        device += f", driver {environment['driver']}"
    interval = "Brackets hold the 95 % bootstrap interval of the median."
    parts = [
        BEGIN,
        f"![{ALT}]({location(results.run.name)})",
        f"*{device}. {drawing.caption}*",
        f"**{table.caption}** {device}; run `{results.run.name}`. {interval} {table.note}".strip(),
        _markdown(table),
        END,
    ]
    return "\n\n".join(parts)


def current(text: str) -> str:
    """What stands between the markers of a README now, and the markers; "" where there are none."""
    found = _between(text)
    return found[0] if found else ""


def location(run: str) -> str:
    """Where the picture is, from the README."""
    return f"figures/{run}.svg"


def _between(text: str) -> re.Match[str] | None:
    return re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)


def _markdown(table: Table) -> str:
    """A table as GitHub sets it, numbers to the right."""
    frame = table.frame.astype(object).where(table.frame.notna(), MISSING)
    rows = [frame.columns, *frame.itertuples(index=False)]
    lines = [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---:|' * len(frame.columns)}", *lines[1:]])


def _cell(value: object) -> str:
    return str(value).replace("\n", " ").replace("|", "\\|")
