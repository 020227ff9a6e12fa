"""All exhibits of some pages, of a run on a GPU and of one on a CPU that has little."""

import re

import pytest
from reading import NOT_A_NUMBER, html
from synthetic import inferred, lonely

from attnlab.exhibits import catalogue
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing

PAGES = ("baseline", "roofline", "profile")
IDS = [id for id in catalogue.every() if id.split(".")[0] in PAGES]


@pytest.mark.parametrize("run", [inferred, lonely])
@pytest.mark.parametrize("id", IDS)
def test_nothing_is_printed_that_is_not_a_number_or_is_misspelt_by_counting(run, id):
    shown = Show(run())(id).content
    text = html(shown).get_text(" ") if shown else ""
    assert not NOT_A_NUMBER.search(text.replace("filled with NaN", ""))
    assert not re.search(r"\b1 (?:\w+s|fresh processes)\b(?! of)|processs\b", text)


def test_a_run_on_a_gpu_has_them_but_for_another_run_and_counters():
    missing = [id for id in IDS if isinstance(Show(inferred())(id).content, Missing)]
    assert missing == ["baseline.odd_lengths", "baseline.reproducibility", "profile.how"]
