"""How a rung becomes a program for NVRTC, NVIDIA's runtime compiler, whoever calls it; and what it says of errors."""

import hashlib
import re

from attnlab import ladder, paths
from attnlab.ladder import Rung

SHOWN = 3
"""Errors that a message quotes."""


def program(rung: Rung) -> str:
    """The source of a rung, such that errors name its file and a cache by source tells its headers apart."""
    source, *headers = ladder.sources(rung)
    included = hashlib.sha256(b"".join(path.read_bytes() for path in headers)).hexdigest()
    return f'#line 1 "{paths.shown(source)}"\n{source.read_text()}\n// headers {included}\n'


def flags(architecture: str) -> tuple[str, ...]:
    """The compiler's options, those apart that CuPy adds by itself."""
    return (ladder.STANDARD, f"-arch={architecture}", f"-I{paths.kernels()}", "--ptxas-options=-v")


def explained(rung: Rung, expression: str, options: tuple[str, ...], log: str) -> str:
    """One paragraph about a rung that doesn't compile: its file, the line, the flags and the compiler's words."""
    words = _errors(log)
    more = f" (and {len(words) - SHOWN} more)" if len(words) > SHOWN else ""
    said = "; ".join(words[:SHOWN]) or " ".join(log.split())[:500] or "nothing"
    source = paths.shown(paths.kernels() / rung.source)
    return f"{source} does not compile as {expression} with {' '.join(options)}: {said}{more}"


def _errors(log: str) -> list[str]:
    """What the compiler calls errors, each on a line; a list of what was tried, say, follows on lines of its own."""
    lines = [" ".join(line.split()) for line in log.splitlines()]
    return [_relative(line) for line in lines if re.search(r"\berror\b", line) and "detected in the comp" not in line]


def _relative(line: str) -> str:
    # Headers are named as the flag -I names their folder.
    return line.replace(f"{paths.kernels()}/", f"{paths.shown(paths.kernels())}/")
