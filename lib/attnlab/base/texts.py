"""Untrusted texts, such as the names and reasons in a run: when printed, they must have no effect as markup."""

import re
import unicodedata
from typing import Any

PLAIN = r"[\w .,:;/+()@='%-]*"
"""A name without special meaning in Markdown, mathematics, HTML, LaTeX or a terminal."""
_NAME = re.compile(rf"(?!.*(?://|\bwww\.)){PLAIN}")
_MARKDOWN = re.compile(
    r"""[\\`*$]                            # escapes, code, emphasis, mathematics
    | (?<![^\W_])_ | _(?![^\W_])           # emphasis that doesn't begin or end within a word
    | \](?=[(\[:])                         # links
    | <(?=[A-Za-z/!?]) | &(?=\#|\w+;)      # HTML
    | :(?=//) | (?<=\bwww)\.               # addresses that become links by themselves
    | ~(?=~) | (?<=~)~""",
    re.VERBOSE | re.ASCII,
)


def escaped(text: str) -> str:
    """Escape a text for use in a line of Markdown, which then shows it literally."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


def printable(text: str) -> str:
    """Spell out characters that move a cursor, reverse a line or can't be encoded, e.g. as ``\\x1b``."""
    if re.sub(r"[\n\t]", "", text).isprintable():
        return text
    return "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    is_plain = character in "\n\t" or character.isprintable() or unicodedata.category(character) == "Zs"
    return character if is_plain else character.encode("unicode_escape").decode()


def is_name(text: str) -> bool:
    """Whether a text is safe in a sentence without escapes, see `PLAIN`."""
    return _NAME.fullmatch(text) is not None


def first_odd(content: Any, free: frozenset[str], where: str = "") -> tuple[str, str] | None:
    """The place and the first text in a JSON document that is no name; fields in `free` may have any text.

    A text in a `free` field is found too if `printable` would change it.
    """
    if isinstance(content, str):
        is_free = where.rpartition(".")[2] in free
        return None if (printable(content) == content if is_free else is_name(content)) else (where, content)
    each = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in each:
        if isinstance(key, str) and not is_name(key):
            return where, key
        if found := first_odd(value, free, f"{where}.{key}".lstrip(".")):
            return found
    return None
