"""Which recorded runs stand beside another."""

import synthetic
from synthetic import AXES, Recipe

from attnlab import select_run
from attnlab.infer import results
from attnlab.infer.results import Results
from attnlab.runs import read
from attnlab.study.implementations import DISPATCH, FALLBACK

PLAIN = {"implementations": [FALLBACK], "replicates": 1, "timings": synthetic.STUDY["timings"][:1]} | {
    "sweeps": {"seq_len": [AXES | {"seq_len": 128}]}
}
GRID = PLAIN | {"sweeps": {"grid seq_len": [AXES | {"seq_len": 128}]}}
GROUPED = {"grouped kv_heads": [AXES | {"seq_len": 128, "kv_heads": 1}]}
WITH_FLEX = PLAIN | {"implementations": [FALLBACK, "peer.flex"], "sweeps": PLAIN["sweeps"] | GROUPED}
GRID_WITH_FLEX = WITH_FLEX | {"sweeps": GRID["sweeps"] | GROUPED}


def record(name: str, study=PLAIN, **recipe) -> None:
    synthetic.write(name, Recipe(study=study, fates={}, **recipe))


def shown(name: str) -> Results:
    return results.of(read.load(name))


def companion(mine: Results, name: str) -> Results:
    """The run that an exhibit `of` this companion is made from."""
    return select_run.showing(mine).companions[name]()


def test_the_newest_run_that_answers_stands_beside(data):
    for name in ("older", "newer"):
        record(name, GRID)
    record("mine")
    record("flex", WITH_FLEX)
    mine = shown("mine")
    assert companion(mine, "choices").run.name == "newer"
    assert companion(mine, "peers").run.name == "flex"
    assert [other.run.name for other in select_run.companions(mine)] == ["newer", "flex"]


def test_a_run_that_answers_itself_stands_alone(data):
    record("mine", GRID_WITH_FLEX | {"implementations": [FALLBACK, "peer.flex", DISPATCH]})
    record("newer", GRID_WITH_FLEX)
    mine = shown("mine")
    assert companion(mine, "choices") is mine
    assert companion(mine, "peers") is mine
    assert select_run.companions(mine) == []


def test_one_run_that_answers_twice_stands_beside_once(data):
    record("both", GRID_WITH_FLEX)
    record("mine")
    assert [other.run.name for other in select_run.companions(shown("mine"))] == ["both"]


def test_without_an_answer_a_run_stands_for_itself(data):
    record("mine")
    record("other", WITH_FLEX)
    mine = shown("mine")
    assert companion(mine, "choices") is mine
    assert companion(mine, "attended") is mine


def test_runs_that_are_not_whole_not_trusted_or_not_from_here_are_passed_over(data):
    record("good", GRID)
    record("incomplete", GRID, shapes=1)
    record("elsewhere", GRID, device="NVIDIA L4")
    record("changed", GRID)
    record("resealed", GRID)
    record("mine")
    (data / "changed" / "samples.parquet").write_bytes(b"changed")
    manifest = data / "resealed" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("Chosen latencies", "Other latencies"))
    assert companion(shown("mine"), "choices").run.name == "good"
