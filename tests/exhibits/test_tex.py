"""LaTeX: nothing that a name holds is a command, references are LaTeX's own, tables fit the page."""

import re
import shutil
import subprocess

import pandas as pd
import pytest

from attnlab.exhibits import tex
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.markdown import Inline
from attnlab.infer.stats import Interval
from attnlab.paper.latex import PREAMBLE

NAMES = [
    r"a_b % & # $ ^ ~ \ { } c",
    r"\input{x} $x_1$ %end",
    "kernel.größe_ñ µ−×≥ 核 Ж",
    "x" * 200,
    "kernel." + "long_name_" * 20,
    "[1] *two* `three` <b>&amp;</b> |",
]


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        (r"_ % & # $ { }", r"\_ \% \& \# \$ \{ \}"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ("1.2 [1.1, 1.3]", "1.2 {[}1.1, 1.3{]}"),
        ("−3 × 10⁶ µs ≥ 2", r"$-$3 $\times$ 10$^{6}$ \textmu{}s $\ge$ 2"),
        ("Größe δ", r"Größe $\delta$"),
        ("核", "U+6838"),
    ],
)
def test_text_is_escaped(text, latex):
    assert tex.escape(text) == latex


@pytest.mark.parametrize(
    ("markdown", "latex"),
    [
        ("**a** *b* `c_d`", r"\textbf{a} \emph{b} \texttt{c\_\allowbreak{}d}"),
        ("as in [](#ref-holm1979)", r"as in \cite{holm1979}"),
        ("[](#kernels.ladder) and [it](#kernels.climb)", r"\autoref{kernels.ladder} and \hyperref[kernels.climb]{it}"),
        (r"$\frac{a}{b}$ costs \$3", r"$\frac{a}{b}$ costs \$3"),
        ("[x](https://a.org/b_c#d)", r"\href{https://a.org/b\_c\#d}{x}"),
    ],
)
def test_a_line_of_markdown(markdown, latex):
    assert tex.inline(markdown) == latex


def test_blocks_of_markdown():
    latex = tex.block("## One\n\n- a\n- b & c\n\n$$x^2$$\n\n> quoted\n")
    assert r"\section{One}" in latex
    assert "\\begin{itemize}\n\\item a\n\\item b \\& c\n\\end{itemize}" in latex
    assert r"\[x^2\]" in latex
    assert "\\begin{quote}\nquoted\n\\end{quote}" in latex


def latex_of(frame: pd.DataFrame, **options) -> str:
    return Table(frame, "A **caption**.", **options).bundle("kernels.rows")["text/latex"]


def test_a_table_has_rules_caption_note_and_one_highlighted_row():
    frame = pd.DataFrame({"name": ["a_b", "c"], "µs": [Interval(1.0, 0.9, 1.1), 2]})
    latex = latex_of(frame, note="see [](#ref-holm1979)", highlight=1)
    assert [latex.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert r"\begin{tabular}{@{}lr@{}}" in latex
    assert r"\caption{A \textbf{caption}.}\label{kernels.rows}" in latex
    assert r"a\_\allowbreak{}b & 1.00 {[}0.90, 1.10{]} \\" in latex
    assert r"\rowcolor{target}\textbf{c} & \textbf{2} \\" in latex
    assert r"see \cite{holm1979}" in latex


def test_only_cells_in_markdown_are_read_as_such():
    latex = latex_of(pd.DataFrame({"source": [Inline("[](#ref-a)")], "text": ["[](#ref-a)"]}))
    assert r"\cite{a} & {[}{]}(\#ref-\allowbreak{}a) \\" in latex


def test_a_long_table_runs_over_pages():
    latex = latex_of(pd.DataFrame({"x": range(tex.TALLEST + 1)}))
    assert r"\begin{longtable}" in latex
    assert r"\begin{table}" not in latex


def names_everywhere() -> Group:
    wide = pd.DataFrame({f"column {place}": ["10,593\n[10,585, 10,601]"] for place in range(9)})
    return Group(
        {
            "names": Table(pd.DataFrame({"name": NAMES, "again": NAMES}), "Names.", highlight=0),
            "wide": Table(wide, "Wide."),
            "text": Table(pd.DataFrame({"a": ["word " * 60], "b": ["word " * 30], "c": ["1"]}), "Text."),
            "long": Table(pd.DataFrame({"x": [f"{name}{n}" for n in range(9) for name in NAMES]}), "Long."),
            "code": Prose("\n".join(["```", "    def f(x):  # 100 %", *NAMES, "```"])),
            "prose": Prose("\n\n".join(f"Named {name} here." for name in map(quoted, NAMES))),
        }
    )


def quoted(name: str) -> str:
    fence = "``" if "`" in name else "`"
    return f"{fence} {name} {fence}"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_names_are_set_as_they_are_and_nothing_is_wider_than_the_page(tmp_path):
    body = names_everywhere().bundle("all")["text/latex"]
    (tmp_path / "t.tex").write_text(f"{PREAMBLE}\n\\begin{{document}}\n{body}\n\\end{{document}}\n", encoding="utf-8")
    ended = subprocess.run(["pdflatex", "-interaction=nonstopmode", "t.tex"], cwd=tmp_path, capture_output=True)
    log = (tmp_path / "t.log").read_text(errors="replace")
    assert ended.returncode == 0, re.findall("^!.*", log, re.MULTILINE)
    assert [float(size) for size in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log) if float(size) > 2] == []
