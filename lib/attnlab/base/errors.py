"""Errors that a user can correct, each explained in one line."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from pydantic import ValidationError

MOST_SHOWN = 200
"""The most characters of a wrong value that a message shows."""


class UserError(Exception):
    """Bad input, or a bad state of the machine. The message is one line that says what to do.

    The command line prints it without a traceback and exits with 1; a notebook shows it without a traceback too.
    """

    def _render_traceback_(self) -> list[str]:
        # IPython calls this to find out how to show an exception.
        return [f"{type(self).__name__}: {self}"]


class Interrupted(UserError):
    """The user pressed Ctrl-C. What was recorded is kept."""


class Outdated(UserError):
    """A run that was cut off can't go on: it began in another environment, with other kernels or another table."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error message, ``; did you mean 'samples'?``; empty if no known name is similar."""
    return "".join(f"; did you mean {match!r}?" for match in get_close_matches(word, known, n=1))


def first_problem(error: ValidationError, fields: Collection[str]) -> str:
    """The first problem that a model with these fields found, in words."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        if len(problem["loc"]) > 1:  # not one of these fields, but inside one of them
            return f"unknown field {field!r}: leave it out"
        near = suggestion(str(problem["loc"][-1]), fields)
        return f"unknown field {field!r}; fields are {', '.join(fields)}{near}"
    if problem["type"] == "missing":
        return f"the field {field!r} is missing"
    expected = problem["msg"].partition(" after validation")[0]  # it goes on with the number of items
    stated = repr(problem["input"])
    stated = stated if len(stated) <= MOST_SHOWN else f"{stated[:MOST_SHOWN]} …"
    what = f"{expected[0].lower()}{expected[1:]}, not {stated}"
    return f"{field}: {what}" if field else what  # no field if the model as a whole is wrong
