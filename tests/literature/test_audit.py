"""The audit against arithmetic done by hand, and what it says of rows and claims that can't be read."""

import csv
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from conftest import told

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.exhibits import audit as audit_shown
from attnlab.exhibits.quantities import Marked
from attnlab.literature import audit
from attnlab.literature.audit import latencies
from attnlab.literature.audit.numbers import Number, as_printed
from attnlab.literature.audit.reference import DOCUMENTS
from attnlab.literature.audit.rules import RULES

# Each stated number is as printed in the document; each recomputed one was worked out by hand, as the comment shows.
BY_HAND = [
    # 4·32·8·512²·64 = 17 179 869 184 FLOP; / 0.3210 ms = 53 519.8; 0.32095 and 0.32105 ms leave 53 511.5 to 53 528.2
    ("000.throughput.seq.512", "53516", 53519.8, "rounding"),
    # 274 877 906 944 / 4.9756 ms = 55 245.18
    ("000.throughput.seq.2048", "55245", 55245.2, "holds"),
    # 4·32·8·256·64 elements · 2 bytes = 33 554 432; / 0.0993 ms = 337.9
    ("000.bandwidth.seq.256", "338", 337.9, "holds"),
    # 33 554 432 / 0.1475 ms = 227.49, prints 227; / 0.14745 = 227.57, prints 228
    ("000.bandwidth.batch.16", "228", 227.5, "rounding"),
    # 0.3210 / 0.1004 = 3.197
    ("000.speedup.batch.8", "3.20", 3.197, "holds"),
    # the same 3.197, for a quarter of the work: 0.799
    ("000.work.batch.8", "3.20", 0.799, "wrong work"),
    # 209e9 · 0.3210e-3 = 67.089e6
    ("000.bytes.512", "25.6e6", 67.09e6, "contradicts itself"),
    # 4 tensors · 32·8·512·64 · 2 bytes = 67 108 864
    ("000.bytes.shape.512", "25.6e6", 67.11e6, "wrong work"),
    # 17 179 869 184 / 67 108 864 = 256 exactly, which is S/2
    ("000.ai.shape.512", "671", 256.0, "wrong work"),
    # 17.2e9 / 25.6e6 = 671.875, prints 672; 17.15e9 / 25.65e6 = 668.6 leaves room for 671
    # and the 25.6e6 bytes are wrong
    ("000.ai.512", "671", 671.9, "refuted premise"),
    # 55.2 / 121 = 45.62 %
    ("000.share.true.2048", "184", 45.6, "contradicts another"),
    ("000.peak.fp16", "30", 121.0, "contradicts another"),
    ("000.ceiling.memory", "338", 300.0, "exceeds the hardware"),
    # 67 108 864 / 300e9 = 0.22370 ms; 0.3210 / 0.22370 = 1.435
    ("000.aggressive.high", "2.0", 1.43, "exceeds the hardware"),
    # (0.3379 - 0.3195) / (0.3379 + 0.3195) = 0.0184 / 0.6574 = 2.799 %
    ("000.intervals.512", "2.8", 2.80, "holds"),
    # 20 + 30 + 10 + 15 + 20 = 95 %
    ("000.gains.high", "1.90", 1.95, "contradicts itself"),
    # 1.1 · 1.15 · 1.05 · 1.05 · 1.1 = 1.5342
    ("000.gains.compound.low", "1.45", 1.534, "contradicts itself"),
    # 0.15 / 256 = 0.00058594, and no source gives the 0.15
    ("000.literature.a100.unit", "0.000586", 0.0005859, "refuted premise"),
    ("000.configurations", "10", 10, "holds"),
    # 0.2237 ms is the floor, and 0.205 the most that prints as 0.20
    ("001.path.floor", "0.20", 0.224, "exceeds the hardware"),
    # 4.976 / 0.060 = 82.93; 0.0605 leaves 82.2
    ("001.range.latency", "82", 82.9, "rounding"),
    # 222 + 304 + 560
    ("001.created.lines", "1086", 1086, "holds"),
    # 2·16·8·512·513·64 = 4 303 355 904 FLOP / 0.326 ms = 13 200.5
    ("002.masked.sdpa.5", "26312.6", 13200.48, "wrong work"),
    # 1.96 · 0.0055 / √500 = 0.01078 / 22.3607 = 0.000482
    ("002.raw.half.kernel", "0.0005", 0.000482, "holds"),
    # 73.2 · 2.0
    ("002.gap.high", "146", 146.4, "refuted premise"),
    ("002.raw.sdpa.sd", "0.008", 0.0187, "contradicts itself"),
    # 17 179 869 184 / 0.3205 ms = 53 603.3; 0.32055 leaves 53 595 at least
    ("003.throughput.batch.32", "52775", 53603.3, "contradicts itself"),
    # 16 / 0.1690 ms = 94 674.6; 0.16895 leaves 94 702.6
    ("003.samples.batch.16", "94697", 94674.6, "rounding"),
    # 0.3205 / (4 · 0.0635) = 1.2618
    ("003.speedup.chunks", "5", 1.26, "wrong work"),
    # 18 rows, and the target stands in four of them
    ("003.configurations.distinct", "18", 15, "contradicts itself"),
    # 0.3205 - 1.96 · 0.0239 / √50 = 0.3205 - 0.006625 = 0.313875
    ("003.interval.512.low", "0.3138", 0.31388, "rounding"),
    # 1 - 0.3205 / 0.3350 = 4.328 %
    ("003.same.difference", "4.3", 4.33, "holds"),
    # 321 / 206 - 1 = 55.83 %
    ("004.more", "62", 55.8, "contradicts itself"),
    # 0.60 · 0.5 h
    ("004.cost.rate", "0.34", 0.30, "contradicts another"),
]
WORDS = [
    # S/2 = 256 FLOP/byte, below 121e12 / 300e9 = 403
    ("000.regime.512", "memory-bound", "contradicts another"),
    # 167 FLOP/byte by its own table, above 30e12 / 300e9 = 100 by its own peaks
    ("000.regime.own.128", "compute-bound", "contradicts itself"),
    # [0.1474, 0.1485] and [0.1464, 0.1475] share 0.1474 to 0.1475; [0.6779, 0.7905] holds all of [0.6840, 0.7880]; and
    # ten intervals make 45 pairs
    ("000.intervals.all", "2 of 45 overlap", "contradicts itself"),
    ("000.intervals.five", "apart", "holds"),
    # 0.3210 / 0.1464 = 2.19 and 0.6917 / 0.3210 = 2.15 for twice the work
    ("000.scaling.heads", "super-linear", "contradicts itself"),
    # 4.295 GFLOP / 0.1393 ms = 30.8 TFLOP/s, and 17.18 / 0.3205 = 53.6
    ("003.seq.drop", "does not drop", "contradicts itself"),
    # per head 0.1987/4 = 0.0497, 0.3615/8 = 0.0452, 0.5489/12 = 0.0457, 0.8013/16 = 0.0501
    ("003.heads.best", "B=32 H=8 S=512", "contradicts itself"),
    ("003.cv.all", "2 of 18 given", "unsupported"),
    # 0.3195 / 0.2237 = 1.428, more than 1.10
    ("004.optimal", "up to 1.43×", "unsupported"),
    ("004.candidate", "one sample", "unsupported"),
    # 0.3350 is above 0.3272
    ("003.same.within", "[0.3138, 0.3272]", "contradicts itself"),
]


@pytest.fixture(scope="module")
def found() -> pd.DataFrame:
    return audit.audit().set_index("id", drop=False)


@pytest.mark.parametrize(("claim", "stated", "recomputed", "finding"), BY_HAND)
def test_numbers_worked_out_by_hand(found, claim, stated, recomputed, finding):
    row = found.loc[claim]
    assert row["stated"] == stated
    assert float(row["recomputed"]) == pytest.approx(recomputed, rel=1e-9)
    assert row["finding"] == finding


@pytest.mark.parametrize(("claim", "recomputed", "finding"), WORDS)
def test_statements_worked_out_by_hand(found, claim, recomputed, finding):
    assert (found.loc[claim, "recomputed"], found.loc[claim, "finding"]) == (recomputed, finding)


def test_what_was_worked_out_by_hand_covers_everything(found):
    checked = found.loc[[case[0] for case in [*BY_HAND, *WORDS]]]
    assert set(checked["finding"]) == set(audit.FINDINGS)
    assert set(checked["source"]) == set(DOCUMENTS)
    assert len(set(checked["rule"])) > len(RULES) / 2


def test_there_are_enough_claims_of_every_document(found):
    assert len(found) >= 120
    assert not found.duplicated("id").any()
    assert not found.duplicated(["source", "claim"]).any()
    assert set(found["source"]) == set(DOCUMENTS)
    assert found[["source", "place", "claim", "stated", "recomputed", "finding", "why"]].map(bool).all(axis=None)
    assert set(found["rule"]) == set(RULES)  # no rule without a claim


def test_what_is_stated_stands_in_the_csv(found):
    for source, rows in found.groupby("source"):
        with open(paths.REFERENCE / f"{source}.csv", newline="") as file:
            printed = {
                (row["place"], text) for row in csv.DictReader(file) for text in (row["value"], row["plus_minus"])
            }
        assert set(zip(rows["place"], rows["stated"], strict=True)) <= printed


def test_every_advice_rests_on_claims(found):
    advice = audit.advice(found).set_index("advice")
    assert set(advice["verdict"]) == {"stands", "falls", "unsupported"}
    assert advice.loc["leave the backend to PyTorch", "verdict"] == "stands"
    assert advice.loc["cut sequences to 128 for 5 times", "verdict"] == "falls"
    assert advice.loc["cut sequences to 128 for 5 times", "against"] == ["003.speedup.work", "003.speedup.chunks"]
    assert advice.loc["vectorise loads for 1.5 to 2 times", "verdict"] == "unsupported"


def test_a_printed_number_is_a_range():
    # half a unit of the last digit: 0.00005 ms, 0.05e9 FLOP, half a percent; a count is exact
    assert Number.printed("0.3210", "ms").low == pytest.approx(0.32095e-3, rel=1e-12)
    assert Number.printed("17.2e9", "FLOP").high == pytest.approx(17.25e9, rel=1e-12)
    assert Number.printed("70", "%").high == pytest.approx(0.705, rel=1e-12)
    assert Number.printed("100", "count") == Number.exact(100)


def test_ranges_go_through_arithmetic():
    one, other = Number(2, 1, 3), Number(4, 3, 5)
    assert one + other == Number(6, 4, 8)
    assert one - other == Number(-2, -4, 0)
    assert one * other == Number(8, 3, 15)
    assert one / other == Number(0.5, 0.2, 1)
    assert (one - other) * one == Number(-4, -12, 0)
    with pytest.raises(ZeroDivisionError):
        one / Number(0, -1, 1)


def test_edges_belong_to_a_range():
    # 58 661 and 58 662 both print 58 661.5
    assert Number.printed("58661", "GFLOP/s").meets(Number.printed("58662", "GFLOP/s"))
    assert not Number.printed("58661", "GFLOP/s").meets(Number.printed("58663", "GFLOP/s"))
    assert Number.printed("0.1", "1").contains(0.15)


def test_a_recomputed_number_has_a_decimal_more():
    assert as_printed(Number.exact(53519.8379e9), "53516", "GFLOP/s") == "53519.8"
    assert as_printed(Number.exact(67.108864e6), "25.6e6", "byte") == "67.11e6"
    assert as_printed(Number.exact(320.5), "5.34", "h") == "0.0890"
    assert as_printed(Number.exact(15), "18", "count") == "15"


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(paths.REFERENCE, tmp_path / "reference"))


def spoil(path: Path, line: int, old: str, new: str) -> None:
    """Replace something in one line of a file, counted from 1."""
    lines = path.read_text().splitlines(keepends=True)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    path.write_text("".join(lines))


def line_of(path: Path, start: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), 1) if line.startswith(start))


BAD_ROWS = [
    ("0.3210", "0.32l0", r"'0\.32l0' is not a number: write it as printed"),
    ("0.3210", "nan", r"'nan' is not a finite number"),
    ("0.3210", "", r"the field 'value' is missing"),
    (",000,", ",005,", r"unknown document '005'; known are 000, 001, 002, 003, 004"),
    (",000,", ",001,", r"a row of document 001 is in the file of 000"),
    (",ms", ",msec", r"unknown unit 'msec'; known are 1, %"),
    ("seq.512.latency", "seq.256.latency", r"an earlier row has the id 'seq\.256\.latency'"),
    (",32,", ",some,", r"batch: input should be a valid integer.*'some'"),
    (",float16,", ",float15,", r"dtype: .*'float15'"),
    ("0.3210,,ms", "0.3210,ms", r"it should have 14 cells"),
]


BAD_CLAIMS = [
    ("throughput,", "throughputs,", r"unknown rule 'throughputs'; known are .*; did you mean 'throughput'\?"),
    ("seq.128.latency", "seq.129.latency", r"there is no row 'seq\.129\.latency' in 000; did you mean"),
    ("seq.128.latency", "009:seq.128.latency", r"unknown document '009'"),
    ("seq.128.latency", "seq.128.latency; seq.256.latency", r"the rule 'throughput' takes 1 inputs, not 2"),
    ("seq.128.latency", "seq.scaling", r"the row 'seq\.scaling' has no shape|is a word"),
    ("seq.128.latency", "nothing.*", r"no row of 000 fits 'nothing\.\*'"),
    ("seq.128.latency", "±seq.128.latency", r"the row 'seq\.128\.latency' has nothing after ±"),
    ("seq.128.latency", "=many", r"'many' is not a number: write a constant as in '=2'"),
    ("seq.128.latency", "=0", r"'0' is a constant, where the rule needs a row"),
    ("seq.128.throughput", "seq.scaling", r"the stated 'Non-linear' is a word, where the rule needs a number"),
]


@pytest.mark.parametrize(
    ("file", "start", "old", "new", "said"),
    [
        *(("000.csv", "seq.512.latency,", *bad) for bad in BAD_ROWS),
        *(("claims.csv", "000.throughput.seq.128,", *bad) for bad in BAD_CLAIMS),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_its_file(folder, file, start, old, new, said):
    path = folder / file
    line = line_of(path, start)
    spoil(path, line, old, new)
    assert re.search(rf"{file}, line {line}: .*({said})", told(lambda: audit.audit(folder)))


def rest(folder: Path, claim: str, premises: str) -> None:
    """Let a claim rest on others."""
    path = folder / "claims.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["id"] == claim:
            row["rests_on"] = premises
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("claim", "premises", "finding", "because"),
    [
        (
            *("000.throughput.seq.128", "000.bandwidth.seq.128; 000.peak.fp16", "refuted premise"),
            "rests on 000.peak.fp16 (contradicts another)",
        ),
        ("000.throughput.seq.128", "000.bandwidth.seq.128", "rounding", ""),
        ("000.peak.fp16", "002.peak", "contradicts another", ""),  # it is wrong itself
    ],
)
def test_what_follows_from_a_refuted_claim_does_not_hold(folder, claim, premises, finding, because):
    rest(folder, claim, premises)
    row = audit.audit(folder).set_index("id").loc[claim]
    assert row["finding"] == finding
    assert row["why"].endswith(because)


def test_a_premise_may_rest_on_another(found):
    # the A100's tensor rate over the L4's FP32 rate; and through it 10.4 / 2.13
    assert "rests on 000.peak.fp16 (contradicts another)" in found.loc["000.literature.peaks", "why"]
    assert "rests on 000.literature.peaks (refuted premise)" in found.loc["000.literature.efficiency", "why"]


@pytest.mark.parametrize(
    ("premises", "said"),
    [
        ("000.peak.fp17", r"there is no claim '000\.peak\.fp17'; did you mean"),
        ("000.throughput.seq.128", r"rests on itself"),
        ("000.bandwidth.seq.128", r"rests on itself"),
    ],
)
def test_a_premise_that_is_none_names_file_and_line(folder, premises, said):
    rest(folder, "000.bandwidth.seq.128", "000.throughput.seq.128")
    rest(folder, "000.throughput.seq.128", premises)
    assert re.search(rf"claims\.csv, line [23]: .*{said}", told(lambda: audit.audit(folder)))


def test_claims_and_advice_have_names_of_their_own(folder):
    path = folder / "claims.csv"
    spoil(path, 3, "000.bandwidth.seq.128", "000.throughput.seq.128")
    with pytest.raises(UserError, match=r"claims\.csv, line 3: an earlier claim has the id"):
        audit.audit(folder)
    spoil(folder / "advice.csv", 2, "000.regime.512", "000.regime.513")
    with pytest.raises(UserError, match=r"advice\.csv, line 2: there is no claim '000\.regime\.513'; did you mean"):
        audit.advice(audit.audit(), folder)


def test_a_file_that_is_not_there_or_no_text(folder):
    (folder / "003.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"003\.csv can't be read: .*utf-8"):
        audit.audit(folder)
    (folder / "003.csv").unlink()
    with pytest.raises(UserError, match=r"003\.csv can't be read: .*No such file"):
        audit.audit(folder)
    shutil.copy(paths.REFERENCE / "calibration.csv", folder / "003.csv")
    with pytest.raises(UserError, match=r"003\.csv, line 2: "):
        audit.audit(folder)


@pytest.mark.parametrize(
    ("file", "row", "old", "new", "findings"),
    [
        # 5.34 h was 0.089; then the day's cost no longer follows from the hours: 0.089 · 0.085 = 0.0076, not 0.45
        (
            *("003.csv", "roi.before.hours,", "5.34", "0.089"),
            {"003.roi.hours.before": "holds", "003.roi.day.before": "contradicts itself"},
        ),
        ("004.csv", "compare.candidate,", "0.3195", "0.3194", {"004.candidate": "holds"}),
        # the ridge is then 121e12 / 150e9 = 807, and S=1024 with 512 FLOP/byte is bound by memory
        (
            *("datasheets.csv", "NVIDIA L4,", "300", "150"),
            {"004.regime.1024": "holds", "000.peak.memory": "contradicts another"},
        ),
        # a premise that stands again lifts what rests on it
        (
            *("datasheets.csv", "NVIDIA L4,", "121", "30"),
            dict.fromkeys(["000.peak.fp16", "000.share.512", "000.literature.peaks"], "holds"),
        ),
    ],
)
def test_what_is_printed_decides(folder, file, row, old, new, findings):
    spoil(folder / file, line_of(folder / file, row), old, new)
    found = audit.audit(folder).set_index("id")["finding"]
    assert found[list(findings)].to_dict() == findings


def test_evidence_that_is_given_supports(folder, found):
    with (folder / "002.csv").open("a") as file:
        file.write("counter,002,Conclusions,kernel,counter of a profile,,,,,,,12,,%\n")
    assert audit.audit(folder).set_index("id").loc["002.next.gain", "finding"] == "holds"
    assert found.loc["002.next.gain", "finding"] == "unsupported"


# The latencies that the documents print


def test_points_are_not_repeated():
    points = latencies.points()
    assert len(set(points)) == len(points)
    # 000 prints 0.321 and 0.32 besides 0.3210
    mine = [point for point in points if point.document == "000" and point.shape == latencies.TARGET]
    assert [point.printed for point in mine] == ["0.3210"]


def test_one_configuration_in_several_documents():
    apart = {(one.points[0].subject, one.points[0].shape): one.apart_pct for one in latencies.repeated()}
    assert apart["sdpa", latencies.TARGET] == pytest.approx(100 * (0.3615 / 0.3195 - 1))
    assert max(apart.values()) == pytest.approx(100 * (0.1393 / 0.0993 - 1))


def test_the_roofline_with_the_datasheets_ceilings():
    found = latencies.corrected()
    # 121 TFLOP/s over 300 GB/s; the documents state 30 TFLOP/s
    assert (found.roof.ridge, found.theirs.ridge) == (pytest.approx(403.33, abs=0.01), 100)
    # 67.1 MB at 300 GB/s, 17.18 GFLOP at 121 TFLOP/s
    assert found.memory_ms == pytest.approx(0.2237, abs=1e-4)
    assert found.compute_ms == pytest.approx(0.1420, abs=1e-4)
    assert found.cached_ms == found.compute_ms
    assert (found.best.printed, found.best.document) == ("0.3195", "004")
    assert [(point.document, point.shape.seq_len) for point in found.over] == [("000", 256), ("004", 256)]


# The page of the audit


def test_the_counts_add_up(found):
    counts, telling, *documents = audit_shown.documents().parts.values()
    frame = counts.frame.set_index("finding")
    assert tuple(frame.index) == audit.FINDINGS
    assert frame["all"].sum() == len(found)
    assert (frame[list(DOCUMENTS)].sum(axis=1) == frame["all"]).all()
    assert len(telling.frame) == found["telling"].notna().sum()
    assert [len(part.frame) for part in documents] == [int((found["source"] == name).sum()) for name in DOCUMENTS]


def test_the_same_configuration_in_several_documents():
    frame = audit_shown.across().frame
    row = frame[(frame["S"] == 512) & (frame["B"] == 32) & (frame["H"] == 8) & (frame["what"] == "sdpa")].iloc[0]
    assert row["000 (ms)"] == "0.3210"
    assert set(row["003 (ms)"].split("\n")) == {"0.3205", "0.3350", "0.3615"}
    assert set(row["004 (ms)"].split("\n")) == {"0.3195", "0.325", "0.327"}
    assert row["apart"] == pytest.approx(100 * (0.3615 / 0.3195 - 1))


def test_the_roofline_with_work_and_peaks_put_right():
    said, points = audit_shown.roofline().parts.values()
    frame = points.frame
    sizes = frame[["B", "H", "S"]].apply(tuple, axis=1)
    at = frame[(frame["document"] == "000") & (sizes == (32, 8, 512))].iloc[0]
    # 17.18 GFLOP / 0.3210 ms, 67.1 MB / 0.3210 ms; the roof is 256 · 0.3 = 76.8 TFLOP/s
    assert at["throughput_tflops"] == pytest.approx(53.52, abs=0.01)
    assert at["bandwidth_gbs"] == pytest.approx(209.06, abs=0.01)
    assert (at["intensity"], at["floor"]) == (256, "memory")
    assert at["of the roof (%)"] == pytest.approx(100 * 53.52 / 76.8, abs=0.01)
    marked = frame["of the roof (%)"].map(lambda cell: isinstance(cell, Marked))
    assert list(frame["document"][marked]) == ["000", "004"]
    assert set(sizes[marked]) == {(32, 8, 256)}
    assert "000 at S=256 (338 GB/s) and 004 at S=256 (323 GB/s) whose tensors fit the L2." in said.markdown
