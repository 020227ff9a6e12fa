"""JSON files that hold one pydantic model each, such as dispatch tables and tunings."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from attnlab.base import paths
from attnlab.base.errors import UserError, first_problem
from attnlab.base.files import write_atomically

Model = TypeVar("Model", bound=BaseModel)


def write(path: Path, held: BaseModel) -> Path:
    """Write a model to a file, or to the user's own version of an installed one; returns the path that was written."""
    path = paths.users(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (held.model_dump_json(indent=1) + "\n").encode())
    return path


def read(path: Path, model: type[Model], kind: str, absent: str, command: str) -> Model:
    """Read a model from a file.

    Args:
        kind: what the file should hold, as ``dispatch table``.
        absent: the whole message if there is no such file.
        command: what writes one.

    Raises:
        UserError: there is no such file, it can't be read, or holds something else.
    """
    where = paths.shown(path)
    try:
        return model.model_validate(json.loads(path.read_text()))
    except FileNotFoundError:
        raise UserError(absent) from None
    except OSError as error:
        raise UserError(f"{where} can't be read: {error.strerror}") from None
    except (UserError, ValidationError) as error:
        said = error if isinstance(error, UserError) else first_problem(error, model.model_fields)
        raise UserError(f"{where} is no {kind}: {said}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{where} is no {kind}: `{command}` writes one") from None
