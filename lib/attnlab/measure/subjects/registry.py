"""Every implementation by its name, callable, and functions of a user's own as implementations."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from textwrap import shorten

import torch

from attnlab.base import paths
from attnlab.base.errors import UserError, suggestion
from attnlab.measure.fp8 import subjects as fp8
from attnlab.measure.instruments import environment
from attnlab.measure.peers import subjects as peers
from attnlab.measure.subjects import attend, best
from attnlab.measure.subjects.implementation import (
    Broken,
    Implementation,
    OutOfMemory,
    Unsupported,
    ran_out_of_memory,
)
from attnlab.measure.subjects.sdpa import REGISTRY
from attnlab.study import callables, implementations
from attnlab.study.ladder import PREFIX

LONGEST_REASON = 300
"""The most characters of what a function of a user's own said."""
_OTHERS = {other.name: other for other in (*peers.PEERS, *fp8.SUBJECTS, attend.DISPATCHED)}


def find(name: str) -> Implementation:
    """The implementation that a run calls `name`: one that a study names, or the control of its baseline.

    Raises:
        UserError: it is a rung that the ladder does not have, or a function of one's own that can't be called.
    """
    if implementations.is_control(name):
        return replace(find(implementations.under_control(name)), name=name)
    if name.startswith(callables.PREFIX):
        return _own(name)
    known = REGISTRY | _OTHERS
    return best.implementation(name) if name.startswith(PREFIX) and name not in known else known[name]


def _own(name: str) -> Implementation:
    """The function of a user's own that a study calls ``python.<module>.<function>``.

    Raises:
        UserError: it is not there, is no function, or doesn't take ``(q, k, v, causal, scale)``.
    """
    module, function = callables.parts(name)
    where = f"{name}: {paths.shown(callables.file(name))}"
    try:
        with _settings_kept():
            there = vars(import_module(module))
    except (Exception, SystemExit) as error:
        raise UserError(f"{where} can't be imported: {_short(f'{type(error).__name__}: {error}')}") from None
    if function not in there:
        raise UserError(f"{where} has no {function!r}{suggestion(function, there)}")
    if not callable(call := there[function]):
        raise UserError(f"{where}: {function!r} is of type {type(call).__name__}, and no function")
    with suppress(ValueError):  # what is not written in Python may state no signature
        takes = signature(call)
        try:
            takes.bind("q", "k", "v", False, scale=None)
        except TypeError:
            raise UserError(f"{where}: {function}{takes} has to take (q, k, v, causal, scale)") from None
    return Implementation(name, partial(call, scale=None), _explained)


@contextmanager
def _explained() -> Iterator[None]:
    """Inside, a function of a user's own is called: what it raises is a reason, and ends nothing but its case.

    Raises:
        Unsupported: it raised NotImplementedError or ValueError.
        Broken: it raised another error, or changed a setting of torch that is locked, which is undone.
    """
    try:
        with _settings_kept() as changed:
            yield
    except (Unsupported, OutOfMemory, Broken, MemoryError, torch.AcceleratorError):
        raise
    except (NotImplementedError, ValueError) as error:
        raise Unsupported(_short(str(error) or type(error).__name__)) from None
    except (Exception, SystemExit) as error:
        if isinstance(error, RuntimeError) and ran_out_of_memory(error):
            raise
        raise Broken(_short(f"{type(error).__name__}: {error}")) from None
    if changed:
        raise Broken(f"changed settings of torch: {', '.join(changed)}")


@contextmanager
def _settings_kept() -> Iterator[list[str]]:
    """Undo what is changed inside of the settings that are locked; afterwards, the list holds their names."""
    changed: list[str] = []
    before = environment.settings()
    try:
        yield changed
    finally:
        changed += [name for name, value in environment.settings().items() if value != before[name]]
        if changed:
            environment.lock()


def _short(words: str) -> str:
    return shorten(words, LONGEST_REASON, placeholder=" …")
