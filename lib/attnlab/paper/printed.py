"""The report as PDF: by pdflatex from its LaTeX, or else by Chromium from its page."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from attnlab.base.errors import UserError
from attnlab.base.files import write_atomically
from attnlab.paper.latex import MAIN, epoch

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOW = "no PDF: install pdflatex (Debian's texlive-latex-recommended and lmodern) or Chromium, and render again"
# Links to files beside the page: in a PDF a browser makes addresses on this machine of them.
BESIDE = re.compile(r"""(<a\b[^>]*?)\shref=(["'])(?!#|https?:|mailto:).*?\2""", re.DOTALL)
MOST_PASSES = 4
LIMIT_S = 300


def tool() -> str:
    """The path of what makes the PDF: pdflatex, or a browser; empty where neither is here."""
    return next(filter(None, map(shutil.which, ("pdflatex", *BROWSERS))), "")


def compile(files: Mapping[str, bytes], pdf: Path, created: str) -> None:
    """Compile the report's LaTeX; the same files give the same bytes.

    Raises:
        UserError: pdflatex failed; its log lies beside the PDF.
    """
    known = {"SOURCE_DATE_EPOCH": str(epoch(created)), "FORCE_SOURCE_DATE": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in files.items():
            file = Path(scratch, name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        log = Path(scratch, MAIN).with_suffix(".log")
        for _ in range(MOST_PASSES):
            command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", MAIN]
            ended = _run(command, cwd=scratch, env=os.environ | known)
            said = log.read_text(errors="replace") if log.is_file() else ""
            if ended.returncode:
                write_atomically(pdf.with_suffix(".log"), said.encode())
                reason = next(iter(re.findall("^! (.*)", said, re.MULTILINE)), "it ended early")
                raise UserError(f"pdflatex: {reason}; the page is there, and {pdf.stem}.log has the log")
            if not re.search(r"Rerun to get|Label\(s\) may have changed|Table widths have changed", said):
                break
        write_atomically(pdf, Path(scratch, MAIN).with_suffix(".pdf").read_bytes())


def print_page(browser: str, page: Path, pdf: Path) -> None:
    """Print a page by a browser without a window; its links to files beside it become plain text.

    Raises:
        UserError: the browser failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        made, copy = Path(scratch, "page.pdf"), Path(scratch, "page.html")
        copy.write_text(BESIDE.sub(r"\1", page.read_text()))
        # A sandbox can't be had as root, and the page runs no script.
        options = ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={scratch}/profile"]
        options += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        command = [browser, *options, f"--print-to-pdf={made}", copy.resolve().as_uri()]
        ended = _run(command, cwd=scratch, env=os.environ)
        if ended.returncode or not made.is_file():
            raise UserError(f"{Path(browser).name} could not print {page.name}, which is there; {HOW}")
        write_atomically(pdf, made.read_bytes())


def _run(command: list[str], cwd: str, env: Mapping[str, str]) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, cwd=cwd, env=dict(env), capture_output=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise UserError(f"{Path(command[0]).name} took longer than {LIMIT_S} s; the page is there") from None
