"""A lead on one device and on another: fast and slow kernels that were chosen to lead, to lag, or to do neither."""

import pytest
import synthetic
from synthetic import LADDER, LONG, ORDINARY, SHORT, TARGET, Recipe, bare

from attnlab.infer.kernels import cross_device
from attnlab.infer.lookup import NotMeasured

pytestmark = pytest.mark.usefixtures("data")

H100 = "NVIDIA H100 80GB HBM3"


def record(name: str, wgmma: dict, device: str = "NVIDIA H200") -> None:
    """A run of the ladder in which rung 6 takes so many times as long as sdpa.flash, by shape."""
    pace = {
        (kernel, shape): 100.0 * (times if kernel == "kernel.wgmma" else 1.0)
        for shape, times in wgmma.items()
        for kernel in ("kernel.wgmma", "sdpa.flash")
    }
    slower = {(name, shape): 1000.0 for shape in wgmma for name in LADDER.stated["implementations"]}
    synthetic.write(name, Recipe(device, LADDER.study, fates={}, latencies_us=slower | pace))


def test_a_lead_has_one_sign_another_or_none_on_another_device():
    record("here", {TARGET: 0.8, LONG: 0.8, SHORT: 1.0})
    record("there", {TARGET: 0.9, LONG: 1.25, SHORT: 0.8}, H100)
    found = cross_device.find(bare("here"))
    assert found.there.run.name == "there"
    here, there = found.leads[TARGET]
    assert (here.kernel, here.over, there.over) == ("kernel.wgmma", "sdpa.flash", "sdpa.flash")
    assert here.ratio.estimate == pytest.approx(1.25, rel=0.01)
    assert there.ratio.estimate == pytest.approx(1 / 0.9, rel=0.01)
    assert [found.sign(shape) for shape in (TARGET, LONG, SHORT)] == [
        cross_device.SAME,
        cross_device.DIFFERENT,
        cross_device.OPEN,
    ]
    assert len(found.leads) == len(bare("here").study.shapes)


def test_kernels_of_another_source_are_named(monkeypatch):
    record("here", {TARGET: 0.8})
    manifest = synthetic.manifest
    other = {"kernels": {"kernel.wgmma": "8" * 64, "kernel.best": "8" * 64}}
    monkeypatch.setattr(synthetic, "manifest", lambda *arguments: manifest(*arguments) | other)
    record("there", {TARGET: 0.8}, H100)
    assert cross_device.find(bare("here")).changed == ["kernel.wgmma"]


def test_a_device_of_the_same_name_or_without_kernels_is_no_other():
    record("here", {TARGET: 0.8})
    record("again", {TARGET: 0.8})
    synthetic.write("peers", Recipe(H100, ORDINARY.study))
    with pytest.raises(NotMeasured, match=r"^No complete run on another device shares a shape at which"):
        cross_device.find(bare("here"))
