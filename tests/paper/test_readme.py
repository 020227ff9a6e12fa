"""The blocks of the READMEs: what the published run says now, written between their markers and nowhere else."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import synthetic
from published import RUN as PUBLISHED

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.exhibits.baseline.figures import OF_SIZE, SWEEPS
from attnlab.infer import cases
from attnlab.infer.results import Results
from attnlab.paper import readme
from attnlab.runs import read
from attnlab.runs.schema import is_of, is_under
from attnlab.study import studies
from attnlab.study.implementations import SDPA
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape

THROUGHPUT, LADDER = readme.BLOCKS
LINES = {*SDPA, "peer.flex", "peer.flash4", "peer.cudnn", "peer.flashinfer", BEST}
EVERY = pytest.mark.parametrize("block", readme.BLOCKS, ids=lambda block: block.name)


@pytest.fixture(scope="module")
def published() -> Results:
    """What the blocks show of the published run: the target, it on other values, and the sweeps of lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATTNLAB_DATA", raising=False)
        run = read.load(PUBLISHED)
    study = studies.recorded(run.manifest)
    samples, target = run.samples, {study.target_shape, *study.sweep("values")}

    def there(shapes: set[Shape]) -> np.ndarray:
        return np.logical_or.reduce([is_of(samples, shape) for shape in shapes])

    lengths = there({shape for sweep in (*SWEEPS, *OF_SIZE) for shape in study.sweep(sweep)})
    part = replace(run, samples=samples[there(target) | (lengths & is_under(samples, study.timings[0]))])
    return Results(part, cases.infer(part))


def timed(of: Results) -> set[str]:
    """What has a latency at the target."""
    return set(of.at(of.study.target_shape).index)


def curves(svg: str) -> list[tuple[str, list[float]]]:
    """The lines of a drawing's data: colour and coordinates."""
    lines = re.findall(
        r'<path d="([^"]+)" clip-path="[^"]+" style="fill: none; stroke: (#\w+);[^"]*stroke-width: 1.4', svg
    )
    return [(colour, [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", path)]) for path, colour in lines]


def written(root: Path, texts: dict[str, str]) -> Path:
    """A project with these READMEs."""
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def empty(block: readme.Block) -> str:
    return "\n".join(block.markers)


def text(block: readme.Block, of: Results) -> str:
    """The block as `update` writes it, beside the tracked runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ATTNLAB_DATA", raising=False)
        return block.made(of)[0]


@EVERY
def test_a_block_is_what_the_command_writes(published, block):
    assert block.current((paths.ROOT / block.readme).read_text()) == text(block, published), "run `make readme`"


@EVERY
def test_a_picture_is_what_the_command_draws(published, block):
    kept = curves((paths.ROOT / block.location(PUBLISHED)).read_text())
    drawn = curves(block.made(published)[1].svg.decode())
    assert [colour for colour, _ in kept] == [colour for colour, _ in drawn]
    # Throughputs in four panels; the intervals of the ladder's bars.
    assert len(kept) == (4 * len(LINES) if block is THROUGHPUT else len(timed(published) - {BEST}))
    for (_, ours), (_, theirs) in zip(kept, drawn, strict=True):
        assert ours == pytest.approx(theirs, abs=0.5)


@EVERY
def test_another_latency_is_another_block(published, block):
    table = published.table.copy()
    table[["median_us", "low_us", "high_us"]] *= 1.01
    table["throughput_tflops"] = table["flops"] / table["median_us"] / 1e6
    changed = synthetic.changed(published, table)
    assert block.made(changed)[1].svg != block.made(published)[1].svg
    assert text(block, changed) != text(block, published)


def of_study(found: Results, name: str = readme.STUDY, kind: str = "cuda") -> Results:
    """The same, but of the study of this name, on this kind of device."""
    stated = found.run.manifest
    changes = {"study": stated["study"] | {"name": name}, "device": stated["device"] | {"kind": kind}}
    return synthetic.changed(found, manifest=changes)


@pytest.fixture
def climbed(monkeypatch) -> Results:
    """A run with kernels, which `update` finds under any name."""
    found = of_study(synthetic.climbed())
    monkeypatch.setattr(readme, "load", lambda run: found)
    monkeypatch.setattr(read, "load", lambda name: found.run)
    return found


def test_a_run_with_kernels_shows_its_ladder(climbed, tmp_path):
    written(tmp_path, {block.readme: empty(block) for block in readme.BLOCKS})
    readme.update(tmp_path, "synthetic")
    block = LADDER.current((tmp_path / "kernels" / "README.md").read_text())
    assert block == text(LADDER, climbed)
    assert (tmp_path / "figures" / "synthetic-ladder.svg").read_bytes() == LADDER.made(climbed)[1].svg
    assert f"![{LADDER.alt}](../figures/synthetic-ladder.svg)" in block
    rows = [line for line in block.splitlines() if line.startswith("| kernel.")]
    assert len(rows) == len(synthetic.RUNGS)
    assert "| kernel.mma | step 3 | 200.000 [199.955, 200.045] |" in rows[2]
    assert "Compared with `sdpa.flash`, SDPA's fastest backend, it is slower by" in block


def test_a_run_without_kernels_says_so(monkeypatch, tmp_path):
    inferred = of_study(synthetic.inferred())
    monkeypatch.setattr(readme, "load", lambda run: inferred)
    monkeypatch.setattr(read, "load", lambda name: inferred.run)
    written(tmp_path, {block.readme: empty(block) for block in readme.BLOCKS})
    readme.update(tmp_path, "synthetic")
    said = (tmp_path / "kernels" / "README.md").read_text()
    assert "*The run `synthetic`, which this page shows, holds no latency of a kernel at its target.*" in said
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["synthetic.svg"]


def test_updating_writes_between_the_markers_alone(climbed, tmp_path, capsys):
    around = "# Before\n\n{}\n\nAfter\n"
    old = {block.readme: around.format("\nold\n".join(block.markers)) for block in readme.BLOCKS}
    new = {block.readme: around.format(text(block, climbed)) for block in readme.BLOCKS}
    written(tmp_path, old)
    for _ in range(2):
        readme.update(tmp_path, "synthetic")
        assert {name: (tmp_path / name).read_text() for name in new} == new
        said = capsys.readouterr().out
        for block in readme.BLOCKS:
            assert (tmp_path / block.location("synthetic")).read_bytes().startswith(b"<?xml")
            assert str(tmp_path / block.readme) in said
            assert str(tmp_path / block.location("synthetic")) in said


@EVERY
def test_a_readme_without_markers_is_refused_and_nothing_is_written(climbed, tmp_path, block):
    texts = {each.readme: empty(each) for each in readme.BLOCKS} | {block.readme: "# Before\n"}
    written(tmp_path, texts)
    with pytest.raises(UserError, match=f"{block.readme} has no lines .* to write between: put them in"):
        readme.update(tmp_path, "synthetic")
    assert {name: (tmp_path / name).read_text() for name in texts} == texts
    assert not (tmp_path / "figures").exists()


@pytest.mark.parametrize(("name", "kind"), [("gpu", "cpu"), ("quick", "cuda")])
def test_a_run_of_another_study_or_of_a_cpu_is_refused_and_nothing_is_written(monkeypatch, tmp_path, name, kind):
    monkeypatch.setattr(readme, "load", lambda run: of_study(synthetic.climbed(), name, kind))
    texts = {block.readme: empty(block) for block in readme.BLOCKS}
    written(tmp_path, texts)
    said = f"the READMEs show a run of the study 'gpu' on a GPU, and 'trial' is of '{name}' on .*: name another run"
    with pytest.raises(UserError, match=said):
        readme.update(tmp_path, "trial")
    assert {name: (tmp_path / name).read_text() for name in texts} == texts
    assert not (tmp_path / "figures").exists()
