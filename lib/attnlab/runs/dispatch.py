"""Dispatch tables: which implementation `attnlab.attend` calls at each shape, by the results of a run on one device."""

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnlab.base import paths
from attnlab.base.errors import UserError, first_problem
from attnlab.base.files import write_atomically
from attnlab.study import ladder
from attnlab.study.implementations import FALLBACK
from attnlab.study.shapes import Shape


class Choice(BaseModel):
    """The implementation to call at one shape.

    Attributes:
        speedup: its speedup over the fallback; `low` and `high` are the ends of the interval.
        source: the hash of the kernel, if it is a rung of the ladder.
    """

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
        axes = ("batch", "heads", "seq_len", "head_dim", "causal", "dtype", "kv_heads", "kv_len")
        return Shape(**{axis: getattr(self, axis) for axis in axes})


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
        now = ladder.hashes() if any(choice.source for choice in named) else {}
        return [choice for choice in named if choice.source == now.get(choice.implementation, "")]


def path(device_name: str) -> Path:
    """The file of the table for a device of this name."""
    return paths.data() / "dispatch" / f"{'-'.join(device_name.lower().split())}.json"


def write(table: Dispatch) -> Path:
    """Write a table to where `attnlab.attend` looks for it on its device; returns the path."""
    target = path(table.device)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, (table.model_dump_json(indent=1) + "\n").encode())
    return target


def load(source: Path, device_name: str, torch: str | None = None) -> Dispatch:
    """Read a table for use on a device.

    Args:
        torch: the version of PyTorch that will call what the table names; None where none will.

    Raises:
        UserError: the file doesn't exist, can't be read or holds no table; or the table was made on another device, or
            by a run under another PyTorch.
    """
    where = paths.shown(source)
    try:
        table = Dispatch.model_validate(json.loads(source.read_text()))
    except FileNotFoundError:
        raise UserError(f"there is no dispatch table {where}: `make dispatch RUN=<run>` writes one") from None
    except OSError as error:
        raise UserError(f"{where} can't be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{where} is no dispatch table: {error}") from None
    except ValidationError as error:
        raise UserError(f"{where} is no dispatch table: {first_problem(error, Dispatch.model_fields)}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{where} is no dispatch table: `make dispatch RUN=<run>` writes one") from None
    if table.device != device_name:
        raise UserError(
            f"{where} was made on {table.device}, and this is {device_name}, where other choices may be right: "
            "measure a run here, then `make dispatch RUN=<run>`"
        )
    if torch is not None and table.torch != torch:
        raise UserError(
            f"{where} was made under PyTorch {table.torch}, and this is {torch}, where other choices may be right: "
            "measure a run here, then `make dispatch RUN=<run>`"
        )
    return table
