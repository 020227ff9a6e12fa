"""All exhibits, of runs on a GPU, with kernels and with other workloads, and of one on a CPU that has little."""

import re

import pytest
from reading import NOT_A_NUMBER, html
from synthetic import chosen, climbed, inferred, lonely

from attnlab.exhibits import catalogue
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing

RUNS = {
    "baseline roofline profile environment": (inferred, lonely),
    "kernels": (climbed,),
    "backends": (inferred, lonely, chosen, climbed),
}
"""What is shown of which pages; 06_verdicts has runs of its own in test_verdicts."""
GIVEN = {"backends.cost": {"price_per_hour": 3.0}}
SHOWN = [
    (id, run) for id in catalogue.every() for pages, runs in RUNS.items() if id.split(".")[0] in pages for run in runs
]


@pytest.mark.parametrize(("id", "run"), SHOWN)
def test_nothing_is_printed_that_is_not_a_number_or_is_misspelt_by_counting(id, run, data):
    shown = Show(run())(id, **GIVEN.get(id, {})).content
    text = html(shown).get_text(" ") if shown else ""
    assert not NOT_A_NUMBER.search(text.replace("filled with NaN", ""))
    assert not re.search(r"\b1 (?:\w+s|fresh processes)\b(?! of)|processs\b", text)


def test_a_run_on_a_gpu_has_them_but_for_another_run_and_counters():
    pages = ("baseline", "roofline", "profile")
    ids = [id for id in catalogue.every() if id.split(".")[0] in pages]
    missing = [id for id in ids if isinstance(Show(inferred())(id).content, Missing)]
    assert missing == ["baseline.odd_lengths", "baseline.reproducibility", "profile.how"]
