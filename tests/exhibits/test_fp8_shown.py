"""What is shown of a run with FP8: what it gains over 16 bits, what that costs, and under which ceiling it stands."""

import re

import pytest
from reading import column
from synthetic import CEILINGS, TARGET, Recipe, changed, infer, inferred, manifest, of_kinds

from attnlab.exhibits.catalogue import Show, every
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.explore import recorded
from attnlab.exhibits.kernels import fp8
from attnlab.export import explained
from attnlab.infer.ceilings import Ceilings, InFp8, work_of
from attnlab.measure.fp8.quantize import SCALES
from attnlab.runs.schema import FAILED
from attnlab.study import values
from attnlab.study.implementations import E4M3, control

KINDS = ("normal", "outliers")
US = {"sdpa.auto": 20.0, "kernel.best": 10.0, "kernel.fp8": 8.0, "kernel.fp8_quantizing": 11.0, "peer.cudnn_fp8": None}
US |= {"kernel.fp8_rotated": 8.1, "kernel.fp8_quantizing_rotated": 9.5}


@pytest.fixture(scope="module")
def run():
    recipe = of_kinds({name: dict.fromkeys(KINDS, us) for name, us in US.items()})
    return infer(recipe)


def test_fp8_is_over_the_fastest_in_16_bits(run):
    shown = Show(run)("kernels.fp8").content
    assert isinstance(shown, Table)
    assert column(shown, "fastest in 16 bits") == ["kernel.best"] * 2
    assert [round(ratio.estimate, 2) for ratio in shown.frame["kernel.fp8"]] == [1.25] * 2
    assert [ratio.estimate < 1 for ratio in shown.frame["kernel.fp8_quantizing"]] == [True] * 2
    assert "peer.cudnn_fp8" not in shown.frame
    said = "`kernel.fp8` 1.25×, faster at 2 of 2 shapes; `kernel.fp8_quantizing` 0.909×, faster at 0 of 2 shapes."
    assert said in shown.caption
    pays = Show(run)("kernels.fp8.pays").content
    assert isinstance(pays, Table)
    assert list(pays.frame) == ["shape", "kernel.fp8", "kernel.fp8_quantizing"]
    assert column(pays, "shape") == [TARGET.label]  # once, whatever its kinds of values are


def test_what_is_given_e4m3_has_its_error_beside_that_of_16_bits(run):
    shown = Show(run)("kernels.fp8.errors").content
    assert isinstance(shown, Table)
    assert list(shown.frame) == ["shape", "16 bits", "kernel.fp8", "peer.cudnn_fp8", "kernel.fp8_rotated"]
    assert list(shown.frame["kernel.fp8"]) == list(shown.frame["kernel.fp8_rotated"]) == [2e-4] * 2


def test_every_statement_says_what_fp8_is_given_and_whether_quantising_is_timed(run):
    given = "given e4m3; quantising isn't timed."
    quantizing = "given 16 bits; quantising is timed."
    lines = {line.split("`")[3]: line for line in Show(run)("verdicts.publishable").content.markdown.splitlines()}
    assert lines["kernel.fp8"].endswith(f"`kernel.fp8` is {given}")
    assert lines["kernel.fp8_quantizing"].endswith(f"`kernel.fp8_quantizing` is {quantizing}")
    assert "e4m3" not in lines["kernel.best"]
    for id in ("abstract", "findings", "statement", "values.said"):
        assert f"`kernel.fp8` is {given}" in Show(run)(f"verdicts.{id}").markdown
    note = Show(run)("verdicts.target").content.note
    assert f" `kernel.fp8` and `kernel.fp8_rotated` are {given}" in note
    assert f"`kernel.fp8_quantizing` and `kernel.fp8_quantizing_rotated` are {quantizing}" in note
    statements = recorded.recorded(run, ["sdpa.auto"])["verdicts"]["sdpa.auto"]["statements"]
    assert [f"`{{n1}}` is {words}" in " ".join(statements) for words in (given, quantizing)] == [True] * 2
    assert f" are {given} `kernel.fp8_quantizing` and" in explained.readme(run, "")


def test_what_it_gains_is_a_finding_of_the_run_itself_or_of_another(run):
    counted = "Speedup over the fastest in 16 bits, each kind of values counted as a shape:"
    said = f"**FP8.** {counted} `kernel.fp8` 1.25×, faster at 2 of 2 shapes"
    box = Show(run)("verdicts.findings").content.text
    assert said in box
    assert "(Run `" not in box
    mine = changed(inferred(), name="mine")
    shown = Show(mine, {"eight_bits": lambda: run})
    box = shown("verdicts.findings").content.text
    assert said in box
    assert f"(Run `{run.run.name}` of" in box
    assert (shown("kernels.fp8.costs").run, Show(mine)("kernels.fp8.costs").content) == (run.run.name, None)
    assert "FP8" not in Show(mine)("verdicts.findings").content.text


def test_the_largest_and_the_least_error_are_named(run):
    checks = run.run.checks.copy()
    errors = {
        ("kernel.fp8_quantizing", "outliers"): 3e-3,
        ("kernel.fp8_rotated", "normal"): 1e-4,
        ("kernel.best", "normal"): 1e-5,
    }
    for (name, values_), error in errors.items():
        checks.loc[(checks["implementation"] == name) & (checks["values"] == values_), "drawn_rms_error"] = error
    shown = fp8.accuracy(changed(run, checks=checks))
    sixteen = "The RMS error of `kernel.fp8` is 1.00× (on `outliers` values) to 20.0× (`normal`) that of `kernel.best`."
    assert sixteen in shown.caption
    assert "0.500× (`kernel.fp8_rotated` on `normal` values) to 15.0×" in shown.caption
    assert "(`kernel.fp8_quantizing` on `outliers` ones) that of `kernel.fp8`." in shown.caption


def test_what_the_gate_refused_is_said(run):
    refused = "The gate refused `peer.cudnn_fp8` at 2 shapes (normal and outliers values)."
    assert refused in fp8.accuracy(run).caption
    served = run.run.cases[run.run.cases["status"] != FAILED]
    assert "refused" not in fp8.accuracy(changed(run, cases=served)).caption


def test_each_has_a_row_with_its_error_and_its_throughput_on_each_kind(run):
    shown = Show(run)("kernels.fp8.costs").content
    assert isinstance(shown, Figure)
    errors, throughputs = shown.figure.axes[:2], shown.figure.axes[2:]
    assert [axes.get_title() for axes in errors] == list(KINDS)
    assert [label.get_text() for label in errors[0].get_yticklabels()] == list(US)
    for axes in (*errors, *throughputs):
        timed = [line for line in axes.get_lines() if line.get_marker() != "x"]
        assert [line.get_label() for line in timed] == [name for name, us in US.items() if us]
        assert [line.get_ydata()[0] for line in timed] == [place for place, us in enumerate(US.values()) if us]
    (error,) = (line for line in errors[0].get_lines() if line.get_label() == "kernel.fp8")
    assert list(error.get_xdata()) == [2e-4]


def test_what_the_gate_refused_has_its_error_and_no_throughput(run):
    refused, checks = "peer.cudnn_fp8", run.run.checks.copy()
    checks.loc[checks["implementation"] == refused, "drawn_rms_error"] = 3e-3
    shown = Show(changed(run, checks=checks))("kernels.fp8.costs").content
    errors, throughputs = shown.figure.axes[: len(KINDS)], shown.figure.axes[len(KINDS) :]
    for above, below in zip(errors, throughputs, strict=True):
        (cross,) = (line for line in above.get_lines() if line.get_marker() == "x")
        assert (cross.get_label(), list(cross.get_xdata())) == (refused, [3e-3])
        assert [text.get_text() for text in below.texts] == [FAILED]
    said = re.findall(
        rf"`{refused}` has no throughput on `(\S+)` values \(the gate refused it\); the cross is its error, (\S+) that",
        shown.caption,
    )
    assert said == [(kind, "15.0×") for kind in KINDS]


def test_a_run_without_fp8_shows_nothing_of_it():
    assert [Show(inferred())(id).content for id in ("kernels.fp8", "kernels.fp8.errors", "kernels.fp8.costs")] == [
        None
    ] * 3


@pytest.mark.parametrize("page", ["baseline", "roofline", "kernels", "verdicts"])
def test_every_exhibit_can_be_made_of_a_run_with_fp8(run, page):
    of_page = [id for id in every() if id.startswith(f"{page}.")]
    told = {id: Show(run)(id).markdown for id in of_page}
    # FP8 has no part in what compares errors that are all of 16 bits, nor in the climb.
    apart = (
        "kernels.fp8",
        "kernels.fp8.errors",
        "kernels.fp8.costs",
        "verdicts.accuracy",
        "kernels.climb",
        "kernels.standing",
    )
    named = [id for id in apart if "kernel.fp8" in told.get(id, "")]
    assert named == [id for id in apart[:3] if id in told]


def test_what_each_rounding_costs_is_shown_for_every_kind_of_values(run):
    table = fp8.roundings(run)
    frame = table.frame.set_index("values")
    assert list(frame.index) == list(values.STANDARD)
    assert frame.columns[0] == "bfloat16"
    assert len(frame.columns) == 1 + 2 * len(SCALES)
    assert frame.notna().all(axis=None)
    rotated, plain = (frame.loc["outliers", f"e4m3 per head{word}"] for word in (", rotated", ""))
    assert f"it is {plain:.2g} on `outliers`, and {rotated:.2g} where" in " ".join(str(table.caption).split())


def test_fp8_stands_under_its_own_ceiling():
    rates = CEILINGS | {f"matmul.{E4M3}": (2 * CEILINGS["matmul.float16"][0], "TFLOP/s")}
    narrow = work_of("kernel.fp8", TARGET)
    assert narrow == InFp8(TARGET.flops, TARGET.bytes // 2 + TARGET.query_elements, TARGET.exponentials)
    assert work_of(control("kernel.fp8_quantizing"), TARGET).bytes == TARGET.bytes
    assert work_of("kernel.fp8_quantizing_rotated", TARGET).bytes == TARGET.bytes
    assert work_of("kernel.fp8_rotated", TARGET) == narrow
    assert work_of("kernel.best", TARGET) is TARGET
    ceilings = Ceilings(manifest(Recipe(ceilings=rates)))
    terms = ceilings.terms_us(narrow, "cold")
    assert terms[f"matmul.{E4M3}"] == pytest.approx(ceilings.terms_us(TARGET, "cold")["matmul.float16"] / 2)
    assert ceilings.limit(narrow, "cold") in ("matrix product", "memory", "exponentials")
    alone = {f"wgmma.{E4M3}": (4 * CEILINGS["matmul.float16"][0], "TFLOP/s")}
    both = Ceilings(manifest(Recipe(ceilings=rates | alone)))
    assert both.product(E4M3) == f"wgmma.{E4M3}"
    assert both.terms_us(narrow, "cold")[f"wgmma.{E4M3}"] == pytest.approx(terms[f"matmul.{E4M3}"] / 2)
    without = Ceilings(manifest(Recipe()))
    assert set(without.terms_us(narrow, "cold")) == {"copy", "exponentials"}
    assert without.throughput_mark(narrow, 1e-9) != ""
