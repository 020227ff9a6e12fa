"""The speed of attention as others published it, converted to this project's FLOP count and to shares of each peak.

data/reference/literature.csv holds the numbers as their sources state them; everything else is computed here.
"""

import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from attnlab.base import paths
from attnlab.base.documents import Positive, Size, Words
from attnlab.base.errors import UserError, suggestion
from attnlab.literature import bibliography, tables
from attnlab.literature.bibliography import WEB
from attnlab.literature.datasheets import datasheets
from attnlab.study.shapes import Shape

PATH = paths.REFERENCE / "literature.csv"


class Published(BaseModel, extra="forbid", frozen=True):
    """One number as its source states it; None where the source states nothing.

    Attributes:
        source: key in references.bib.
        device: a device of datasheets.csv.
        value: in `unit`; a "highest throughput" is one that the source says is reached "up to".
        convention: the FLOPs that a throughput counts under a causal mask: ``full`` 4·B·H·S²·D, ``halved`` half of
            that, ``masked`` 2·B·H·S·(S+1)·D.
    """

    source: Words
    place: Words
    url: Annotated[str, Field(pattern=WEB)] = ""
    device: Words
    implementation: Words
    batch: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    seq_len: Size | None = None
    head_dim: Size | None = None
    causal: bool | None = None
    dtype: Literal["float16", "bfloat16"] | None = None
    direction: Literal["forward"]
    quantity: Literal["throughput", "highest throughput", "latency"]
    value: Positive
    unit: Literal["TFLOP/s", "ms"]
    convention: Literal["full", "halved", "masked"] | None = None
    read_from: Literal["table", "text", "label on figure", "plot"]
    note: str = ""

    @property
    def shape(self) -> Shape | None:
        """Its shape; None where an axis other than the dtype is not stated. A dtype not stated is taken as float16."""
        sizes = (self.batch, self.heads, self.seq_len, self.head_dim)
        if self.causal is None or None in sizes:
            return None
        batch, heads, seq_len, head_dim = (size or 0 for size in sizes)
        return Shape(batch, heads, seq_len, head_dim, self.causal, self.dtype or "float16", self.kv_heads or 0)

    @property
    def throughput_tflops(self) -> float:
        """In TFLOP/s over the scores under the mask; unconverted where the source does not say what it counts.

        NaN for a latency without a complete shape.
        """
        if self.quantity == "latency":
            return self.shape.flops / self.value / 1e9 if self.shape else math.nan
        if not self.causal or self.seq_len is None or self.convention is None:
            return self.value
        return self.value * masked_over(self.convention, self.seq_len)

    @property
    def share_pct(self) -> float:
        return 100 * self.throughput_tflops / peak_tflops(self.device)

    @property
    def is_above_peak(self) -> bool:
        return self.share_pct > 100

    @property
    def axes(self) -> str:
        """Its shape in words, as far as the source states it."""
        if self.shape:
            words = self.shape.label
            return words if self.dtype else words.replace(self.shape.dtype, "dtype not stated")
        stated = {"B": self.batch, "H": self.heads, "S": self.seq_len, "D": self.head_dim}
        known = " ".join(f"{name}={size}" for name, size in stated.items() if size)
        return known + ", mask not stated" * (self.causal is None) if known else "not stated"


def masked_over(convention: str, seq_len: int) -> float:
    """FLOPs of the causal scores under the mask, S·(S+1)/2 for each head, over those counted by a convention."""
    return {"full": (seq_len + 1) / (2 * seq_len), "halved": (seq_len + 1) / seq_len, "masked": 1.0}[convention]


@cache
def published(path: Path = PATH) -> list[Published]:
    """Every transcribed number, in the order of the file.

    Raises UserError where a row can't be read, has no source, or names an unknown source, device or unit; the message
    is one line that names file and line.
    """
    found = []
    for place, number in tables.read(path, Published):
        if number.unit != ("ms" if number.quantity == "latency" else "TFLOP/s"):
            raise UserError(f"{place}: a {number.quantity} is not in {number.unit}")
        for column, file, known in (
            ("source", "references.bib", list(bibliography.load())),
            ("device", "datasheets.csv", list(_peaks())),
        ):
            if (name := getattr(number, column)) not in known:
                raise UserError(f"{place}: the {column} {name!r} is not in {file}{suggestion(name, known)}")
        found.append(number)
    return found


def peak_tflops(device: str) -> float:
    """Peak of dense FP16 or BF16 products with FP32 accumulation, by the device's datasheet."""
    return _peaks()[device]


@cache
def _peaks() -> dict[str, float]:
    return datasheets().set_index("device")["matmul_float16_tflops"].astype(float).to_dict()


def by_device(numbers: Iterable[Published]) -> list[Published]:
    """In the order of the datasheets, then of the implementations' names."""
    devices = list(_peaks())
    return sorted(numbers, key=lambda number: (devices.index(number.device), number.implementation))


def highest(numbers: Iterable[Published], *fields: str) -> list[Published]:
    """The number with the highest share of its peak for each combination of some fields, in the order `by_device`."""
    best: dict[tuple[object, ...], Published] = {}
    for number in by_device(numbers):
        key = tuple(getattr(number, field) for field in fields)
        if key not in best or number.share_pct > best[key].share_pct:
            best[key] = number
    return list(best.values())
