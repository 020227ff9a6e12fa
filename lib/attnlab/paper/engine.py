"""Executes the cells of a notebook in this process, as papermill's engine `NAME`.

Nothing is started and nothing is carried: what one notebook imported and inferred, the next one finds in memory.
"""

import atexit
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from nbformat import NotebookNode, v4
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines
from traitlets import Type
from traitlets.config import Config

from attnlab.base.parent import raise_if_interrupted

NAME = "attnlab"
_CONFIG = Config({"HistoryManager": {"enabled": False}})


class _Hook(DisplayHook):
    """Adds the value of a cell's last expression to the cell's outputs."""

    def write_output_prompt(self) -> None:
        """Nothing: the output holds the number."""

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        """Add the value, in every format that it has."""
        shown = {"data": format_dict, "metadata": md_dict or {}, "execution_count": self.prompt_count}
        assert self.shell is not None
        self.shell.outputs.append(v4.new_output("execute_result", **shown))

    def log_output(self, format_dict: dict[str, Any]) -> None:
        """Nothing: the output is kept in its cell."""


class _Publisher(DisplayPublisher):
    """Adds what a cell displays to the cell's outputs."""

    def publish(self, data: dict[str, Any], metadata: dict[str, Any] | None = None, *_: Any, **__: Any) -> None:
        """Add it, in every format that it has."""
        self.shell.outputs.append(v4.new_output("display_data", data=data, metadata=metadata or {}))


class _Stream(io.TextIOBase):
    """Adds what a cell writes to one of its streams to the cell's outputs."""

    def __init__(self, shell: "_Shell", name: str) -> None:
        self._shell, self._name = shell, name

    def write(self, text: str) -> int:
        """Add a text; texts that follow one another are one output."""
        last = self._shell.outputs[-1] if self._shell.outputs else None
        if last is not None and last.get("name") == self._name:
            last.text += text
        elif text:
            self._shell.outputs.append(v4.new_output("stream", name=self._name, text=text))
        return len(text)


class _Shell(InteractiveShell):
    """A shell with a namespace of its own; `outputs` are those of the cell that runs."""

    displayhook_class = Type(_Hook)
    display_pub_class = Type(_Publisher)
    outputs: list[NotebookNode]

    def showtraceback(self, *arguments: Any, **named: Any) -> None:
        """Add the error to the cell's outputs; Ctrl-C is none, and formatting it would take a while."""
        if not isinstance(sys.exception(), KeyboardInterrupt):
            super().showtraceback(*arguments, **named)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        self.outputs.append(v4.new_output("error", ename=etype.__name__, evalue=str(evalue), traceback=stb))


class InProcess(Engine):
    """Papermill's engine that starts no kernel."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: NotebookExecutionManager, kernel_name: str, **_: Any) -> None:
        """Execute the cells, until one fails."""
        with _fresh_shell() as shell:
            for index, cell in enumerate(nb_man.nb.cells):
                nb_man.cell_start(cell, index)
                try:
                    failed = cell.cell_type == "code" and cell.source.strip() and _fails(shell, cell)
                    if failed:
                        nb_man.cell_exception(cell, index)
                        return
                finally:
                    nb_man.cell_complete(cell, index)


def _fails(shell: _Shell, cell: NotebookNode) -> bool:
    """Run a cell; returns whether it failed.

    Raises:
        KeyboardInterrupt: as in any other code of this process.
    """
    shell.outputs = cell.outputs
    cell.execution_count = shell.execution_count
    with redirect_stdout(_Stream(shell, "stdout")), redirect_stderr(_Stream(shell, "stderr")):
        result = shell.run_cell(cell.source, store_history=True)
    if isinstance(result.error_in_exec, KeyboardInterrupt):
        raise result.error_in_exec
    raise_if_interrupted()
    return not result.success


@contextmanager
def _fresh_shell() -> Iterator[_Shell]:
    """A shell that leaves this process as it was: its main module, its streams, and matplotlib's settings."""
    matplotlib.use("agg")
    shell = _Shell.instance(config=_CONFIG)
    try:
        with matplotlib.rc_context():
            yield shell
    finally:
        plt.close("all")
        shell.restore_sys_module_state()
        _Shell.clear_instance()
        atexit.unregister(shell.atexit_operations)


papermill_engines.register(NAME, InProcess)
