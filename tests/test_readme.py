"""The README's picture and table are what the published run says now."""

import re
import shutil

import pytest
import synthetic

from attnlab import paths, runs
from attnlab.analyse import results
from attnlab.errors import UserError
from attnlab.report import readme

README = paths.ROOT / "README.md"
PUBLISHED = "h200-2026-11-21"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The published run's results, from the kept inference where it is of this code; nothing in the tree is written."""
    folder = tmp_path_factory.mktemp("reports")
    shutil.copytree(paths.ROOT / "reports" / PUBLISHED, folder / PUBLISHED)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATTNLAB_DATA", raising=False)
        patch.setenv("ATTNLAB_REPORTS", str(folder))
        return results.of(runs.load(PUBLISHED))


def curves(svg: str) -> list[tuple[str, list[float]]]:
    """The lines of a drawing's data: colour and coordinates."""
    lines = re.findall(
        r'<path d="([^"]+)" clip-path="[^"]+" style="fill: none; stroke: (#\w+);[^"]*stroke-width: 1.4', svg
    )
    return [(colour, [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", path)]) for path, colour in lines]


def test_its_block_is_what_the_command_writes(published):
    assert readme.current(README.read_text()) == readme.block(published), "run `make readme`"


def test_its_ladder_is_what_the_command_writes(published):
    assert readme.current_ladder(README.read_text()) == readme.ladder_block(published), "run `make readme`"


def test_a_run_with_kernels_shows_its_ladder(tmp_path, monkeypatch):
    climbed = synthetic.climbed()
    monkeypatch.setattr(readme, "of", lambda run: climbed)
    monkeypatch.setattr(runs, "load", lambda name: climbed.run)
    page = tmp_path / "README.md"
    page.write_text("\n".join([readme.BEGIN, readme.END, "", readme.LADDER_BEGIN, readme.LADDER_END]))
    readme.update(page, "synthetic")
    block = readme.current_ladder(page.read_text())
    assert block == readme.ladder_block(climbed)
    assert (tmp_path / "figures" / "synthetic-ladder.svg").read_bytes() == readme.ladder_picture(climbed).svg
    assert "![" + readme.LADDER_ALT + "](figures/synthetic-ladder.svg)" in block
    rows = [line for line in block.splitlines() if line.startswith("| kernel.")]
    assert len(rows) == len(synthetic.RUNGS)
    assert "| kernel.mma | step 3 | 200.000 [199.955, 200.045] |" in rows[2]
    assert "slower than `sdpa.flash`" in block


def test_its_picture_is_what_the_command_draws(published):
    kept = curves((paths.ROOT / readme.location(PUBLISHED)).read_text())
    drawn = curves(readme.picture(published).svg.decode())
    assert [colour for colour, _ in kept] == [colour for colour, _ in drawn]
    assert len(kept) == 2 * len(published.study.implementations)
    for (_, ours), (_, theirs) in zip(kept, drawn, strict=True):
        assert ours == pytest.approx(theirs, abs=0.5)


def test_another_latency_is_another_block(published):
    table = published.table.copy()
    table.loc[table["implementation"] == published.study.baseline, ["median_us", "low_us", "high_us"]] *= 1.01
    changed = results.Results(published.run, table)
    assert readme.block(changed) != readme.block(published)


def test_the_table_holds_the_median_of_the_samples(published):
    block = readme.block(published)
    target = published.study.target_shape
    samples = published.run.samples
    mine = samples[
        (samples["implementation"] == published.study.baseline)
        & (samples["clock"] == published.headline.clock)
        & (samples["cache"] == published.headline.cache)
    ]
    for axis, value in target.axes.items():
        mine = mine[mine[axis] == value]
    (row,) = (line for line in block.splitlines() if line.startswith(f"| {target.seq_len} |"))
    stated = float(row.split("|")[2].split("[")[0].replace(",", ""))
    assert stated == pytest.approx(mine["latency_us"].median(), rel=1e-3)


def test_updating_writes_between_the_markers_alone(published, tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "of", lambda run: published)
    monkeypatch.setattr(runs, "load", lambda name: published.run)
    page = tmp_path / "README.md"
    ladder = f"{readme.LADDER_BEGIN}\n{readme.LADDER_END}"
    page.write_text(f"# Before\n\n{readme.BEGIN}\nold\n{readme.END}\n\nAfter\n{ladder}\n")
    readme.update(page, PUBLISHED)
    assert page.read_text() == f"# Before\n\n{readme.block(published)}\n\nAfter\n{readme.ladder_block(published)}\n"
    assert (tmp_path / readme.location(PUBLISHED)).read_bytes().startswith(b"<?xml")
    again = page.read_text()
    readme.update(page, PUBLISHED)
    assert page.read_text() == again
    page.write_text("# Before\n")
    with pytest.raises(UserError, match="to write between"):
        readme.update(page, PUBLISHED)
    assert page.read_text() == "# Before\n"
