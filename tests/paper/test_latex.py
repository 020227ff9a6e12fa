"""The report as LaTeX and as PDF: the same bytes each time, no name a command, nothing undefined or too wide."""

import gzip
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
import synthetic
from nbformat import v4

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.exhibits import tex
from attnlab.exhibits.display import FILES, Box, Figure, Group, Prose, Table, files
from attnlab.exhibits.markdown import Inline
from attnlab.infer.stats import Interval
from attnlab.paper import latex, printed, render

CREATED = "2026-11-21T10:00:00+00:00"
KERNELS = r"\mbox{\texttt{05\_kernels}}"
NAME = r"a_b % & # $ ^ ~ \ { } größe 核 " + "x" * 200
TEX = pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
BROWSER = next(filter(None, map(shutil.which, printed.BROWSERS)), "")


def shown(content, anchor: str = ""):
    bundle = content.bundle(anchor) | {FILES: files(content, anchor)}
    return v4.new_code_cell("show()", outputs=[v4.new_output("display_data", bundle)])


def drawing() -> Figure:
    figure, axes = plt.subplots(figsize=(9, 3))
    axes.plot([1, 2], [2, 1])
    return Figure(figure, f"Falling, by `{NAME}`.", "falls")


def report(folder: Path) -> Path:
    """A report with a part of every kind, and names that LaTeX could misread."""
    frame = pd.DataFrame({"name": [NAME, "b"], "µs": ["1.0\n[0.9, 1.1]", "2"], "more": ["word " * 40] * 2})
    cells = [
        v4.new_markdown_cell("# A title of `names`"),
        v4.new_markdown_cell("## Abstract"),
        shown(Prose("Short.")),
        v4.new_markdown_cell(
            "## One\n\n[](#kernels.rows), [](#kernels.line) and [](#ref-holm1979); [](#verdicts.every)."
        ),
        shown(Table(frame, "Rows.", "See [](#sec-two).", highlight=0), "kernels.rows"),
        shown(drawing(), "kernels.line"),
        shown(Box("Findings", f"1. ` {NAME} `\n2. **Two.**")),
        v4.new_markdown_cell("### Two\n\n$$x^2$$\n\n## References\n\n## Appendix: More\n\ntext"),
    ]
    path = folder / "report.ipynb"
    nbformat.write(v4.new_notebook(cells=cells), path)
    return path


def text(folder: Path) -> str:
    return latex.files(report(folder))["main.tex"].decode()


def test_the_parts_are_in_their_places(tmp_path):
    source = text(tmp_path)
    assert r"\title{A title of \texttt{names}}" in source
    assert "\\begin{abstract}\nShort.\n\\end{abstract}" in source
    assert r"\autoref{kernels.rows}, \autoref{kernels.line} and \cite{holm1979}; \texttt{\mbox{" in source
    assert source.index(r"\input{main.bbl}") < source.index(r"\appendix") < source.index(r"\section{More}")


def test_the_bibliography_has_what_is_cited(tmp_path):
    bibliography = latex.files(report(tmp_path))["main.bbl"].decode()
    assert re.findall(r"\\bibitem\{(\w+)\}", bibliography) == ["holm1979"]
    assert "Sture Holm" in bibliography


def test_a_reference_to_nothing_is_named(tmp_path):
    path = tmp_path / "report.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_markdown_cell("[](#kernels.lader)")]), path)
    with pytest.raises(UserError, match=r"the report refers to '#kernels\.lader'"):
        latex.files(path)


def test_the_archive_has_the_same_bytes_each_time(tmp_path):
    archives = [latex.packed(latex.files(report(tmp_path)), "report-source.tar.gz", CREATED) for _ in range(2)]
    assert archives[0] == archives[1]
    assert gzip.decompress(archives[0])[:13] == b"report-source"
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as tar:
        names = [entry.name.removeprefix("report-source/") for entry in tar]
    assert names == ["figures/kernels-line.pdf", "main.bbl", "main.tex"]


@TEX
def test_pdflatex_alone_compiles_it_to_the_same_bytes_with_nothing_undefined_or_too_wide(tmp_path):
    source = latex.files(report(tmp_path))
    for name in ("a.pdf", "b.pdf"):
        printed.compile(source, tmp_path / name, CREATED)
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
    assert b"pdfusetitle" in source["main.tex"]  # the title and the author stand in the PDF's metadata
    for name, content in source.items():
        (tmp_path / "by hand" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "by hand" / name).write_bytes(content)
    for _ in range(3):
        subprocess.run(["pdflatex", "-interaction=nonstopmode", "main"], cwd=tmp_path / "by hand", capture_output=True)
    assert faults((tmp_path / "by hand" / "main.log").read_text(errors="replace")) == []


def faults(log: str) -> list[str]:
    """What a log of pdflatex says of references to nothing and of lines and floats that don't fit."""
    wide = [line for line, size in re.findall(r"(Overfull \\hbox \(([\d.]+)pt.*)", log) if float(size) > 2]
    return wide + re.findall(r"^(?:!.*|.*undefined.*|.*multiply.defined.*|.*Float too large.*)$", log, re.MULTILINE)


def test_faults_are_found():
    log = "Overfull \\hbox (2.5pt too wide)\nOverfull \\hbox (1.5pt too wide)\nLaTeX Warning: Reference `a' undefined\n"
    assert len(faults(log)) == 2


@TEX
def test_a_report_that_does_not_compile_is_one_line_and_a_log(tmp_path):
    source = {"main.tex": rb"\documentclass{article}\begin{document}\nope\end{document}"}
    with pytest.raises(UserError, match=r"^pdflatex: Undefined control sequence.; .* report.log has the log$"):
        printed.compile(source, tmp_path / "report.pdf", CREATED)
    assert "nope" in (tmp_path / "report.log").read_text()
    assert not (tmp_path / "report.pdf").exists()


@pytest.mark.skipif(not BROWSER, reason="needs Chromium")
def test_without_tex_a_browser_prints_the_page(tmp_path):
    page = tmp_path / "report.html"
    links = '<a href="#end">end</a> <a href="https://there.example">there</a> <a class="x" href="02.html#y">beside</a>'
    page.write_text(f'<h1 id="end">Printed</h1>{links}')
    printed.print_page(BROWSER, page, tmp_path / "report.pdf")
    made = (tmp_path / "report.pdf").read_bytes()
    assert made.startswith(b"%PDF")
    assert b"https://there.example" in made
    assert b"file:" not in made


@pytest.mark.parametrize(
    ("there", "found"), [(["pdflatex", "chromium"], "pdflatex"), (["google-chrome"], "google-chrome"), ([], "")]
)
def test_pdflatex_comes_first_then_a_browser(tmp_path, monkeypatch, there, found):
    for name in there:
        (tmp_path / name).write_text("#!/bin/sh\n")
        os.chmod(tmp_path / name, 0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(printed.tool()).name == found


def test_a_pdf_is_made_anew_only_where_its_source_changed(data, monkeypatch, capsys):
    synthetic.write("there", synthetic.LONELY)
    folder = paths.reports() / "there"
    folder.mkdir(parents=True)
    pdf, formats = folder / "report.pdf", []
    monkeypatch.setattr(render, "_rendered", lambda part, run, stated: formats.append(list(stated)))
    monkeypatch.setattr(printed, "compile", lambda source, pdf, created: pdf.write_bytes(source["main.tex"]))

    def rendered(text: bytes, tool: str) -> bytes:
        monkeypatch.setattr(latex, "files", lambda notebook: {"main.tex": text})
        monkeypatch.setattr(printed, "tool", lambda: tool)
        render._paper("there", folder / "report.ipynb")
        assert ("PDF" in formats[-1]) == pdf.is_file()
        return pdf.read_bytes() if pdf.is_file() else b""

    assert rendered(b"a", "pdflatex") == b"a"
    pdf.write_bytes(b"a by another version")
    for tool in ("pdflatex", "chromium", ""):
        assert rendered(b"a", tool) == b"a by another version"
    assert capsys.readouterr().err == ""
    assert rendered(b"b", "") == b""
    assert capsys.readouterr().err == f"{printed.HOW}\n"
    assert rendered(b"b", "pdflatex") == b"b"


# What the report is made of


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
        ("+5 % [95 %]", r"+5~\% {[}95~\%{]}"),  # no line ends between a number and its sign
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
        ("05_kernels, `05_kernels` too", rf"{KERNELS}, \texttt{{{KERNELS}}} too"),
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


def test_the_lines_of_a_cell_in_a_narrow_column_are_all_set_right():
    wide = {f"column {place}": [Interval(10_593, 10_585, 10_601)] * 2 for place in range(16)}
    assert r"10,593\linebreak {[}10,585, 10,601{]}" in latex_of(pd.DataFrame(wide))


def test_an_interval_in_a_narrow_column_is_broken_before_its_ends():
    row = ["10.766 [10.740, 10.793]", "words " * 30]
    latex = tex.table(["a", "b"], [row], [True, False], caption="", note="", anchor="", highlight=None)
    assert r"10.766 {[}10.740, 10.793{]} &" in latex  # wide enough
    latex = tex.table(["a"] * 6, [row[:1] * 6], [True] * 6, caption="", note="", anchor="", highlight=None)
    assert latex.count(r"10.766\linebreak {[}10.740, 10.793{]}") == 6


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


@TEX
def test_names_are_set_as_they_are_and_nothing_is_wider_than_the_page(tmp_path):
    body = names_everywhere().bundle("all")["text/latex"]
    source = f"{latex.PREAMBLE}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (tmp_path / "t.tex").write_text(source, encoding="utf-8")
    ended = subprocess.run(["pdflatex", "-interaction=nonstopmode", "t.tex"], cwd=tmp_path, capture_output=True)
    assert faults((tmp_path / "t.log").read_text(errors="replace")) == []
    assert ended.returncode == 0
