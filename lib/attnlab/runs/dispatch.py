"""Dispatch tables: which implementation `attnlab.attend` calls at each shape, by the results of a run on one device."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from attnlab.base import documents, paths
from attnlab.base.errors import UserError
from attnlab.study import tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.shapes import Shape


class OtherPyTorch(UserError):
    """A table was made by a run under another PyTorch than the one that would call what it names."""


class Choice(BaseModel):
    """The implementation to call at one shape.

    Attributes:
        speedup: its speedup over the fallback; `low` and `high` are the ends of the interval.
        source: the hash of the kernel, as `tuning.hashes` gives it; empty if it is none of the hand-written ones.
    """

    AXES: ClassVar[tuple[str, ...]] = Shape.AXES[:8]
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    dtype: str
    kv_heads: int
    kv_len: int
    implementation: str
    speedup: float = Field(gt=0, allow_inf_nan=False)
    low: float = Field(gt=0, allow_inf_nan=False)
    high: float = Field(gt=0, allow_inf_nan=False)
    source: str = ""

    @model_validator(mode="after")
    def _is_of_a_shape(self) -> "Choice":
        try:
            shape = self.shape
        except ValueError as error:
            raise UserError(str(error)) from None
        if not self.low <= self.speedup <= self.high:
            raise UserError(
                f"{shape}: the interval from {self.low:g} to {self.high:g} doesn't hold the speedup of {self.speedup:g}"
            )
        return self

    @property
    def shape(self) -> Shape:
        """The shape that it is for."""
        return Shape(**{axis: getattr(self, axis) for axis in self.AXES})


class Dispatch(BaseModel):
    """The choices by one run on one device."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    version: Literal[1] = 1
    run: str
    seal: str
    device: str
    torch: str
    timing: str
    choices: list[Choice]

    @model_validator(mode="after")
    def _names_no_shape_twice(self) -> "Dispatch":
        for number, choice in enumerate(self.choices):
            if any(choice.shape == earlier.shape for earlier in self.choices[:number]):
                raise UserError(f"{choice.shape} is there twice: leave one")
        return self

    def chosen(self) -> list[Choice]:
        """The choices other than the fallback, without kernels that have changed since."""
        named = [choice for choice in self.choices if choice.implementation != FALLBACK]
        kernels = [choice.implementation for choice in named if choice.source]
        now = tuning.hashes(kernels, self.device) if kernels else {}
        return [choice for choice in named if choice.source == now.get(choice.implementation, "")]


def path(device_name: str) -> Path:
    """The file of the table for a device of this name."""
    return paths.preferred(paths.dispatch() / f"{'-'.join(device_name.lower().split())}.json")


def write(table: Dispatch) -> Path:
    """Write a table to where `attnlab.attend` looks for it on its device; returns the path."""
    return documents.write(path(table.device), table)


def load(source: Path, device_name: str, torch: str | None = None) -> Dispatch:
    """Read a table for use on a device.

    Args:
        torch: the version of PyTorch that will call what the table names; None where none will.

    Raises:
        UserError: the file doesn't exist, can't be read or holds no table; or the table was made on another device.
        OtherPyTorch: it was made by a run under another PyTorch.
    """
    where, command = paths.shown(source), "make dispatch RUN=<run>"
    absent = f"there is no dispatch table {where}: `{command}` writes one"
    table = documents.read(source, Dispatch, "dispatch table", absent, command)
    otherwise = f"where other choices may be right: measure a run here, then `{command}`"
    if table.device != device_name:
        raise UserError(f"{where} was made on {table.device}, and this is {device_name}, {otherwise}")
    if torch is not None and table.torch != torch:
        raise OtherPyTorch(f"{where} was made under PyTorch {table.torch}, and this is {torch}, {otherwise}")
    return table
