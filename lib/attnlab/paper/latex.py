"""Writes the assembled report as LaTeX: main.tex, main.bbl and its figures, which pdflatex alone compiles."""

import base64
import gzip
import io
import re
import tarfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat

from attnlab.base.errors import UserError, suggestion
from attnlab.exhibits import catalogue, tex
from attnlab.exhibits.display import FILES
from attnlab.paper import references

MAIN = "main.tex"
PREAMBLE = rf"""\documentclass[10pt]{{article}}
\usepackage[a4paper, textwidth={tex.TEXT_WIDTH_IN}in, top=18mm, bottom=20mm]{{geometry}}
\usepackage[T1]{{fontenc}}
\usepackage{{lmodern, microtype, amsmath, amssymb, textcomp}}
\usepackage{{graphicx, array, booktabs, longtable, caption}}
\usepackage{{flafter}} % no table stands before the section that shows it
\usepackage[table]{{xcolor}}
\usepackage[colorlinks, allcolors=link, pdfusetitle]{{hyperref}}
\definecolor{{link}}{{HTML}}{{1F4E8C}}
\definecolor{{target}}{{HTML}}{{FDF3D7}}
\definecolor{{rule}}{{HTML}}{{8A8A85}}
\captionsetup{{font=small, labelfont=bf, skip=5pt}}
\renewcommand{{\sectionautorefname}}{{Section}}
\renewcommand{{\subsectionautorefname}}{{Section}}
\newcommand{{\tablesize}}{{\fontsize{{8}}{{9.5}}\selectfont\setlength{{\tabcolsep}}{{3.6pt}}}}
\newsavebox{{\findingsbox}}
\newenvironment{{findings}}
  {{\par\medskip\noindent\begin{{lrbox}}{{\findingsbox}}\begin{{minipage}}{{\dimexpr\linewidth-2\fboxsep-2\fboxrule}}\small}}
  {{\end{{minipage}}\end{{lrbox}}\fcolorbox{{rule}}{{white}}{{\usebox{{\findingsbox}}}}\par\medskip}}
\renewcommand{{\topfraction}}{{0.9}}
\renewcommand{{\textfraction}}{{0.07}}
\renewcommand{{\floatpagefraction}}{{0.85}}
\renewcommand{{\bottomfraction}}{{0.5}}
\setcounter{{topnumber}}{{3}}
\setlength{{\emergencystretch}}{{3em}}
\setlength{{\textfloatsep}}{{12pt plus 3pt minus 4pt}}
\setlength{{\floatsep}}{{10pt plus 3pt minus 3pt}}
% Lists without space between their items.
\makeatletter
\def\@listi{{\leftmargin\leftmargini \parsep 0pt \topsep 3pt \itemsep 1.5pt}}
\let\@listI\@listi
% On a page of floats alone, what is left white is below them.
\@fptop=0pt \@fpsep=16pt \@fpbot=0pt plus 1fil
\makeatother
\setlength{{\LTcapwidth}}{{\linewidth}}
\widowpenalty=10000 \clubpenalty=10000
% Nothing of when and where it was compiled.
\pdfinfoomitdate=1 \pdftrailerid{{}} \pdfsuppressptexinfo=-1"""
_REFERENCE = re.compile(r"\\autoref\{([^}]*)\}|\\hyperref\[([^\]]*)\]\{((?:[^{}]|\{[^{}]*\})*)\}")
_ABSTRACT = re.compile(r"\\section\{Abstract\}\\label\{[^}]*\}\n(.*?)(?=\\section\{|\Z)", re.DOTALL)
_HEADING = re.compile(r"^\\section\{(.*)\}\\label\{[^}]*\}$", re.MULTILINE)


def files(notebook: Path) -> dict[str, bytes]:
    """The report as LaTeX, by the names of its files.

    Args:
        notebook: the assembled report.

    Raises:
        UserError: a link leads to something that neither the report nor a page has.
    """
    body, figures = _body(notebook)
    body = _REFERENCE.sub(lambda found: _referred(found, set(re.findall(r"\\label\{([^}]*)\}", body))), body)
    cited = list(dict.fromkeys(re.findall(r"\\cite\{([^}]*)\}", body)))
    used = {f"figures/{name}": file for name, file in figures.items()}
    return {MAIN: _document(body).encode(), "main.bbl": references.latex(cited).encode(), **used}


def packed(files: Mapping[str, bytes], archive: str, created: str) -> bytes:
    """The files as a .tar.gz whose bytes depend on nothing but them.

    Args:
        archive: its name, that of the folder in it.
        created: when the run was recorded, the time of every file in the archive.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{archive.removesuffix('.tar.gz')}/{name}")
            entry.size, entry.mtime = len(content), epoch(created)
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)


def epoch(created: str) -> int:
    """When a run was recorded, in seconds since 1970."""
    return int(datetime.fromisoformat(created).timestamp())


def _body(notebook: Path) -> tuple[str, dict[str, bytes]]:
    parts: list[str] = []
    figures: dict[str, bytes] = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(tex.block(cell.source))
        for output in cell.get("outputs", []):
            data: dict[str, Any] = output.get("data", {})
            parts.append(data.get("text/latex") or tex.escape(data.get("text/plain", "")))
            figures |= {name: base64.b64decode(file) for name, file in data.get(FILES, {}).items()}
    return "\n".join(part for part in parts if part.strip()), figures


def _referred(found: re.Match[str], labels: set[str]) -> str:
    anchor, words = found[1] or found[2], found[3]
    if anchor in labels:
        return found[0]
    if page := catalogue.home(anchor):
        return words or tex.code(page)
    raise UserError(f"the report refers to '#{anchor}', which it does not have{suggestion(anchor, labels)}")


def _document(body: str) -> str:
    body = _ABSTRACT.sub(lambda found: f"\\begin{{abstract}}\n{found[1].strip()}\n\\end{{abstract}}\n\n", body)
    body = _HEADING.sub(lambda found: r"\input{main.bbl}" if found[1] == "References" else found[0], body)
    body = re.sub(r"\\section\{Appendix: ", lambda _: "\\appendix\n\\section{", body, count=1)
    body = body.replace(r"\section{Appendix: ", r"\section{")
    front = [found[0] for found in re.finditer(r"^\\(?:title|date)\{.*\}$", body, re.MULTILINE)]
    for line in front:
        body = body.replace(line, "", 1)
    lines = [PREAMBLE, *front, r"\author{attnlab}", r"\begin{document}", r"\maketitle", body.strip(), r"\end{document}"]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"
