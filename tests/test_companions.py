"""Which recorded runs stand beside another."""

from types import SimpleNamespace

import pytest
import synthetic
from synthetic import AXES, Recipe

from attnlab import select_run
from attnlab.runs import read
from attnlab.study.implementations import CUDNN_FP8, DISPATCH, FALLBACK

PLAIN = {"implementations": [FALLBACK], "replicates": 1, "timings": synthetic.STUDY["timings"][:1]} | {
    "sweeps": {"seq_len": [AXES | {"seq_len": 128}]}
}
GRID = PLAIN | {"sweeps": {"grid seq_len": [AXES | {"seq_len": 128}]}}
FLEX = PLAIN | {"implementations": [FALLBACK, "peer.flex"]}
SERVED = GRID | {"implementations": [FALLBACK, DISPATCH]}


FEW = {"few kv_len": [AXES | {"seq_len": [1, 2, 4], "kv_len": 256}]}


def record(name: str, study=PLAIN, **recipe) -> None:
    synthetic.write(name, Recipe(study=study, fates={}, **recipe))


@pytest.fixture(autouse=True)
def not_inferred(data, monkeypatch):
    """Runs stand for what is inferred from them."""
    monkeypatch.setattr(select_run, "load", lambda name: SimpleNamespace(run=read.load(name)))


def companions(name: str) -> dict[str, str]:
    """By companion, the run that an exhibit of a run is made from."""
    shown = select_run.load(name)
    show = select_run.showing(shown)
    found = {companion: make().run.name for companion, make in show.companions.items()}
    others = [other for other in dict.fromkeys(found.values()) if other != name]
    assert [other.run.name for other in select_run.companions(shown)] == others
    return found


@pytest.mark.parametrize(
    ("mine", "others", "choices", "attended"),
    [
        (PLAIN, {"older": GRID, "newer": GRID, "flex": FLEX}, "newer", "mine"),
        (SERVED, {"other": SERVED}, "mine", "mine"),
        (PLAIN, {"both": SERVED}, "both", "both"),
        (PLAIN, {"flex": FLEX}, "mine", "mine"),
    ],
    ids=["the newest that answers", "a run answers itself", "one answers twice", "none answers"],
)
def test_the_newest_run_that_answers_stands_beside(mine, others, choices, attended):
    for name, study in others.items():
        record(name, study)
    record("mine", mine)
    found = companions("mine")
    assert (found["choices"], found["attended"]) == (choices, attended)


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
    assert companions("mine")["choices"] == "good"


def test_what_makes_a_run_one_of_few_queries_of_fp8_or_of_kinds_of_values():
    one = {"decode kv_len": [AXES | {"seq_len": 1, "kv_len": [256, 512]}]}
    chunk = {"chunk kv_len": [AXES | {"seq_len": [4, 128], "kv_len": 256}]}
    for name, sweeps in {"few": FEW, "one": one, "chunk": chunk}.items():
        record(name, FLEX | {"sweeps": PLAIN["sweeps"] | sweeps})
    record("few_alone", PLAIN | {"sweeps": PLAIN["sweeps"] | FEW})
    eight = PLAIN | {"implementations": [FALLBACK, CUDNN_FP8]}
    record("eight", eight, latencies_us={(CUDNN_FP8, synthetic.TARGET): 20.0})
    kinds = {"values": [AXES | {"seq_len": 128, "values": ["normal", "sd 4"]}]}
    record("kinds", PLAIN | {"sweeps": PLAIN["sweeps"] | kinds})
    record("mine")
    found = companions("mine")
    assert (found["decoded"], found["eight_bits"], found["valued"]) == ("few", "eight", "kinds")
    assert companions("kinds")["valued"] == "kinds"
