"""Find an implementation by its name, and make implementations of users' functions."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, cast

from attnlab.base import paths
from attnlab.base.errors import UserError, suggestion
from attnlab.measuring.fp8 import subjects as fp8
from attnlab.measuring.instruments import environment
from attnlab.measuring.kernels import best
from attnlab.measuring.subjects.implementation import (
    Broken,
    Implementation,
    OutOfMemory,
    Unsupported,
    fatal,
    raised,
    ran_out_of_memory,
    short,
)
from attnlab.measuring.subjects.sdpa import REGISTRY
from attnlab.measuring.watch import Spoiled
from attnlab.study import callables, implementations
from attnlab.study.ladder import PREFIX

PUT_BACK: dict[str, list[str]] = {}
"""By user's function, the settings of torch that its import changed, and that were restored."""
_KNOWN = REGISTRY | {subject.name: subject for subject in fp8.SUBJECTS}


def find(name: str) -> Implementation:
    """The implementation that a run calls `name`: one that a study names, or the control of its baseline.

    Raises UserError: the name is that of a kernel that the ladder lacks, or of a user's function that can't be called.
    """
    if implementations.is_control(name):
        return replace(find(implementations.under_control(name)), name=name)
    if name.startswith(callables.PREFIX):
        return _own(name)
    if name == implementations.DISPATCH:  # imported late: serving imports this package
        return Implementation(name, import_module("attnlab.serving.attend").attend)
    if name in implementations.PEERS:
        module, _, variant = name.removeprefix("peer.").partition("_")
        found = vars(import_module(f"attnlab.measuring.peers.{module}"))
        return cast(Implementation, found[variant.upper() or "IMPLEMENTATION"])
    return _KNOWN[name] if name in _KNOWN or not name.startswith(PREFIX) else best.implementation(name)


def _own(name: str) -> Implementation:
    """The user's function that a study calls ``python.<module>.<function>``.

    Raises UserError: it doesn't exist, isn't a function, or doesn't take ``(q, k, v, causal, scale)``.
    """
    _, function = callables.parts(name)
    where = f"{name}: {paths.shown(callables.file(name))}"
    try:
        with environment.kept() as changed:
            there = vars(callables.imported(name))
    except BaseException as error:  # Ctrl-C ends this process without an exception
        if isinstance(error, Spoiled):
            raise
        raise UserError(f"{where} can't be imported: {raised(error)}") from None
    PUT_BACK.setdefault(name, changed)
    if function not in there:
        raise UserError(f"{where} has no {function!r}{suggestion(function, there)}")
    return of_function(name, there[function], f"{where}: {function}")


def of_function(name: str, call: Any, where: str) -> Implementation:
    """Make the implementation `name` of a user's function or an object of `handles`.

    Raises:
        UserError: it isn't a function, or doesn't take ``(q, k, v, causal, scale)``; the message begins with `where`.
    """
    if made := getattr(call, "implementation", None):
        return replace(made(), name=name)
    if not callable(call):
        raise UserError(f"{where} is of type {type(call).__name__}, and no function")
    with suppress(ValueError):  # a function that is not written in Python may state no signature
        takes = signature(call)
        try:
            takes.bind("q", "k", "v", False, scale=None)
        except TypeError:
            raise UserError(f"{where}{takes} has to take (q, k, v, causal, scale)") from None
    return Implementation(name, partial(call, scale=None), _explained)


@contextmanager
def _explained() -> Iterator[None]:
    """A context for calls of a user's function, whose errors become reasons and end only its case.

    Raises:
        Unsupported: it raised NotImplementedError or ValueError.
        Broken: it raised another error, or changed a setting of torch that is locked, which is undone.
    """
    try:
        with environment.kept() as changed:
            yield
    except (Unsupported, OutOfMemory, Broken, MemoryError):
        raise
    except (NotImplementedError, ValueError) as error:
        raise Unsupported(short(str(error) or type(error).__name__)) from None
    except BaseException as error:
        if fatal(error) or (isinstance(error, RuntimeError) and ran_out_of_memory(error)):
            raise
        raise Broken(raised(error)) from None
    if changed:
        raise Broken(f"changed settings of torch: {', '.join(changed)}")
