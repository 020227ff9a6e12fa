"""The numbers of a published kernel, as they were stated, and what they come to."""

import re

import pandas as pd
import pytest
import synthetic
from synthetic import L4_SHAPES, climbed

from attnlab.exhibits.kernels import l4

LATENCIES_MS = {"kernel": [0.579, 0.752, 1.281, 4.067, 23.9], "sdpa": [0.085, 0.085, 0.086, 0.116, 0.326]}
RATIOS = [6.8, 8.9, 14.9, 35.0, 73.2]


def plain(shown) -> str:
    return shown._repr_mimebundle_()["text/plain"]


def test_the_five_configurations_as_stated():
    assert l4.l4_shapes() == L4_SHAPES
    for subject, latencies in LATENCIES_MS.items():
        assert [l4.stated(subject, "mean latency", shape=shape) for shape in L4_SHAPES] == latencies
    stated = [l4.stated("kernel over sdpa", "ratio of latencies", shape=shape) for shape in L4_SHAPES]
    assert stated == RATIOS
    for kernel, sdpa, ratio in zip(*LATENCIES_MS.values(), RATIOS, strict=True):
        assert kernel / sdpa == pytest.approx(ratio, rel=0.01)


def test_every_number_has_a_document_a_place_and_a_unit():
    rows = l4.l4_numbers()
    assert set(rows["document"]) == {"002"}
    assert rows[["place", "subject", "quantity", "value", "unit"]].notna().all(axis=None)
    assert not rows.duplicated(rows.columns.drop(["id", "value", "plus_minus"])).any()


def test_then_and_now():
    frame = l4.beside_l4(climbed()).frame
    assert list(frame["L4: kernel (ms)"]) == ["0.579", "0.752", "1.281", "4.067", "23.900"]
    assert list(frame["L4: kernel over SDPA"]) == ["6.8×", "8.9×", "14.9×", "35.0×", "73.2×"]
    assert set(frame["here: fastest rung"]) == {"kernel.wgmma"}
    # kernel.wgmma takes 0.9 of the baseline
    assert [float(cell.split("×")[0]) for cell in frame["here: rung over SDPA"]] == pytest.approx([0.9] * 5)
    first = frame["its median (µs)"].iloc[0]
    assert float(first.split("\n")[0]) == pytest.approx(0.9 * 40 / 8 / 2)


def test_its_throughputs_count_what_the_mask_hides():
    frame = l4.l4_work(climbed()).frame
    assert list(frame["stated"][:2]) == ["7.2", "49.4"]
    # 4·128²·64 and 2·128·129·64 FLOPs in 0.579 ms
    assert (frame["4·B·H·S²·D"][0], frame["under the mask"][0]) == ("7.2", "3.7")
    assert float(frame["4·B·H·S²·D"].iloc[-1].replace(",", "")) == pytest.approx(
        4 * 16 * 8 * 512**2 * 64 / 0.326e6, 1e-4
    )
    assert re.search(r"all 10 within 0\.6 %, .* 1\.97 to 2\.00 times", plain(l4.l4_finding(climbed())))


def test_its_clock_reads_the_host():
    told = plain(l4.l4_limits(climbed()))
    assert "takes 0.085 to 0.086 ms at its first 3 configurations" in told
    assert "is 64 times the work of the first" in told
    assert "one NVIDIA H200 here" in told


def test_the_grid_explains_the_first_configuration_alone():
    told = plain(l4.l4_parallelism(climbed()))
    assert "3.4 % of the device; 2/58 is indeed 3.4 %" in told
    assert "each has 64 query rows there" in told
    assert "has 1,024 CTAs, 17.7 for every multiprocessor" in told
    assert "2 CTAs for 132 multiprocessors, which gives work to 1.5 % of them" in told


def test_grids_at_the_five_configurations():
    frame = l4.l4_geometry(climbed()).frame
    assert list(frame["kernel.mma"]) == ["2\n1.5 %", "64\n48 %", "128\n97 %", "256\n100 %", "1,024\n100 %"]
    assert pd.isna(frame["kernel.tiled"][0])  # skipped there
    assert frame["kernel.wgmma"].iloc[-1] == "132\n100 %"


def test_errors_at_the_same_shape():
    told = plain(l4.l4_errors(climbed()))
    assert "a largest difference of 0.001953 and a mean difference of 2.00e-06" in told
    assert "`kernel.naive` 0.00100 and 0.000100" in told


def test_a_run_without_these_shapes():
    study = synthetic.LADDER.study | {"sweeps": {"seq_len": synthetic.STUDY["sweeps"]["seq_len"]}}
    elsewhere = synthetic.infer(synthetic.Recipe(study=study, fates={}))
    assert "No rung has a latency at the five" in plain(l4.beside_l4(elsewhere))
    assert "No rung was launched at the five" in plain(l4.l4_geometry(elsewhere))
    assert "This run made no checks at that shape." in plain(l4.l4_errors(elsewhere))
    assert "the widest grid" not in plain(l4.l4_parallelism(elsewhere))
