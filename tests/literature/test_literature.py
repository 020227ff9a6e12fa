"""What others published: how it is read, brought to one count of work, and set beside a run."""

import csv
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from bs4 import BeautifulSoup
from synthetic import Recipe

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.exhibits import markdown
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


def written(folder: Path, *rows: dict[str, str]) -> Path:
    """A literature.csv with these rows."""
    path = folder / "literature.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(column for row in rows for column in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def plain(shown) -> str:
    return shown._repr_mimebundle_()["text/plain"]


def numbered(html: str) -> BeautifulSoup:
    soup = BeautifulSoup(html, "html.parser")
    numbering.number(soup)
    return soup


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
    return Results(replace(run.run, name="theirs"), run.table)


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
    every = Show(synthetic.inferred(), {"peers": peers})("roofline.literature.every").content
    assert len(every.frame) == len(throughputs.published())
    cited = [link.get_text() for link in numbered(every._repr_mimebundle_()["text/html"]).select("td a")]
    assert len(cited) == len(every.frame)


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
    with pytest.raises(UserError) as caught:
        throughputs.published(path)
    assert f"literature.csv, line 3: {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


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
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        bibliography.load(path)
    assert "references.bib: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_page_keeps_the_references_that_it_cites_in_the_order_of_first_citation():
    text = "## One\n\n[](#ref-holm1979) [](#ref-dao2023) [](#ref-holm1979)\n\n"
    text += "## References\n\n## Appendix: More\n\n[](#ref-cliff1993)\n"
    soup = numbered(markdown.block(text))
    assert [item["id"] for item in soup.select("ol li")] == ["ref-holm1979", "ref-dao2023", "ref-cliff1993"]
    assert [link.get_text() for link in soup.select('a[href^="#ref-"]')] == ["[1]", "[2]", "[1]", "[3]"]
    assert "Sture Holm. A simple sequentially rejective" in soup.select_one("ol li").get_text()
    assert soup.select("ol li")[1].a["href"] == "https://arxiv.org/abs/2307.08691"


def test_a_citation_without_an_entry_is_named():
    with pytest.raises(UserError, match=r"'#ref-holm1997', which it does not have; did you mean 'ref-holm1979'\?"):
        numbered(markdown.block("[](#ref-holm1997) [](#ref-holm1979)\n\n## References\n"))
