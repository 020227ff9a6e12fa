"""The process that started this one."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, however it did."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
