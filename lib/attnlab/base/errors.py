"""Errors that a user can correct, each explained in one line."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from attnlab.base.texts import printable

MOST_SHOWN = 200
"""The most characters of a wrong value that a message shows."""
LONGEST = 4_000
"""The most characters of a message; from the middle of a longer one, the rest is left out."""


class UserError(Exception):
    """Bad input, or a bad state of the machine. The message is one line that states the remedy.

    The command line prints it without a traceback and exits with `status`; a notebook shows it without a traceback too.
    """

    status = 1

    def __str__(self) -> str:
        said = printable(super().__str__())  # it may quote untrusted text, of any length
        return said if len(said) <= LONGEST else f"{said[: LONGEST // 2]} … {said[-LONGEST // 2 :]}"

    def _render_traceback_(self) -> list[str]:
        # IPython calls this to find out how to show an exception.
        return [f"{type(self).__name__}: {self}"]


class Interrupted(UserError):
    """The user pressed Ctrl-C, or SIGTERM came. All recorded data is kept."""

    status = 130


class Slower(UserError):
    """A run is slower than an earlier run, and the user asked for a failure in that case."""

    status = 3


class Outdated(UserError):
    """An interrupted run can't continue: its environment, kernels or dispatch table have changed since it began."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error message, ``; did you mean 'samples'?``; empty if no known name is similar."""
    return "".join(f"; did you mean {match!r}?" for match in get_close_matches(word, known, n=1))


def first_problem(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """The first problem that a model with these fields found, in words; unknown fields come first."""
    # A misspelt field is reported as missing too.
    problem = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *outer, last = problem["loc"]
        for name in outer:
            fields = _fields_within(fields[name].annotation) if isinstance(name, str) and name in fields else fields
        return f"unknown field {field!r}; fields are {', '.join(fields)}{suggestion(str(last), fields)}"
    if problem["type"] == "missing":
        return f"the field {field!r} is missing"
    expected = problem["msg"].partition(" after validation")[0]  # the rest is the number of items
    stated = repr(problem["input"])
    stated = stated if len(stated) <= MOST_SHOWN else f"{stated[:MOST_SHOWN]} …"
    what = f"{expected[0].lower()}{expected[1:]}, not {stated}"
    return f"{field}: {what}" if field else what  # no field if the model as a whole is wrong


def _fields_within(annotation: Any) -> Mapping[str, FieldInfo]:
    """The fields of the model that a field holds, alone or in a list or mapping; none if it holds no model."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields
    return next(filter(None, map(_fields_within, get_args(annotation))), {})
