"""What is wrong with a file that a user wrote, in words that point at the place."""

from collections.abc import Collection

from pydantic import ValidationError

from attnlab.suggestions import suggestion


def first_problem(error: ValidationError, fields: Collection[str]) -> str:
    """The first thing that a model with these fields found wrong."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        if len(problem["loc"]) > 1:  # not one of these fields, but inside of one
            return f"unknown field {field!r}: leave it out"
        near = suggestion(str(problem["loc"][-1]), fields)
        return f"unknown field {field!r}; fields are {', '.join(fields)}{near}"
    if problem["type"] == "missing":
        return f"the field {field!r} is missing"
    what = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, not {problem['input']!r}"
    return f"{field}: {what}" if field else what  # no field where it is the whole that is wrong
