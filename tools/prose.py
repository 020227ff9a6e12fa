"""Check the prose of Markdown files, notebooks and docstrings, for `make check`: print each line to correct.

It finds `what` and `who` outside questions, words that have a plainer one, numbers in words, and sentences of more than
30 words. It skips code, tables, links, lists of columns, and kernels/NOTES.md, which is a diary.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

LONGEST = 30
PLAINER = {
    "anew": "again", "beside": "next to, with", "lies": "is", "at hand": "your", "rungs?": "kernel", "so many": "N",
    "what|who|whatever|whoever": "a noun", "kinds? of values": "input distribution",
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundreds?|thousands?": "digits",
    "(?:a|one) (?:half|third|quarter|fifth|tenth|hundredth)": "digits",
}  # fmt: skip
CODE = re.compile(
    r"```.*?```|``?[^`\n]*``?|<!--.*?-->|\$[^$\n]+\$|\]\([^)]*\)|https?://\S+|^ *\|.*?$|^#+ .*?$|^ *==.*== *=+$",
    re.DOTALL | re.MULTILINE,
)
ENDS = (
    r"(?<=[.!?:;])[*_\"')]*\s+(?=[\"'(*_A-Z0-9¤])|\n\s*\n|\n\s*(?:[-*]|\d+\.) |\n\s+(?=[*\w]+: )|Columns\b[^.]*(?=\.)"
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The pieces of prose in a file, each with the line at which it begins."""
    text = path.read_text()
    if path.suffix == ".md":
        yield 1, text
    for cell in re.finditer(r"^# %% \[markdown\].*\n((?:#.*\n)+)", text, re.MULTILINE):
        yield text.count("\n", 0, cell.start(1)) + 1, re.sub(r"^# ?", "", cell[1], flags=re.MULTILINE)
    for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def faults(text: str) -> Iterator[tuple[int, str]]:
    """The lines to correct in a piece of prose, counted from 0, each with the correction."""
    plain, begin = CODE.sub(lambda found: "¤" + "\n" * found[0].count("\n"), text), 0
    for end in [*(found.span() for found in re.finditer(ENDS, plain)), (len(plain),) * 2]:
        sentence, start = plain[begin : end[0]], begin
        if len(words := sentence.split()) > LONGEST:
            yield plain.count("\n", 0, end[0]), f"{len(words)} words, {LONGEST} at most: {' '.join(words[:6])} ..."
        for word, instead in PLAINER.items() if not sentence.rstrip("*_\"')").endswith("?") else ():
            for found in re.finditer(rf"\b(?:{word})\b", sentence, re.IGNORECASE):
                yield plain.count("\n", 0, start + found.start()), f"{found[0]!r}: write {instead}"
        begin = end[1]


listed = subprocess.run(["git", "ls-files", "*.md", "*.py"], capture_output=True, text=True).stdout.split()
if not listed:  # a copy without git
    found = (path for suffix in ("md", "py") for path in Path().rglob(f"*.{suffix}"))
    listed = [str(path) for path in found if not any(part[0] == "." for part in path.parts)]
paths = [Path(name) for name in listed if name != "kernels/NOTES.md" and not name.startswith("tests/")]
lines = [f"{path}:{at + line}: {said}" for path in paths for at, text in texts(path) for line, said in faults(text)]
raise SystemExit("\n".join(lines) or 0)
