"""The numbers of a published kernel, as they were stated, beside those of a run."""

import pytest
import synthetic
from reading import plain
from synthetic import L4_SHAPES, climbed

from attnlab.exhibits.display import Missing
from attnlab.exhibits.kernels import l4

LATENCIES_MS = {"kernel": [0.579, 0.752, 1.281, 4.067, 23.9], "sdpa": [0.085, 0.085, 0.086, 0.116, 0.326]}
RATIOS = [6.8, 8.9, 14.9, 35.0, 73.2]


def test_the_five_configurations_as_stated():
    assert l4.shapes() == L4_SHAPES
    for subject, latencies in LATENCIES_MS.items():
        assert [float(l4.stated(subject, "mean latency", shape)) for shape in L4_SHAPES] == latencies
    stated = [float(l4.stated("kernel over sdpa", "ratio of latencies", shape)) for shape in L4_SHAPES]
    assert stated == RATIOS
    for kernel, sdpa, ratio in zip(*LATENCIES_MS.values(), RATIOS, strict=True):
        assert kernel / sdpa == pytest.approx(ratio, rel=0.01)


def test_then_and_now():
    frame = l4.beside_l4(climbed()).frame
    assert list(frame["L4: kernel (ms)"]) == ["0.579", "0.752", "1.281", "4.067", "23.900"]
    assert set(frame["here: fastest rung"]) == {"kernel.wgmma"}
    # kernel.wgmma takes 0.9 of the baseline
    assert [ratio.estimate for ratio in frame["here: rung over SDPA"]] == pytest.approx([0.9] * 5, rel=1e-3)
    assert frame["its median (µs)"].iloc[0].estimate == pytest.approx(0.9 * 40 / 8 / 2, rel=5e-3)


def test_its_clock_reads_the_host():
    told = plain(l4.l4_limits(climbed()))
    assert "takes 0.085 to 0.086 ms at its first 3 configurations" in told
    assert "is 64 times the work of the first" in told
    assert "one NVIDIA H200 here" in told


def test_a_run_without_these_shapes():
    study = synthetic.LADDER.study | {"sweeps": {"seq_len": synthetic.STUDY["sweeps"]["seq_len"]}}
    elsewhere = synthetic.infer(synthetic.Recipe(study=study, fates={}))
    assert isinstance(l4.beside_l4(elsewhere), Missing)
