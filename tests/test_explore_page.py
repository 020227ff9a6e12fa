"""The explorer: a page in which a run's texts stay text, with the numbers of the frames. See browser/ too."""

import csv
import io
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import attnlab as al
from attnlab import explorer
from attnlab.base.errors import UserError

EVIL = "kernel.<img src=x onerror=alert(1)></script>,\"'&"
PLACES = ((128, "device", "normal"), (256, "device", "sd 2"), (256, "device", "normal"), (128, "eager", "normal"))


def a_run() -> SimpleNamespace:
    """3 implementations at 2 shapes with 2 clocks; the eager clock has 1 shape and only normal values."""
    rng, parts = np.random.default_rng(0), []
    for name, base in (("sdpa.auto", 100.0), ("sdpa.flash", 125.0), (EVIL, 50.0)):
        for seq_len, clock, values in PLACES:
            part = pd.DataFrame({"replicate": np.repeat(range(3), 20), "latency_us": base * rng.normal(1, 0.01, 60)})
            parts.append(part.assign(implementation=name, seq_len=seq_len, clock=clock, values=values))
    axes = {"batch": 2, "heads": 4, "head_dim": 64, "causal": False, "dtype": "float16", "kv_heads": 4, "cache": "warm"}
    axes |= {"lengths": "equal", "direction": "forward", "layout": "heads first", "scale": 0.0}
    samples = pd.concat(parts, ignore_index=True).assign(**axes)
    return SimpleNamespace(name="<b>run</b>", samples=samples.assign(kv_len=samples["seq_len"]))


def test_each_comparison_has_its_numbers_and_its_statement():
    run = a_run()
    chart = al.explore(run).to_dict()
    tables = [list(csv.DictReader(io.StringIO(text))) for text in chart["datasets"].values() if isinstance(text, str)]
    (rows,), (patterns,), (cases,) = (
        [table for table in tables if column in table[0]] for column in ("speedup", "text", "implementation")
    )
    patterns = {row["pattern"]: row["text"] for row in patterns}
    names = {row["case"]: row["implementation"] for row in cases}
    shown = {}
    for row in rows:
        numbers = iter(row["numbers"].split(" "))
        text = re.sub(explorer.HERE, lambda _, numbers=numbers: next(numbers), patterns[row["pattern"]])
        text = text.replace(explorer.CANDIDATE, names[row["case"]]).replace(explorer.BASELINE, row["baseline"])
        shown[text] = float(row["speedup"])
    verdicts = pd.concat([al.compare(run.samples, name) for name in ("sdpa.auto", "sdpa.flash")])
    assert len(rows) == len(verdicts) == 16
    for row in verdicts.to_dict("records"):
        assert shown[str(al.statement(row))] == pytest.approx(row["speedup"], abs=6e-4)


def test_a_case_shows_some_of_its_samples_from_the_least_to_the_largest():
    samples = pd.Series(np.random.default_rng(0).permutation(np.arange(1.0, 1001.0)))
    shown = [float(value) for value in explorer._thinned(samples).split()]
    assert (len(shown), shown[0], shown[-1]) == (explorer.SAMPLES, 1, 1000)
    assert shown == sorted(shown)
    assert explorer._thinned(samples[:3]).count(" ") == 2


def test_a_run_without_a_comparison_is_refused_in_one_line():
    run = a_run()
    run.samples = run.samples[run.samples["implementation"] == EVIL]
    with pytest.raises(UserError, match="holds no comparison"):
        al.explore(run)


def test_the_page_holds_names_as_text(tmp_path):
    explorer.write(a_run(), tmp_path / "page" / "explorer.html")
    written = (tmp_path / "page" / "explorer.html").read_text()
    assert written.count("</script>") == 1
    assert "<title>&lt;b&gt;run" in written
    assert written.rpartition("const theme")[2].count("<") == 1  # the one that ends the script
