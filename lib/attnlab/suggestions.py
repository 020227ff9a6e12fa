"""What a user may have meant by a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error message, ``; did you mean 'samples'?``, or nothing where no known name comes near."""
    return "".join(f"; did you mean {match!r}?" for match in get_close_matches(word, known, n=1))
