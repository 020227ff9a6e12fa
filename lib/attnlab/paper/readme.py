"""What the READMEs show of a recorded run: SDPA's throughput and the ladder, each between two markers."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnlab import select_run
from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.base.files import write_atomically
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.kernels.climb import standing_sentence
from attnlab.exhibits.markdown import without_html
from attnlab.infer.results import Results, load

STUDY = "gpu"
"""The only study whose runs the READMEs show, those of GPUs: a trial on a CPU doesn't write over the published run."""
THROUGHPUT, CLIMB, LADDER = "baseline.throughput", "kernels.climb", "kernels.ladder"


def markers(name: str) -> tuple[str, str]:
    """The lines between which a README holds what is written there."""
    return f"<!-- {name}: written by `make readme` -->", f"<!-- /{name} -->"


@dataclass(frozen=True)
class Block:
    """The text between two markers of one README.

    Attributes:
        readme: its path from the project's root.
        name: the word in both markers.
        picture: the id of the exhibit that is drawn.
        suffix: of the name of the picture in figures/, after that of the run.
        alt: the picture described, for readers who can't see it.
        content: makes the text between the markers from a run and from the picture's Markdown.
    """

    readme: str
    name: str
    picture: str
    suffix: str
    alt: str
    content: Callable[[Results, str], str]

    @property
    def markers(self) -> tuple[str, str]:
        """The first line of the block and its last."""
        return markers(self.name)

    def current(self, text: str) -> str:
        """The block as it stands in a README, markers included; empty where there is none."""
        found = re.search(".*?".join(map(re.escape, self.markers)), text, re.DOTALL)
        return found[0] if found else ""

    def location(self, run: str) -> str:
        """The path of the picture from the project's root."""
        return f"figures/{run}{self.suffix}.svg"

    def made(self, results: Results) -> tuple[str, Figure | None]:
        """The block as a run makes it, markers included, and its picture; None for a run that has none."""
        drawn, picture = Show(results)(self.picture).content, ""
        if isinstance(drawn, Figure):
            link = os.path.relpath(self.location(results.run.name), Path(self.readme).parent)
            picture = f"![{self.alt}]({link})\n\n*{_device(results)}; run `{results.run.name}`. {drawn.caption}*"
        begin, end = self.markers
        text = "\n\n".join([begin, without_html(self.content(results, picture)), end])
        return text, drawn if isinstance(drawn, Figure) else None


def _throughput(results: Results, picture: str) -> str:
    said = select_run.showing(results)("verdicts.values.said")
    return "\n\n".join(filter(None, [picture, said.markdown]))


def _ladder(results: Results, picture: str) -> str:
    table = Show(results)(LADDER).content
    if not picture or not isinstance(table, Table):
        return f"*The run `{results.run.name}`, which this page shows, holds no latency of a kernel at its target.*"
    parts = [standing_sentence(results), picture, f"**{table.caption}** {table.legend}", table.grid]
    return "\n\n".join(parts)


BLOCKS = (
    Block(
        "README.md",
        "run",
        THROUGHPUT,
        "",
        "Throughput of each implementation over the sequence length, without and with the causal mask.",
        _throughput,
    ),
    Block(
        "kernels/README.md",
        "ladder",
        CLIMB,
        "-ladder",
        "How near each hand-written kernel and each backend of SDPA comes to the floor at the target shape.",
        _ladder,
    ),
)


def update(root: Path, run: str) -> None:
    """Draw the pictures into figures/ and write each block between the markers of its README.

    Raises:
        UserError: the run isn't there, isn't complete or isn't of `STUDY` on a GPU, or a README has no markers.
            Nothing is written then.
    """
    results = load(run)
    if not results.run.complete:
        raise UserError(f"the run {run!r} is not complete: `make measure RUN={run}` goes on with it")
    device, study = results.run.manifest["device"], results.study.name
    if (device["kind"], study) != ("cuda", STUDY):
        raise UserError(
            f"the READMEs show a run of the study {STUDY!r} on a GPU, and {run!r} is of {study!r} on {device['name']}: "
            "name another run"
        )
    written: dict[Path, bytes] = {}
    for block in BLOCKS:
        readme = root / block.readme
        text = readme.read_text()
        if not (current := block.current(text)):
            begin, end = block.markers
            raise UserError(f"{paths.shown(readme)} has no lines {begin} and {end} to write between: put them in")
        made, drawing = block.made(results)
        written[readme] = text.replace(current, made).encode()
        if drawing:
            written[root / block.location(run)] = drawing.svg
    for path, content in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    print(f"wrote {', '.join(map(paths.shown, written))} from {run}")


def _device(results: Results) -> str:
    environment = results.run.manifest["environment"]
    device = f"{results.run.manifest['device']['name']}, PyTorch {environment['packages']['torch']}"
    return f"{device}, driver {environment['driver']}" if environment["driver"] else device
