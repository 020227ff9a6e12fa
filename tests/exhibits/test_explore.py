"""The explorer's data: the words of 06_verdicts, samples as near to the recorded as stated, a page that fits."""

import base64
import gzip
import json
import re
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.colors import to_rgb
from reading import exhibit
from synthetic import TARGET, Recipe, contradicted, controlled, inferred

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.explore import data, explorer, others, recorded
from attnlab.exhibits.explore.samples import STEPS, THROTTLED, pack, passed
from attnlab.exhibits.quantities import QUANTITIES
from attnlab.exhibits.style import LOOKS
from attnlab.infer import cases
from attnlab.infer.results import Results
from attnlab.runs import read

LIMIT_BYTES = 5_000_000
MANY = 500_000
GONE = ("failed", "before timing, call: error against float64")
ODD = ["peer.a_b__c", "peer.UPPER_Case_2", "peer.naïve漢字", f"peer.{'x' * 195}"]


def unpacked(block: bytes) -> tuple[dict, bytes]:
    """What is said, and the samples."""
    raw = gzip.decompress(block)
    end = 4 + int.from_bytes(raw[:4], "little")
    return json.loads(raw[4:end]), raw[end:]


def block_of(of: Results) -> bytes:
    return data.payload(of, [])


@cache
def ordinary() -> bytes:
    return block_of(inferred())


def said(of: Results) -> dict:
    """What is said of a run alone."""
    (run,) = unpacked(block_of(of))[0]["runs"]
    return run


@cache
def told() -> dict:
    return said(controlled())


def odd() -> Recipe:
    """Names that mean something to HTML, LaTeX, Markdown or a shell, and one of 200 characters."""
    latencies = {(name, TARGET): 40.0 + place for place, name in enumerate(ODD)}
    return Recipe(study=synthetic.AT_TARGET | {"implementations": ["sdpa.auto", *ODD]}, latencies_us=latencies)


# -------------------------------------------------------------------------------------------------------------- words


def test_the_verdicts_are_those_of_06_verdicts_in_the_same_words():
    run = told()
    frame = exhibit(controlled, "verdicts.every").frame
    columns, of_case = run["verdicts"]["sdpa.auto"], run["cases"]
    assert columns["titles"] == [QUANTITIES[name].head for name in frame.columns[-6:]]
    shown = set()
    for case, cells in zip(columns["case"], columns["cells"], strict=True):
        shape, timing = (run[f"{axis}s"][of_case[axis][case]] for axis in ("shape", "timing"))
        sizes = ", ".join(str(shape[axis]) for axis in ("batch", "heads", "seq_len", "head_dim"))
        name = run["implementations"][of_case["implementation"][case]]
        mask = "causal" if shape["causal"] else "full"
        shown.add((name, sizes, mask, f"{timing['clock']}\n{timing['cache']}", *cells))
    printed = [[recorded._shown(name, cell) for cell in frame[name]] for name in frame.columns[-6:]]
    assert shown == set(zip(*(frame[name] for name in frame.columns[:-6]), *printed, strict=True))
    assert len(shown) == len(frame) > 50


def test_the_statements_and_the_power_are_those_of_06_verdicts():
    columns = told()["verdicts"]["sdpa.auto"]
    at_target = places_at_target(columns)
    lines = exhibit(controlled, "verdicts.publishable").markdown.splitlines()
    assert [f"- {filled(columns, place)}" for place in at_target] == lines
    assert len(columns["statements"]) < len(columns["case"]) / 3
    assert any(columns["power"][place] in exhibit(controlled, "verdicts.statement").markdown for place in at_target)


def filled(columns: dict, row: int) -> str:
    """The statement of a verdict at the target, as the page fills it in; there the test in Chromium reads it."""
    cases, case = told()["cases"], columns["case"][row]
    same = [n for n in range(len(cases["shape"])) if cases["shape"][n] == told()["target"]]
    at = {(cases["timing"][n], told()["implementations"][cases["implementation"][n]]): n for n in same}
    timing, names = cases["timing"][case], ["sdpa.auto", told()["implementations"][cases["implementation"][case]]]
    texts = {
        "n": names.__getitem__,
        "m": lambda which: cases["interval"][at[timing, names[which]]],
        "c": columns["cells"][row].__getitem__,
        "t": lambda other: columns["cells"][columns["case"].index(at[other, names[1]])][0],
    }
    template = columns["statements"][columns["statement"][row]]
    return re.sub(r"\{([nmct])(\d)\}", lambda mark: texts[mark[1]](int(mark[2])), template)


def places_at_target(columns: dict) -> list[int]:
    """Which verdicts are at the target under the first timing."""
    of_case = told()["cases"]
    cases = enumerate(columns["case"])
    return [n for n, case in cases if (of_case["shape"][case], of_case["timing"][case]) == (told()["target"], 0)]


def test_other_baselines_are_judged_as_a_family_with_the_same_control():
    run, of = told(), controlled()
    assert list(run["verdicts"]) == ["sdpa.auto", "fastest peer", "sdpa.flash"]
    columns = run["verdicts"]["sdpa.flash"]
    pairs = [("sdpa.flash", name) for name in of.study.implementations if name != "sdpa.flash"]
    expected = [recorded.judged(of, pair, TARGET, of.headline, verdict) for pair, verdict in zip(
        pairs, of.compare_pairs(pairs, TARGET), strict=True
    )]  # fmt: skip
    found = [columns["cells"][place] for place in places_at_target(columns)]
    assert found == [[recorded._shown(*cell) for cell in cells.items()] for cells in expected]


def test_a_case_without_a_latency_says_why():
    run = told()
    reasons = {(run["shapes"][shape]["name"], run["implementations"][name]): why for shape, name, why in run["absent"]}
    assert reasons[str(synthetic.SHORT), "sdpa.cudnn"] == "skipped, cuDNN takes no sequence this short"
    assert len(reasons) == len(synthetic.FATES)


def test_the_sign_that_hangs_on_the_clock_is_listed():
    (target,) = said(contradicted())["flips"]["sdpa.auto"]
    assert (target["shape"], target["candidate"], target["by"]) == (str(TARGET), "sdpa.flash", ["clock"])
    assert target["words"].startswith("faster by `device` warm (1.2500 [")


def test_the_sign_that_hangs_on_the_values_is_listed_for_each_baseline():
    flips = said(synthetic.of_values("sdpa.flash", "sdpa.cudnn"))["flips"]
    (flip,) = flips["sdpa.auto"]
    assert (flip["shape"], flip["candidate"]) == (str(TARGET.resized(values="rising 24")), "sdpa.flash")
    assert flip["by"] == ["values"]
    assert re.fullmatch(
        r"device clock, warm cache: faster with normal and sd 4 \(1\.6\d* \[.*\] at best\), "
        r"slower with rising 24 \(0\.8\d* \[.*\]\)",
        flip["words"],
    )
    assert {flip["candidate"] for flip in flips["sdpa.flash"]} == {"sdpa.auto", "sdpa.cudnn"}


# ------------------------------------------------------------------------------------------------------------ samples


def test_samples_differ_from_the_recorded_ones_by_no_more_than_stated():
    of = controlled()
    packed = pack(passed(of), None)
    assert 0 < packed.error_pct < 0.02
    names, first = [*of.study.implementations, "control.sdpa.auto"], 0
    for row, sizes in enumerate(packed.cases["sizes"]):
        place = {axis: packed.cases[axis][row] for axis in ("timing", "shape", "implementation")}
        there = of.samples(names[place["implementation"]], of.study.shapes[place["shape"]], of.timings[place["timing"]])
        assert sizes == [len(replicate) for replicate in there]
        codes = packed.codes[first : first + sum(sizes)]
        decoded = packed.cases["low_us"][row] * np.exp(codes / STEPS * packed.cases["span"][row])
        np.testing.assert_allclose(decoded, np.concatenate(there), rtol=packed.error_pct / 100 * (1 + 1e-9))
        first += sum(sizes)
    assert first == packed.codes.size == packed.clocks.size == len(of.passed)


def test_clocks_and_throttling_are_those_of_the_samples():
    packed = pack(passed(inferred()), None)
    expected = 1980 - np.arange(synthetic.ROUNDS) + THROTTLED * (np.arange(synthetic.ROUNDS) == 3)
    assert (packed.clocks.reshape(-1, synthetic.ROUNDS) == expected).all()
    assert not pack(passed(synthetic.lonely()), None).clocks.any()  # a CPU's clock is not read


@pytest.mark.parametrize("most", [1, 2, 12])
def test_of_each_replicate_at_most_so_many_are_kept_evenly(most):
    rows, packed = passed(inferred()), pack(passed(inferred()), most)
    whole = pack(rows, None)
    assert set(np.concatenate(packed.cases["sizes"])) == {most}
    assert packed.cases["seconds"] == whole.cases["seconds"]
    kept = packed.clocks[:most] % THROTTLED  # a clock for each round, 1 MHz less than in the one before
    assert kept[0] == 1980
    assert np.ptp(np.diff(kept.astype(int), append=1980 - synthetic.ROUNDS)) <= 1


def test_the_page_of_half_a_million_samples_fits():
    of = inferred()
    times = -(-MANY // len(of.run.samples))
    noise = np.random.default_rng(0)
    parts = [
        of.run.samples.assign(
            round=of.run.samples["round"] + number * synthetic.ROUNDS,
            latency_us=of.run.samples["latency_us"] * np.exp(0.02 * noise.standard_normal(len(of.run.samples))),
        )
        for number in range(times)
    ]
    many = synthetic.changed(of, samples=pd.concat(parts, ignore_index=True))
    packed = pack(passed(many), None)
    assert packed.codes.size == len(many.passed) >= 0.9 * MANY
    said = data._said(others.told(of, recorded.baselines(of)), [])
    block = data._block(said, [packed], [None])
    assert len(block) <= data.MOST_BYTES
    assert len(explorer.html("many", block).encode()) < LIMIT_BYTES


def test_more_samples_than_fit_are_thinned(monkeypatch):
    of = inferred()
    said = data._said(others.told(of, recorded.baselines(of)), [])
    monkeypatch.setattr(data, "MOST_BYTES", len(data._block(said, [pack(passed(of), 12)], [12])))
    (samples,) = unpacked(block_of(of))[0]["samples"]
    assert samples["most"] == 12
    assert set(np.concatenate(samples["cases"]["sizes"])) == {12}


def test_samples_of_which_none_is_left_out_are_said_to_be_whole(monkeypatch):
    monkeypatch.setattr(data, "FEWER", ((synthetic.ROUNDS, 1),))
    (samples,) = unpacked(block_of(inferred()))[0]["samples"]
    assert (samples["most"], samples["count"]) == (None, len(inferred().passed))


# ------------------------------------------------------------------------------------------------------- two runs


@pytest.fixture
def again() -> tuple[Results, Results]:
    """A run, and the same with one implementation 3 % slower and another kernel source beside it."""
    study = {"implementations": ["sdpa.auto", "sdpa.flash"], "timings": synthetic.STUDY["timings"][:1]}
    here = synthetic.infer(Recipe(study=study, fates={}))
    samples = here.run.samples
    slower = samples["latency_us"].where(samples["implementation"] != "sdpa.flash", 1.03 * samples["latency_us"])
    run = replace(here.run, name="before", samples=samples.assign(latency_us=slower))
    return here, Results(run, cases.infer(run))


def test_a_run_beside_another_says_what_changed_as_benchstat_does(again):
    here, there = again
    block, _ = unpacked(data.payload(here, [others.told(there, [there.study.baseline])]))
    assert [run["name"] for run in block["runs"]] == ["synthetic", "before"]
    (pair,) = block["pairs"]
    deltas = {name: rest for _, shape, name, *rest in pair["deltas"] if shape == str(TARGET)}
    change, back, p, other = deltas["sdpa.flash"]
    assert (p, other) == ("p<0.0001", False)
    assert change.startswith("−2.9 %")
    assert back.startswith("+3.0 %")
    assert [re.fullmatch(r"[+−]0\.\d+ % \[.*\] ~", one) is not None for one in deltas["sdpa.auto"][:2]] == [True, True]


@pytest.mark.usefixtures("data")
def test_one_of_another_device_and_the_runs_that_the_pages_show_are_beside_a_run_before_others(monkeypatch):
    one = synthetic.LONELY
    grid = replace(one, study=one.study | {"sweeps": {"grid seq_len": [synthetic.AXES | {"seq_len": [64, 128]}]}})
    for name, recipe in {
        "grid": grid,
        "older": one,
        "elsewhere": replace(one, device="NVIDIA L4"),
        "newer": one,
    }.items():
        synthetic.write(name, recipe)
    synthetic.write("mine", one)
    mine = read.read_manifest("mine")
    assert [each.of.run.name for each in others.others(mine)] == ["elsewhere", "grid", "newer", "older"]
    monkeypatch.setattr(others, "MOST", 2)
    assert [each.of.run.name for each in others.others(mine)] == ["elsewhere", "grid", "newer"]


def test_where_room_lacks_the_last_of_the_other_runs_are_left_out_and_named(again, monkeypatch):
    here, there = again
    beside = [others.told(there, ["sdpa.auto"])] * 3
    for number, one in enumerate(beside):
        beside[number] = one._replace(said=one.said | {"label": f"run {number}"})
    monkeypatch.setattr(data, "FEWER", ((1, 1),))
    monkeypatch.setattr(data, "MOST_BYTES", len(data.payload(here, beside[:1])) + 100)
    told, _ = unpacked(data.payload(here, beside))
    assert [run["label"] for run in told["runs"][1:]] == ["run 0"]
    assert [run["label"] for run in told["left_out"]] == ["run 1", "run 2"]


def test_a_run_says_when_it_was_and_what_has_changed_since(monkeypatch):
    assert (told()["label"], told()["since"]) == (f"synthetic, {told()['created']}", "")
    some = frozenset(inferred().study.shapes[1:2])
    monkeypatch.setattr(recorded.rungs, "stale", lambda run: {"kernel.tiled": None, "kernel.best": some})
    run = recorded.recorded(inferred(), [])
    assert run["changed"] == {"kernel.tiled": None, "kernel.best": [1]}
    assert run["since"] == " · `kernel.tiled` and `kernel.best` (at 1 shape) changed since"


# ---------------------------------------------------------------------------------------------------------- bad input


BAD = {
    "names": odd(),
    "without a baseline": Recipe(fates={("sdpa.auto", shape): GONE for shape in inferred().study.shapes}),
    "failures only": Recipe(
        fates={(name, shape): GONE for name in synthetic.STUDY["implementations"] for shape in inferred().study.shapes}
    ),
    "nothing measured yet": Recipe(shapes=0),
    "one implementation": synthetic.LONELY,
}


@pytest.fixture
def paced(monkeypatch):
    monkeypatch.setattr(synthetic, "PACE", synthetic.PACE | dict.fromkeys(ODD, 1.1))


@pytest.mark.parametrize("case", BAD)
def test_a_run_that_lacks_much_has_a_page(case, paced):
    of = synthetic.infer(BAD[case])
    run = said(of)
    assert run["timings"]
    assert len(run["cases"].get("timing", [])) == len(of.table)
    there = of.table.drop_duplicates(["implementation", *cases.AXES])
    assert len(run["absent"]) == len(of.study.shapes) * len(of.study.implementations) - len(there)


def test_the_fewest_samples_have_a_page():
    of = synthetic.infer(Recipe(study=synthetic.AT_TARGET | {"replicates": 1}))
    run = replace(of.run, samples=of.run.samples[of.run.samples["round"] < 2])
    (told,) = unpacked(block_of(Results(run, cases.infer(run))))[0]["runs"]
    assert set(told["cases"]["samples"]) == {2}


# ------------------------------------------------------------------------------------------------------- the page


def test_the_page_is_one_file_that_asks_for_nothing_and_needs_no_anywidget(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    text = explorer.write(inferred(), [], tmp_path).read_text(encoding="utf-8")
    assert not re.search(r"(?:src|href)=", text.split("<script")[0])
    assert "default-src 'none'" in text
    assert "@import" not in text
    payload = re.search(r'<script id="payload"[^>]*>([^<]*)</script>', text)[1]
    assert base64.b64decode(payload) == ordinary()
    assert text.count("</script>") == 2


# -------------------------------------------------------------------------------------------------- in a notebook


def test_headless_the_exhibit_is_a_link(monkeypatch):
    for name in explorer.WATCHED:
        monkeypatch.delenv(name, raising=False)
    bundle, _ = Show(inferred())("explore.explorer")._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/latex", "text/plain"}
    assert 'href="explore.html"' in bundle["text/html"]
    monkeypatch.setenv(explorer.WATCHED[0], "10_explore.ipynb")
    monkeypatch.setattr(explorer, "find_spec", lambda name: None)  # no anywidget
    assert Show(inferred())("explore.explorer")._repr_mimebundle_()[0] == bundle


def test_in_jupyterlab_it_is_a_widget_with_the_same_data(monkeypatch):
    pytest.importorskip("anywidget", reason="the extra `lab` is not installed")
    monkeypatch.setattr(explorer, "others", lambda mine: [])
    monkeypatch.setenv(explorer.WATCHED[0], "10_explore.ipynb")
    bundle, _ = Show(inferred())("explore.explorer")._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    widget = explorer.widget(inferred())
    assert widget.payload == ordinary()
    assert widget.state == {}
    assert {"payload", "state"} <= set(widget.keys)


# ---------------------------------------------------------------------------------------------------------- colours


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours (WCAG 2.2, definition of contrast ratio)."""
    linear = [np.array(to_rgb(colour)) for colour in (one, other)]
    linear = [np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) for parts in linear]
    low, high = sorted(float(parts @ (0.2126, 0.7152, 0.0722)) for parts in linear)
    return (high + 0.05) / (low + 0.05)


def test_colours_are_readable_on_both_grounds():
    colours = data.colours(LOOKS)
    for name, (colour, _) in LOOKS.items():
        assert colours[name]["light"] == colour.lower()
        assert contrast(colours[name]["dark"], data.DARK_GROUND) >= 3  # lines (WCAG 2.2, 1.4.11)
    for found in data.signs().values():
        assert all(contrast(*found[ground]) >= 4.5 for ground in ("light", "dark"))  # text (WCAG 2.2, 1.4.3)
