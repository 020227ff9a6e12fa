"""What others published: how it is read, brought to one count of work, and set beside a run."""

import csv
import math
import re
from pathlib import Path

import pytest
import synthetic
from conftest import told
from reading import html, plain
from synthetic import Recipe, changed

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing
from attnlab.exhibits.quantities import Marked
from attnlab.exhibits.roofline import literature
from attnlab.infer.compare.published import Cases
from attnlab.infer.results import Results
from attnlab.literature import bibliography, datasheets, throughputs
from attnlab.literature.throughputs import Published
from attnlab.paper import numbering

STATED = {
    "source": "shah2024",
    "place": "table 9",
    "device": "NVIDIA H100 SXM",
    "implementation": "cuDNN",
    "batch": "2",
    "heads": "4",
    "seq_len": "128",
    "head_dim": "64",
    "causal": "false",
    "dtype": "float16",
    "direction": "forward",
    "quantity": "throughput",
    "value": "494.5",
    "unit": "TFLOP/s",
    "convention": "halved",
    "read_from": "table",
}


def number(**changes: object) -> Published:
    stated = {name: str(value) for name, value in (STATED | changes).items() if value is not None}
    return Published.model_validate(stated)


def written(folder: Path, *rows: dict[str, str], name: str = "literature.csv") -> Path:
    """A file with these rows."""
    path = folder / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(column for row in rows for column in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def spoilt(folder: Path, line: int = 3, **changes: str) -> Path:
    """The datasheets with other cells in one line; columns that are ... are left out everywhere."""
    with datasheets.PATH.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[line - 2] |= changes
    kept = [{column: cell for column, cell in row.items() if changes.get(column) is not ...} for row in rows]
    return written(folder, *kept, name="datasheets.csv")


def test_every_number_has_a_source_and_a_device_and_every_source_a_use():
    numbers = throughputs.published()
    assert len({one.model_dump_json() for one in numbers}) == len(numbers) > 200
    assert all(throughputs.peak_tflops(one.device) > 0 for one in numbers)
    text = "".join(path.read_text() for path in paths.NOTEBOOKS.glob("*.py"))
    assert set(bibliography.load()) == {one.source for one in numbers} | set(re.findall(r"#ref-(\w+)", text))


def test_a_peak_has_a_source_that_can_be_opened():
    sheets = datasheets.datasheets()
    assert sheets["source"].str.contains("https://").all()
    # Dense, with FP32 accumulation: neither the sparse rate nor the 4090's with FP16.
    expected = {"NVIDIA L4": 121, "NVIDIA A100 80GB SXM": 312, "NVIDIA H100 SXM": 989, "NVIDIA H200": 989}
    assert {name: throughputs.peak_tflops(name) for name in expected} == expected
    assert throughputs.peak_tflops("NVIDIA GeForce RTX 4090") == 165


def test_what_is_above_its_device_is_kept_and_marked():
    over = [one for one in throughputs.published() if one.is_above_peak]
    assert {one.implementation for one in over} == {"FlashAttention-2", "PyTorch, composed", "xFormers"}
    shares = literature.every(synthetic.inferred()).frame["of peak"]
    marked = [share for share in shares if isinstance(share, Marked)]
    assert [round(share.value) for share in marked] == [121, 288, 318]
    assert {share.mark for share in marked} == {literature.OVER}


def test_the_highest_of_each_kind_are_found_in_the_order_of_devices():
    numbers = [number(value=value) for value in (300, 500, 400)]
    other = number(device="NVIDIA L4", value=60)
    assert throughputs.highest([*numbers, other], "device") == [other, numbers[1]]


@pytest.mark.parametrize(
    ("changes", "tflops"),
    [
        ({}, 494.5),
        ({"causal": "true"}, 494.5 * 129 / 128),
        ({"causal": "true", "seq_len": 1}, 2 * 494.5),  # half of one score is counted, and one there is
        ({"causal": "true", "convention": "full"}, 494.5 * 129 / 256),
        ({"causal": "true", "convention": "masked"}, 494.5),
        ({"causal": "true", "convention": None}, 494.5),
        ({"causal": None}, 494.5),
        # 4·2·4·128²·64 FLOPs, and 2·2·4·128·129·64 of them under the mask, in 0.01 ms
        ({"quantity": "latency", "unit": "ms", "value": 0.01}, 3.3554432),
        ({"quantity": "latency", "unit": "ms", "value": 0.01, "causal": "true"}, 1.6908288),
    ],
)
def test_throughput_counts_the_scores_under_the_mask(changes, tflops):
    assert number(**changes).throughput_tflops == pytest.approx(tflops)


def test_a_latency_without_a_whole_shape_is_no_throughput():
    assert math.isnan(number(quantity="latency", unit="ms", heads=None).throughput_tflops)


def test_a_share_is_of_the_devices_own_peak():
    assert number().share_pct == pytest.approx(50)
    assert number(device="NVIDIA A100 80GB SXM", value=156).share_pct == pytest.approx(50)
    assert number(device="NVIDIA GeForce RTX 4090", value=165).is_above_peak is False
    assert number(device="NVIDIA GeForce RTX 4090", value=166).is_above_peak is True


def test_the_same_shape_and_algorithm_stand_beside_it():
    of = synthetic.inferred()
    beside = Cases(of).nearest(number())
    assert (beside.name, beside.shape) == ("sdpa.cudnn", synthetic.TARGET)
    tflops = synthetic.TARGET.flops / synthetic.latency_us("sdpa.cudnn", synthetic.TARGET) / 1e6
    assert beside.throughput_tflops == pytest.approx(tflops)
    assert beside.datasheet_pct == pytest.approx(100 * tflops / 989)
    assert beside.measured_pct == pytest.approx(100 * tflops / 2.0, rel=1e-3)  # the synthetic ceiling


def peers() -> Results:
    """Another run, which has flash-attn-4 at the target with the mask, and cuDNN without."""
    study = {
        "implementations": ["sdpa.auto", "sdpa.cudnn", "peer.flash4"],
        "sweeps": {
            "seq_len": [synthetic.AXES | {"seq_len": 128}],
            "causal seq_len": [synthetic.AXES | {"seq_len": 128, "causal": True}],
        },
    }
    run = synthetic.infer(Recipe(study=study, fates={("peer.flash4", synthetic.TARGET): ("skipped", "not here")}))
    return changed(run, name="theirs")


def test_an_algorithm_that_another_run_has_is_shown_from_there():
    four = number(implementation="FlashAttention-4", causal="true")
    beside = Cases(synthetic.inferred(), peers()).nearest(four)
    assert (beside.name, beside.run, beside.shape.causal) == ("peer.flash4", "theirs", True)
    assert Cases(synthetic.inferred()).nearest(four).name == "sdpa.flash"
    # with the other mask alone, it is still no other algorithm
    beside = Cases(synthetic.inferred(), peers()).nearest(number(implementation="FlashAttention-4"))
    assert (beside.name, beside.run, beside.shape.causal) == ("peer.flash4", "theirs", True)
    # what this run has itself is its own
    assert Cases(synthetic.inferred(), peers()).nearest(number()).run == "synthetic"
    assert Cases(synthetic.inferred(), synthetic.inferred()).nearest(four).name == "sdpa.flash"


def test_the_run_of_peers_is_named_beside_its_cases():
    four = number(implementation="FlashAttention-4", causal="true")
    row = literature._row(four, Cases(synthetic.inferred(), peers()).nearest(four), synthetic.inferred())
    assert row["here"] == "peer.flash4\nin theirs\n(2, 4, 128, 64)\nfloat16, causal"
    every = Show(synthetic.inferred(), {"choices": peers})("roofline.literature.every").content
    assert len(every.frame) == len(throughputs.published())
    soup = html(every)
    numbering.number(soup)
    assert len([link.get_text() for link in soup.select("td a")]) == len(every.frame)


@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        ({"seq_len": 100}, synthetic.TARGET),
        ({"seq_len": 16384, "batch": 1}, synthetic.LONG),
        ({"batch": 1}, synthetic.ONE_BATCH),
        ({"heads": 64}, synthetic.EIGHT_HEADS),
        ({"batch": 1, "heads": 4}, synthetic.ONE_BATCH),
        ({"batch": 4, "heads": 4}, synthetic.EIGHT_HEADS),
        ({"causal": "true", "seq_len": 64}, synthetic.CONSTANT),
        ({"heads": None, "seq_len": 256}, synthetic.LONG),
    ],
)
def test_else_the_nearest_shape_of_the_same_head_dim_and_mask(changes, shape):
    assert Cases(synthetic.inferred()).nearest(number(**changes)).shape == shape


def test_decoding_training_and_ragged_batches_stand_beside_nothing():
    like = synthetic.AXES | {"seq_len": 128}
    other = [
        like | changes
        for changes in (
            *({"kv_len": 512}, {"lengths": "spread"}, {"direction": "training"}),
            *({"layout": "tokens first"}, {"scale": 0.5}),
        )
    ]
    of = synthetic.infer(Recipe(study={"sweeps": {"seq_len": [like], "other": other}}, fates={}))
    assert set(Cases(of).rows["implementation"]) == set(of.study.implementations)
    assert len(Cases(of).rows) == len(of.study.implementations)


def test_else_the_fastest_algorithm():
    beside = Cases(synthetic.inferred()).nearest(number(implementation="FlashAttention-3"))
    assert beside.name == "sdpa.flash"  # 0.8 of the baseline's latency


@pytest.mark.parametrize("changes", [{"head_dim": 128}, {"seq_len": None}, {"causal": None}, {"head_dim": None}])
def test_nothing_stands_beside_what_a_run_has_no_like_of(changes):
    assert Cases(synthetic.inferred()).nearest(number(**changes)) is None


def test_a_device_without_a_datasheet_has_no_share():
    of = synthetic.infer(Recipe(device="NVIDIA Nobody", shapes=None))
    beside = Cases(of).nearest(number())
    assert math.isnan(beside.datasheet_pct)
    assert "nan" not in plain(literature.every(of))
    assert isinstance(literature.shares(of), Missing)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": ""}, "the field 'source' is missing"),
        ({"source": "shah2042"}, "the source 'shah2042' is not in references.bib; did you mean 'shah2024'?"),
        ({"value": "about 500"}, "value: input should be a valid number, unable to parse string as a number"),
        ({"value": "-1"}, "value: input should be greater than 0"),
        ({"value": "nan"}, "value: input should be"),
        ({"device": "NVIDIA H201"}, "the device 'NVIDIA H201' is not in datasheets.csv; did you mean 'NVIDIA H20"),
        ({"unit": "ms"}, "a throughput is not in ms"),
        ({"convention": "half"}, "convention: input should be 'full', 'halved' or 'masked', not 'half'"),
        ({"speed": "1"}, "unknown field 'speed'"),
        ({"seq_len": "1k"}, "seq_len: input should be a valid integer"),
        ({}, "it repeats line 2: leave one"),
        ({"url": "javascript:alert(1)"}, "url: string should match pattern"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_in_one_line(tmp_path, changes, said):
    path = written(tmp_path, STATED, STATED | changes)
    assert f"literature.csv, line 3: {said}" in told(lambda: throughputs.published(path))


def test_a_file_without_rows_is_told_and_a_byte_order_mark_is_read_over(tmp_path):
    path = written(tmp_path, STATED)
    path.write_text("\ufeff" + path.read_text())
    assert throughputs.published(path) == [number()]
    for text in ("", path.read_text().splitlines()[0]):
        empty = tmp_path / f"empty{len(text)}.csv"
        empty.write_text(text)
        with pytest.raises(UserError, match=r"\.csv: it has no line below its head: restore it$"):
            throughputs.published(empty)


def test_a_row_with_a_cell_too_many_is_named(tmp_path):
    path = written(tmp_path, STATED)
    path.write_text(path.read_text().rstrip("\r\n") + ",more\n")
    with pytest.raises(UserError, match=r"literature\.csv, line 2: it should have \d+ cells: count the commas"):
        throughputs.published(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@misc{one, title = {A}}", "the entry 'one' has none of doi, eprint, url: give it one"),
        ("@misc{one, url = {x}}\n@misc{one, url = {y}}", "repeated bib"),
        ("@misc{one, title = }", "syntax error in line 1"),
        ("", "it has no entry: restore it"),
        ("@misc{one, doi = {10.1/x}, url = {}}", "the entry 'one': url is empty: leave it out"),
        ("@misc{one, url = {javascript:alert(1)}}", "the entry 'one': url is 'javascript:alert(1)': begin it with"),
        ("@misc{one, title = {\udcff}}", "can't decode byte 0xff"),
    ],
)
def test_references_that_cannot_be_read_are_told_in_one_line(tmp_path, text, said):
    path = tmp_path / "references.bib"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    message = told(lambda: bibliography.load(path))
    assert "references.bib: " in message
    assert said in message


# The datasheets


def test_they_are_read_as_they_are(tmp_path):
    assert datasheets.datasheets(spoilt(tmp_path)).equals(datasheets.datasheets())
    assert datasheets.datasheets(spoilt(tmp_path, copy_gbs="1")).loc[1, "copy_gbs"] == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"copy_gbs": "0"}, "copy_gbs: input should be greater than 0, not '0'"),
        ({"copy_gbs": "-2039"}, "copy_gbs: input should be greater than 0, not '-2039'"),
        ({"copy_gbs": "fast"}, "copy_gbs: input should be a valid number, unable to parse string as a number, not 'f"),
        ({"copy_gbs": ""}, "the field 'copy_gbs' is missing"),
        ({"l2_mib": "inf"}, "l2_mib: input should be a finite number, not 'inf'"),
        ({"l2_mib": "nan"}, "l2_mib: input should be a finite number, not 'nan'"),
        ({"multiprocessors": "108.5"}, "multiprocessors: input should be a valid integer, "),
        ({"sm_clock_mhz": "0"}, "sm_clock_mhz: input should be greater than or equal to 1, not '0'"),
        ({"source": ""}, "the field 'source' is missing"),
        ({"device": "NVIDIA L4"}, "device: an earlier line is of 'NVIDIA L4': leave one"),
        ({"matches": "NVIDIA L4"}, "matches: an earlier line is of 'NVIDIA L4': leave one"),
    ],
)
def test_what_no_datasheet_can_state_is_a_line_that_names_its_own(tmp_path, changes, said):
    path = spoilt(tmp_path, **changes)
    assert told(lambda: datasheets.datasheets(path)).startswith(f"{path}, line 3: {said}")


def test_a_column_that_is_missing_or_a_line_with_too_many_cells_is_told(tmp_path):
    path = spoilt(tmp_path, copy_gbs=...)
    with pytest.raises(UserError, match=r"line 2: the field 'copy_gbs' is missing$"):
        datasheets.datasheets(path)
    path = spoilt(tmp_path)
    stated = path.read_text()
    path.write_text(stated.replace("copy_gbs", "copy_gb", 1))
    with pytest.raises(UserError, match=r"line 2: (the field 'copy_gbs' is missing|unknown field 'copy_gb')"):
        datasheets.datasheets(path)
    path.write_text(stated.rstrip("\n") + ",one,more\n")
    with pytest.raises(UserError, match=r"^.*datasheets\.csv, line 8: it should have 15 cells: count the commas$"):
        datasheets.datasheets(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'device,matches\n"NVIDIA L4,'])
def test_what_is_no_csv_is_told(tmp_path, content):
    path = tmp_path / "datasheets.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^.*datasheets\.csv can't be read: .*: restore it$"):
        datasheets.datasheets(path)
    with pytest.raises(UserError, match=r"can't be read: .*No such file"):
        datasheets.datasheets(tmp_path / "gone.csv")
