"""Tables format numbers for readers and show texts as data; sentences say no more than their row or condition."""

import re
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from attnlab.base.errors import UserError
from attnlab.tables import holds, statement, table, text_of, with_interval

HOSTILE = "<img src=x onerror=alert(1)> & $x_1$ 50% \\input{a} `b` *c*"


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (1234.56, "median_us", "1,235"),
        (0.045678, "", "0.0457"),
        (1e-9, "", "1.00e-09"),
        (pd.NA, "", "—"),
        (np.inf, "", "inf"),
        (np.int64(8192), "seq_len", "8,192"),
        (np.True_, "causal", "yes"),
        (1.00049, "speedup", "1.000"),
        (0.00421, "smallest_effect", "0.421"),
        (1e-6, "p_holm", "<0.0001"),
        (0.04567, "p", "0.0457"),
        ("a\x1bb", "", "a\\x1bb"),
    ],
)
def test_a_cell_reads(value: Any, column: str, text: str) -> None:
    assert text_of(value, column) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1.23349, 1.2274, 1.2381), "1.233 [1.227, 1.238]"),
        ((48.678, 48.51, 48.93), "48.7 [48.5, 48.9]"),
        ((5230.4, 5210.0, 5251.0), "5,230 [5,210, 5,251]"),
        ((12345.678, 12345.67, 12345.69), "12,346 [12,346, 12,346]"),
        ((1.2, 1.1, np.inf), "1.20 [1.10, inf]"),
        ((2.0, np.nan, np.nan), "2.00"),
        ((2.0, 2.0, 2.0), "2.00"),
        ((2.0, 0.5, np.inf), "2.00 [0.50, inf]"),
        ((np.nan, 1.0, 2.0), "—"),
    ],
)
def test_an_interval_has_the_decimals_that_tell_its_ends_apart(numbers: tuple[float, ...], text: str) -> None:
    frame = with_interval(pd.DataFrame([numbers], columns=["x_us", "a", "b"]), "x_us", "a", "b")
    assert frame.to_dict("list") == {"x_us": [text]}
    with pytest.raises(UserError, match="no column 'speed'; did you mean 'speedup'"):
        with_interval(pd.DataFrame(columns=["speedup", "low", "high"]), "speed")


def test_texts_are_data_in_cells_headings_and_captions() -> None:
    shown = table(pd.DataFrame({"implementation": [HOSTILE], HOSTILE: [1.5]}), HOSTILE)
    soup = BeautifulSoup(shown._repr_html_(), "html.parser")
    allowed = "style div table caption thead tbody tr th td"
    assert {tag.name for tag in soup.find_all(True)} <= set(allowed.split())
    texts = [cell.get_text() for cell in soup.select("th, td, caption")]
    assert texts == [HOSTILE, "implementation", HOSTILE, HOSTILE, "1.50"]
    assert soup.div is not None
    assert soup.div["aria-label"] == HOSTILE
    latex = shown._repr_latex_()
    assert latex.count(r"<img src=x onerror=alert(1)> \& \$x\_1\$ 50\% \char92{}input\{a\}") == 3
    assert not re.search(r"(?<!\\)[%$#]", latex)


def test_a_table_has_units_keys_and_bold_rows() -> None:
    frame = pd.DataFrame({"implementation": ["a", "b"], "median_us": [1.0, 2000.0]}).set_index("implementation")
    shown = table(frame, bold=frame.median_us > 1)
    soup = BeautifulSoup(shown._repr_html_(), "html.parser")
    assert [cell.get_text() for cell in soup.select("th")] == ["implementation", "median latency (µs)"]
    assert [cell.get_text() for cell in soup.select("td")] == ["a", "1.00", "b", "2,000"]
    bold = re.search(r"((?:#\w+,?\s*)+){\s*font-weight: bold", shown._repr_html_())
    assert bold is not None
    assert {cell["id"] for cell in soup.select("td[id]")} == set(re.findall(r"#(\w+)", bold[1]))
    assert r"\bfseries b & \bfseries 2,000" in shown._repr_latex_()
    assert table(frame, bold=[False, True])._repr_latex_() == shown._repr_latex_()
    for rows, mask in ((frame, [True]), (frame[::-1], frame.median_us > 1)):
        with pytest.raises(UserError, match="bold has other rows than the table, or another order"):
            table(rows, bold=mask)


def test_a_user_can_go_on_with_the_style_of_a_table_of_any_length() -> None:
    shown = table(pd.DataFrame({"median_us": [1.0, 2.0]}))
    shown.style.highlight_max(color="yellow")
    (bundle, metadata) = shown._repr_mimebundle_()
    assert "background-color: yellow" in bundle["text/html"]
    assert r"\cellcolor{yellow}} 2.00" in bundle["text/latex"]
    assert metadata == {"attnlab": {"table": True}}
    assert "Nothing. No rows." in table(shown.frame.head(0), "Nothing.")._repr_html_()
    assert r"\begin{longtable}" in table(pd.concat([shown.frame] * 30))._repr_latex_()


ROW = {
    **{"candidate": "kernel.best", "baseline": "sdpa.auto", "batch": 32, "heads": 8, "seq_len": 512, "head_dim": 64},
    **{"causal": False, "dtype": "float16", "kv_heads": 8, "kv_len": 512, "lengths": "equal", "values": "rising 24"},
    **{"clock": "device", "cache": "warm", "speedup": 1.2331, "low": 1.2274, "high": 1.2381, "p_holm": 1e-6},
    **{"smallest_effect": 0.0042, "decision": "faster"},
}


def test_a_statement_is_two_sentences_of_one_row() -> None:
    said = statement(pd.Series(ROW))
    assert said == (
        "kernel.best is faster than sdpa.auto at B=32 H=8 S=512 D=64 float16 without a mask, rising 24 values: speedup "
        "1.233 [1.227, 1.238], p <0.0001 (Holm), device clock, warm cache. The smallest effect that the run can detect "
        "here is 0.42 % (A/A control)."
    )
    assert "detect here is 1,287 % (A/A" in str(statement(pd.Series(ROW | {"smallest_effect": 12.87})))
    assert statement(pd.DataFrame([ROW])) == said
    worst = statement(
        ROW | {"n": 15.0, "highest": 1.2908, "kv_heads": 2, "decision": "inconclusive", "smallest_effect": 0}
    )
    assert "cannot be told from sdpa.auto at B=32 H=8 S=512 D=64 kv heads 2 float16" in worst
    assert "rising 24 values, the worst of 15 input distributions (highest 1.291): speedup" in worst
    assert ", the worst of 2 over batch (highest" in statement(ROW | {"n": 2, "highest": 1.3, "over": "batch"})
    assert worst.endswith("the smallest effect that it can detect is not known.")
    assert r"\<img src=x onerror=alert(1)>" in statement(ROW | {"candidate": HOSTILE})._repr_markdown_()
    with pytest.raises(UserError, match="one row, not 2"):
        statement(pd.DataFrame([ROW, ROW]))
    with pytest.raises(UserError, match="takes a row of compare or worst, such as"):
        statement(with_interval(pd.DataFrame([ROW]), "speedup"))
    with pytest.raises(UserError, match="lacks 'speedup'"):
        statement({"candidate": "a", "decision": "faster"})


@pytest.mark.parametrize(
    ("condition", "is_true"),
    [
        (True, True),
        (pd.Series([True]), True),
        (pd.Series([], dtype=bool), False),
        (np.array([1, 0]), False),
        (pd.NA, False),
        ((value > 1 for value in [2, 1]), False),
        (lambda: {}["a"], False),
    ],
)
def test_a_sentence_shows_only_where_it_holds(condition: Any, is_true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[dict[str, str], dict[str, Any]]] = []
    module = sys.modules["attnlab.tables"]
    monkeypatch.setattr(module, "display", lambda bundle, raw, metadata: shown.append((bundle, metadata)))
    holds("It is *fast* & <b>", condition)
    ((bundle, metadata),) = shown
    assert metadata == {"attnlab": {"holds": is_true}}
    assert bundle.get("text/markdown") == ("It is *fast* & <b>" if is_true else None)
    assert ("&lt;b&gt;" in bundle.get("text/html", "")) is not is_true
