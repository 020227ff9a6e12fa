"""Tuned layouts in the cache folder: kept between processes, and ignored when they are out of date."""

import os
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import ladders
import pytest

from attnlab.runs import tuned
from attnlab.runs.tuned import Entry
from attnlab.study import tuning

HERE = "NVIDIA H200", "2.11"
FLASH = Entry(implementation="sdpa.flash")
NO_SUCH = '{"device": "NVIDIA H200", "torch": "2.11", "layouts": {"one": {"implementation": "sdpa.flsh"}}}'


@pytest.fixture(autouse=True)
def own(data, monkeypatch):
    """A separate cache folder, in a process that measures no run."""
    monkeypatch.setattr(tuned, "counted", True)


def test_what_is_kept_is_loaded_by_this_device_and_pytorch_alone():
    assert tuned.load(*HERE) == {}
    assert tuned.keep(*HERE, "one", FLASH) == tuned.path(*HERE)
    assert tuned.load(*HERE) == {"one": "sdpa.flash"}
    for other in (("NVIDIA L4", "2.11"), ("NVIDIA H200", "2.12")):
        assert tuned.load(*other) == {}
        os.replace(tuned.path(*HERE), tuned.path(*other))
        assert tuned.load(*other) == {}  # of another device, independent of its name
        os.replace(tuned.path(*other), tuned.path(*HERE))


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_writers_that_keep_at_once_lose_nothing(pool):
    with pool(2) as writers:
        list(writers.map(partial(tuned.keep, *HERE, entry=FLASH), [f"layout {number}" for number in range(80)]))
    assert len(tuned.load(*HERE)) == 80


def test_an_entry_whose_kernel_changed_is_ignored(folder):
    tuning.write(ladders.tuned(ladders.choice("64x1")))
    source = tuning.hashes(["kernel.best"], HERE[0])["kernel.best"]
    tuned.keep(*HERE, "one", Entry(implementation="kernel.best", source=source))
    tuned.keep(*HERE, "other", FLASH)
    assert tuned.load(*HERE) == {"one": "kernel.best", "other": "sdpa.flash"}
    ladders.write(folder, source="// another\n")
    assert tuned.load(*HERE) == {"other": "sdpa.flash"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', "\x00", "[" * 100_000, NO_SUCH])
def test_a_damaged_file_is_warned_of_once_and_replaced(text):
    file = tuned.path(*HERE)
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.warns(UserWarning, match=re.escape(f"attend goes by no tuned layouts: {file} is no record")) as warned:
        assert tuned.load(*HERE) == {}
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    tuned.keep(*HERE, "one", FLASH)
    assert tuned.load(*HERE) == {"one": "sdpa.flash"}
