"""The fresh process that a worker of a cluster starts: reads what to do, does it, and writes what came of it.

It reads a pickled function and its arguments from stdin, and writes to the file that its argument names. It ends with
the worker: stdin then closes.
"""

import os
import pickle
import sys
import threading
import traceback
from pathlib import Path
from typing import Any


def main(outcome: Path) -> None:
    """Do what stdin says, and write the value or the exception to `outcome`."""
    work, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    found: Any
    try:
        found = work(*arguments), None
    except BaseException as error:
        error.add_note(traceback.format_exc())
        found = None, error
    draft = outcome.with_suffix(".tmp")
    draft.write_bytes(pickle.dumps(found))
    draft.replace(outcome)


def _end_with_stdin() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
