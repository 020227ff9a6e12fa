"""Pydantic models of inputs and records: shared types, validation, and JSON files with one model each."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from attnlab.base import paths
from attnlab.base.errors import UserError, first_problem
from attnlab.base.files import write_atomically

Model = TypeVar("Model", bound=BaseModel)
Size = Annotated[int, Field(ge=1, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Words = Annotated[str, Field(min_length=1)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def validated(model: type[Model], stated: Any, where: str = "", context: Any = None, advice: str = "") -> Model:
    """Validate input as a model, whose validators get the `context`.

    Raises UserError: a field is invalid; the line begins with `where`, the source of the input, and ends with `advice`.
    """
    try:
        return model.model_validate(stated, context=context)
    except UserError as error:
        said = str(error)
    except ValidationError as error:
        said = first_problem(error, model.model_fields)
    raise UserError(f"{where}{': ' if where else ''}{said}{advice}")


def write(path: Path, held: BaseModel) -> Path:
    """Write a model to a file, or to the user's own version of an installed one; returns the path that was written."""
    path = paths.users(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # One line for each field and each list entry, so that diffs are short.
    fields = ",\n".join(f" {_json(name)}: {_lines(value)}" for name, value in held.model_dump(mode="json").items())
    write_atomically(path, f"{{\n{fields}\n}}\n".encode())
    return path


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _json(value)
    entries = ",\n".join(f"  {_json(entry)}" for entry in value)
    return f"[\n{entries}\n ]"


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def read(path: Path, model: type[Model], kind: str, absent: str, command: str) -> Model:
    """Read a model from a file, which messages call a `kind` that `command` writes, such as ``dispatch table``.

    Raises UserError: the file doesn't exist, for which `absent` is the whole message; can't be read; or isn't a model.
    """
    where = paths.shown(path)
    try:
        stated = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(absent) from None
    except OSError as error:
        raise UserError(f"{where} can't be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{where} is no {kind}: `{command}` writes one") from None
    return validated(model, stated, f"{where} is no {kind}")


def digest(content: Any) -> str:
    """SHA-256 of a value that JSON can represent, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
