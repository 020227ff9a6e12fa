"""Sentences from templates."""

import pytest
from jinja2 import UndefinedError

from attnlab.exhibits import words
from attnlab.infer.stats import Interval


@pytest.fixture
def template(tmp_path, monkeypatch):
    """Writes a page of macros that `say` finds."""
    monkeypatch.setattr(words, "FOLDER", tmp_path)
    words._template.cache_clear()
    yield lambda text: (tmp_path / "page.md.j2").write_text(text)
    words._template.cache_clear()


def test_facts_are_printed_as_tables_print_them(template):
    template("{% macro told(median, share) %}{{ median | interval }} µs, {{ share | percent }}{% endmacro %}")
    assert words.say("page.told", median=Interval(47.46, 47.41, 47.52), share=12.3) == "47.46 [47.41, 47.52] µs, 12 %"


def test_lines_are_joined_within_a_paragraph_and_an_item(template):
    template("{% macro told() %}\nOne\nline.\n\n- an\n  item\n- another\n{% endmacro %}")
    assert words.say("page.told") == "One line.\n\n- an item\n- another"


def test_a_fact_that_is_missing_is_no_empty_text(template):
    template("{% macro told(median) %}{{ median }} µs{% endmacro %}")
    with pytest.raises(UndefinedError):
        words.say("page.told")
