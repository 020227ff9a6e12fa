"""What the README shows of a recorded run, between markers: a picture and a table of SDPA, and of the ladder."""

import re
from pathlib import Path

from attnlab import paths, runs
from attnlab.analyse import figures, kernels, tables
from attnlab.analyse.display import Figure, Table
from attnlab.analyse.results import Results, of
from attnlab.errors import UserError

BEGIN, END = "<!-- run: written by `make readme` -->", "<!-- /run -->"
LADDER_BEGIN, LADDER_END = "<!-- ladder: written by `make readme` -->", "<!-- /ladder -->"
SWEEP = "seq_len"
ALT = "Throughput of each implementation over the sequence length, without and with the causal mask."
LADDER_ALT = "How near each hand-written kernel and each backend of SDPA comes to the floor at the target shape."


def update(path: Path, run: str) -> None:
    """Draw the pictures into figures/ and write what lies between the markers of a README.

    Raises:
        UserError: the run isn't there or has no sweep of lengths, or the file has no markers.
    """
    results = of(runs.load(run))
    if SWEEP not in results.study.sweeps:
        raise UserError(f"the study of {run!r} has no sweep {SWEEP!r} to show: name another run")
    text = path.read_text()
    blocks = {current(text): block(results), current_ladder(text): ladder_block(results)}
    if "" in blocks:
        begin, end = (BEGIN, END) if not current(text) else (LADDER_BEGIN, LADDER_END)
        raise UserError(f"{paths.shown(path)} has no lines {begin} and {end} to write between: put them in")
    drawings = {location(run): picture(results)}
    if (climb := ladder_picture(results)) is not None:
        drawings[ladder_location(run)] = climb
    for place, drawing in drawings.items():
        written = path.parent / place
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_bytes(drawing.svg)
    for old, new in blocks.items():
        text = text.replace(old, new)
    path.write_text(text)
    print(
        f"wrote {', '.join([paths.shown(path), *(paths.shown(path.parent / place) for place in drawings)])} from {run}"
    )


def picture(results: Results) -> Figure:
    """What the README opens with: throughput over length, under full attention and under the causal mask."""
    drawing = figures.throughput(results, [SWEEP, f"causal {SWEEP}"])
    assert isinstance(drawing, Figure)
    return drawing


def ladder_picture(results: Results) -> Figure | None:
    """The ladder at the target; None for a run that has none, or no latency there."""
    drawing = kernels.climb(results, results.study.target_shape)
    return drawing if isinstance(drawing, Figure) else None


def block(results: Results) -> str:
    """What stands between the first markers, and the markers."""
    drawing, table = picture(results), tables.sweep(results, SWEEP, results.study.baseline)
    assert isinstance(table, Table)
    interval = "Brackets hold the 95 % bootstrap interval of the median."
    parts = [
        BEGIN,
        f"![{ALT}]({location(results.run.name)})",
        f"*{_device(results)}. {drawing.caption}*",
        f"**{table.caption}** {_device(results)}; run `{results.run.name}`. {interval} {table.note}".strip(),
        table.grid,
        END,
    ]
    return "\n\n".join(parts)


def ladder_block(results: Results) -> str:
    """What stands between the ladder's markers, and the markers."""
    drawing, table = ladder_picture(results), kernels.ladder(results, results.study.target_shape)
    if drawing is None or not isinstance(table, Table):
        none = f"*The run `{results.run.name}`, which this page shows, holds no latency of a kernel at its target.*"
        return "\n\n".join([LADDER_BEGIN, none, LADDER_END])
    parts = [
        LADDER_BEGIN,
        kernels.standing_sentence(results),
        f"![{LADDER_ALT}]({ladder_location(results.run.name)})",
        f"*{_device(results)}; run `{results.run.name}`. {drawing.caption}*",
        f"**{table.caption}** {table.note}",
        table.grid,
        LADDER_END,
    ]
    return "\n\n".join(parts)


def current(text: str) -> str:
    """What stands between the first markers of a README now, and the markers; "" where there are none."""
    return _between(text, BEGIN, END)


def current_ladder(text: str) -> str:
    """The same of the ladder's markers."""
    return _between(text, LADDER_BEGIN, LADDER_END)


def location(run: str) -> str:
    """Where the picture is, from the README."""
    return f"figures/{run}.svg"


def ladder_location(run: str) -> str:
    """Where the ladder's picture is, from the README."""
    return f"figures/{run}-ladder.svg"


def _device(results: Results) -> str:
    environment = results.run.manifest["environment"]
    device = f"{results.run.manifest['device']['name']}, PyTorch {environment['packages']['torch']}"
    return f"{device}, driver {environment['driver']}" if environment["driver"] else device


def _between(text: str, begin: str, end: str) -> str:
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", text, re.DOTALL)
    return found[0] if found else ""
