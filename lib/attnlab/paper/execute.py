"""Checks the parameters given to a notebook and executes it."""

import logging
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from attnlab.base.errors import UserError, suggestion
from attnlab.base.paths import shown

KERNEL = "nbclient"
"""Papermill's engine that executes a notebook in a Jupyter kernel, as JupyterLab does."""
_ACCEPTED: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


def parameters(notebook: Path) -> dict[str, Any]:
    """The parameters of a notebook by name, as papermill infers them: type, default and comment as they are written.

    Raises:
        UserError: the notebook has no cell tagged ``parameters``, or that cell sets nothing.
    """
    if found := papermill.inspect_notebook(str(notebook)):
        return found
    raise UserError(f"{notebook.stem} has no parameters; tag the cell that sets them 'parameters'")


def check(notebook: Path, values: Mapping[str, object]) -> None:
    """Check parameters against those of a notebook.

    Raises:
        UserError: the notebook has no parameter of this name, or states another type for it.
    """
    known = parameters(notebook)
    for name, value in values.items():
        if name not in known:
            has = f"it has {', '.join(known)}{suggestion(name, known)}"
            raise UserError(f"{notebook.stem} has no parameter {name!r}; {has}")
        stated = known[name]["inferred_type_name"]
        if stated in _ACCEPTED and type(value) not in _ACCEPTED[stated]:
            raise UserError(f"{notebook.stem}: {name} must be {stated}, not {value!r} ({type(value).__name__})")


def shown_run(notebook: Path, values: Mapping[str, object]) -> dict[str, str]:
    """What a notebook says to `select_run.exhibits` if it is given these values; empty where it shows no run."""
    cells = nbformat.read(notebook, as_version=4).cells
    if not any(cell.cell_type == "code" and "select_run.exhibits(run, study, device)" in cell.source for cell in cells):
        return {}
    known = parameters(notebook)
    return {name: str(values.get(name, literal_eval(known[name]["default"]))) for name in ("run", "study", "device")}


def execute(notebook: Path, output: Path, values: Mapping[str, object], cwd: Path, engine: str) -> None:
    """Check parameters, then execute a notebook with them in the folder `cwd`.

    The executed notebook is written to `output`, as far as it was executed if a cell fails.

    Args:
        engine: the name of papermill's engine: `KERNEL`, or `attnlab.paper.engine.NAME` for this process.

    Raises:
        UserError: as for `check`, or a cell failed, or the kernel died.
    """
    check(notebook, values)
    output.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    try:
        papermill.execute_notebook(
            notebook,
            output,
            dict(values),
            engine_name=engine,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            log_output=False,
            extra_arguments=["--log-level=CRITICAL"],
            cwd=str(cwd),
            # Only a kernel can die without a word, which then tells how far it came; to save takes long.
            request_save_on_cell_execute=engine == KERNEL,
        )
    except PapermillExecutionError as error:
        reason = f"{error.ename}: {error.evalue}".splitlines()[0].rstrip(": ")
        raise _failure(notebook, output, error.cell_index - bool(values), reason) from error
    except DeadKernelError as error:
        raise _failure(notebook, output, _last_started(output) - bool(values), "the kernel died") from error


def _last_started(output: Path) -> int:
    cells = nbformat.read(output, as_version=4).cells
    return max(index for index, cell in enumerate(cells) if cell.metadata.papermill.start_time)


def _failure(notebook: Path, output: Path, index: int, reason: str) -> UserError:
    """The error for a cell; `index` counts the notebook's own cells from 0, the message counts from 1."""
    return UserError(f"{notebook.name}, cell {index + 1}: {reason}; what was executed is kept in {shown(output)}")
