"""What is shown of models: verdicts in both phases, what `attend` called, outputs, and the share of attention."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import small
import synthetic

from attnlab.base.errors import UserError
from attnlab.exhibits import model
from attnlab.exhibits.catalogue import Show
from attnlab.infer.models.comparisons import comparisons
from attnlab.infer.models.outputs import agreements, kernels_of_prompts, shares_pct
from attnlab.infer.results import Results
from attnlab.runs import models, schema
from attnlab.runs import write as runs_write
from attnlab.runs.schema import FIRST, REST, STEPS
from attnlab.study import models as stated
from attnlab.study.implementations import control
from attnlab.study.models import BASELINE, CANDIDATE

GPU = "NVIDIA H200"
DRAFT = "8 drafted tokens, CUDA graph"
PLAN = stated.plan("cuda", ["gpt2", "llama-128"], batch=[4], prompt=[512], tokens=11, rounds=20, replicates=5)
# How much faster the first token is with attend, by model; later ones take as long.
FASTER = {"gpt2": 1.0, "llama-128": 1.25}


@cache
def shown() -> Results:
    """A run on the card of the record."""
    return synthetic.infer(replace(synthetic.LONELY, device=GPU))


def write(
    name: str = "mine",
    created: str = "2026-11-22",
    on: str = GPU,
    complete: bool = True,
    plan: stated.Plan = PLAN,
    **more: object,
) -> None:
    """A record whose first token takes 10 ms with SDPA, and each later one 1 ms."""
    card = {"kind": "cuda", "name": on, "multiprocessors": 132, "compute_capability": "9.0"}
    environment = small.model_manifest()["environment"]
    fields = {
        "created": f"{created}T09:00:00+00:00",
        "device": small.manifest()["device"] | card,
        "environment": environment | {"packages": {"transformers": "5", "torch": "2"}},
        "dispatch": {"run": "theirs", "gpu.json": "0" * 64},
    }
    run = models.run_of(name)
    runs_write.create(run, small.model_manifest(plan, **(fields | more)))
    for part, key, rows in small.model_blocks(plan):
        runs_write.add_part(run, part, key, chosen(part, rows))
    if complete:
        runs_write.finish(run)


def chosen(part: str, rows: pd.DataFrame) -> pd.DataFrame:
    """A block with times, errors and shares that this page has words for."""
    ours, replicate = rows["attention"].eq(CANDIDATE), rows["replicate"].iloc[0]
    faster = rows["model"].map(FASTER).fillna(1.0).where(ours, 1.0)
    if part == "samples":
        noise = np.random.default_rng(replicate).normal(0, 5, (2, len(rows)))
        times = dict.fromkeys(STEPS.values(), math.nan)
        times |= {"first_us": 1e4 / faster + noise[0], "rest_us": 1e4 + noise[1]}
        times["drafted_graph_us"] = np.where(ours, 500.0, 1000.0) + noise[0] / 5
        return rows.assign(agreeing=np.where(ours, 40, 44), **times)
    if part == "outputs":
        errors = {"max_error": np.where(ours, 0.02, 0.01), "mean_error": 0.001 + 0.001 * replicate}
        return rows.assign(reference="float32", ran=np.where(faster > 1, "best<64>(args)", "flash"), **errors)
    shares = np.where(rows["phase"].eq(FIRST), 0.4 / faster, 0.1)
    return rows.assign(attention_us=1e3 * shares, total_us=1e3)[rows["attention"].ne(control(BASELINE))]


def test_without_a_record_of_the_device_a_line_says_how_to_make_one(data):
    told = f"*No model was measured on {GPU}: `make model` does that there.*"
    assert Show(shown())("model.compared").markdown == told
    write(on="another")
    assert "No model was measured" in Show(shown())("model.share").markdown


def test_the_newest_complete_record_of_the_device_is_shown(data):
    write("old", created="2026-11-20")
    write("new", created="2026-11-23")
    write("cut", created="2026-11-24", complete=False)
    said = model.recorded(shown()).markdown
    assert said.startswith("The record `new` is of NVIDIA H200, transformers 5")
    assert "`old`" not in said


def test_records_of_unlike_models_are_shown_together(data):
    write("both", created="2026-11-20")
    write("other", created="2026-11-23", plan=PLAN.model_copy(update={"models": [stated.MODELS["llama-64"]]}))
    parts = model.compared(shown()).parts
    assert list(parts["first"].frame["model"]) == ["llama-64", "gpt2", "llama-128"]
    assert "The record `other` is" in model.recorded(shown()).markdown
    assert "11 tokens in `other`, 5 replicates of 20 rounds and 11 tokens in `both`." in parts["first"].note
    assert len(model.outputs(shown()).frame) == 3
    gained = model.gained(shown())
    assert [setting.split()[0] for setting in gained.frame["setting"]] == ["llama-64", "gpt2", "llama-128"]
    assert " % in steps of a graph, " in gained.note
    assert " % elsewhere. `other`, of llama-64: random weights" in gained.note
    write("newer", created="2026-11-24")
    assert [record.manifest.name for record in models.newest(GPU)] == ["newer", "other"]


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("manifest.json", lambda held: held[:100], "is not a manifest: restore it from where the run came from"),
        ("manifest.json", lambda held: held.replace(b'"transformers"', b'"t"'), "was changed after it was recorded"),
        ("samples.parquet", lambda held: held[:100], "samples.parquet doesn't match its manifest: it was changed"),
    ],
)
def test_a_record_that_was_damaged_is_left_out_and_named(data, name, change, why):
    write("new", created="2026-11-23")
    path = schema.folder(models.run_of("new")) / name
    path.write_bytes(change(path.read_bytes()))
    said = Show(shown())("model.compared").markdown
    assert said.startswith(f"*No model was measured on {GPU}: ")
    assert why in said
    rest = path.parent.rename(path.parents[2] / "aside")
    write("old", created="2026-11-20")
    rest.rename(path.parent)
    said = model.recorded(shown()).markdown
    assert "The record `old` is of NVIDIA H200" in said
    assert f"A record was left out: {path.parent}/" in said
    assert why in said


def test_a_part_that_was_damaged_is_named_with_its_block(data):
    write("mine", complete=False)
    (path,) = (schema.folder(models.run_of("mine")) / "parts").glob("kernels.r00-gpt2.*")
    path.write_bytes(b"PAR1")
    advice = r"delete .*/models/mine/parts/\*\.r00-gpt2\.\*, and `make model RUN=mine` measures that again$"
    with pytest.raises(UserError, match=rf"kernels\.r00-gpt2\..*: it was changed after it was recorded: {advice}"):
        runs_write.finish(models.run_of("mine"))


def test_verdicts_are_those_of_the_samples(data):
    write()
    found = {(one.workload.model.name, one.phase): one for one in comparisons(*models.newest(GPU))}
    gained = found["llama-128", FIRST]
    assert gained.baseline.estimate == pytest.approx(1e4, rel=1e-3)
    assert gained.verdict.speedup.estimate == pytest.approx(1.25, rel=1e-3)
    assert gained.verdict.claimable
    assert found["llama-128", REST].baseline.estimate == pytest.approx(1e3, rel=1e-3)
    assert found["gpt2", DRAFT].verdict.speedup.estimate == pytest.approx(2, rel=1e-2)
    others = {key: one.verdict.decision for key, one in found.items() if one is not gained and DRAFT not in key}
    assert set(others.values()) == {"equivalent"}
    assert len(others) == 3


def test_the_tables_show_each_phase_in_its_unit_with_verdicts(data):
    write()
    parts = model.compared(shown()).parts
    first, rest = parts["first"].frame, parts["rest"].frame
    assert [cell.estimate for cell in first["attend (ms) [95 %]"]] == pytest.approx([10, 8], rel=1e-3)
    assert list(first["decision"]) == ["equivalent", "faster,\nclaimable"]
    assert [cell.estimate for cell in rest["SDPA (tokens/s) [95 %]"]] == pytest.approx([4000] * 2, rel=1e-3)
    assert list(rest["decision"]) == ["equivalent"] * 2
    steps = model.steps(shown()).frame
    assert list(steps["step"]) == [DRAFT] * 2  # the others were not timed
    assert [cell.estimate for cell in steps["attend (ms) [95 %]"]] == pytest.approx([0.5] * 2, rel=1e-2)


def test_it_is_said_of_which_record_the_launch_of_a_graph_counts(data):
    write("before", created="2026-11-20", dispatch={"version": 2, "run": "theirs", "choices": []})
    write("mine", queued=True, plan=PLAN.model_copy(update={"models": [stated.MODELS["llama-64"]]}))
    note = model.gained(shown()).note
    before, mine = note[note.index("`before`") :], note[note.index("`mine`") : note.index("`before`")]
    assert before.endswith("and of a graph the host's launch counts.")
    assert "launch" not in mine
    assert " one before, but in `before`: there the host's launch counts. " in model.steps(shown()).note


def test_what_is_gained_and_what_ran(data):
    write()
    (record,) = models.newest(GPU)
    assert [kernels for _, kernels in kernels_of_prompts(record)] == [(), ("best<64>(args)",)]
    found = {(one.phase, one.workload.model.name): one.verdict.decision for one in comparisons(record)}
    assert found == {
        **{(FIRST, "gpt2"): "equivalent", (FIRST, "llama-128"): "faster"},
        **{(REST, name): "equivalent" for name in ("gpt2", "llama-128")},
        **{(DRAFT, name): "faster" for name in ("gpt2", "llama-128")},
    }
    marks = model.gained(shown()).frame.set_index("setting")["first token"]
    assert [cell.mark for cell in marks] == ["= equivalent", "★ faster, claimable"]


@pytest.mark.parametrize("tokens", ["tokenizer", "bytes"])
def test_weights_and_the_text_of_prompts_are_named(data, tokens):
    text = stated.Text(name="book.txt", sha256="b" * 64, tokens=tokens)
    mine = PLAN.models[1].model_copy(update={"name": "mine", "weights": "a" * 64})
    write("weighted", created="2026-11-23", plan=PLAN.model_copy(update={"models": [mine], "text": text}))
    shows = model.recorded(shown()).markdown
    assert "the weights of a trained model, by a table that was replaced since" in model.gained(shown()).note
    assert all(named in shows for named in ("`mine`", "aaaaaaaaaaaa…", "book.txt", "bbbbbbbbbbbb…"))
    assert ("tokenizer" in shows) == (tokens == "tokenizer")
    assert "random weights" not in shows + model.outputs(shown()).note
    write("random")
    assert "random weights" in model.recorded(shown()).markdown


def test_outputs_are_compared(data):
    write()
    ours = next(one for one in agreements(*models.newest(GPU)) if one.attention == CANDIDATE)
    assert (ours.max_error, ours.agreeing, ours.tokens) == (0.02, 5 * 20 * 40, 5 * 20 * 4 * 11)
    assert ours.mean_error == pytest.approx(0.003)
    table = model.outputs(shown())
    assert list(table.frame["attend:\nas SDPA's"]) == [4000] * 2
    assert list(table.frame["SDPA again:\nas SDPA's"]) == list(table.frame["tokens"]) == [4400] * 2
    assert "against the same weights in float32" in table.note


def test_the_share_of_attention_before_and_after(data):
    write()
    (record,) = models.newest(GPU)
    before_and_after = shares_pct(record, record.workloads[1], FIRST)
    assert before_and_after == pytest.approx({BASELINE: 40.0, CANDIDATE: 32.0})
    figure = model.share(shown())
    bars = [bar.get_width() for bar in figure.figure.axes[0].patches]
    assert bars == pytest.approx([40, 40, 40, 32])  # SDPA's, then ours
    assert "at most 40 % of the time to the first token" in figure.alt
