"""Texts that others wrote, such as the reasons and names of a run: they are data wherever they are printed."""

import re
import unicodedata
from typing import Any

PLAIN = r"[\w .,:;/+()@='%-]*"
"""A name that nothing takes for its own: no Markdown, mathematics, HTML, LaTeX, nor a terminal."""
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
    """A text within a line of Markdown, where it is read as it stands."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))


def printable(text: str) -> str:
    """A text whose characters that move a cursor, reverse a line or can't be encoded are spelled out: ``\\x1b``."""
    if re.sub(r"[\n\t]", "", text).isprintable():
        return text
    return "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    is_plain = character in "\n\t" or character.isprintable() or unicodedata.category(character) == "Zs"
    return character if is_plain else character.encode("unicode_escape").decode()


def is_name(text: str) -> bool:
    """Whether a text may stand in a sentence as it is, see `PLAIN`."""
    return _NAME.fullmatch(text) is not None


def first_odd(content: Any, free: frozenset[str], where: str = "") -> tuple[str, str] | None:
    """The first text in a JSON document that is no name, with its place; texts in fields that are `free` may be any.

    A text in a `free` field is found too if `printable` would spell out a part of it.
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
