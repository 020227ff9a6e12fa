"""What others published on attention's speed, brought to this project's count of work and to each device's own peak.

The numbers stand in data/reference/literature.csv as they were stated, each with its source; whatever else is said of
them is computed.
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attnlab import paths
from attnlab.analyse import formats, references
from attnlab.analyse.results import Results
from attnlab.analyse.roofline import datasheets
from attnlab.errors import UserError
from attnlab.shapes import Shape
from attnlab.suggestions import suggestion
from attnlab.validation import first_problem

PATH = paths.REFERENCE / "literature.csv"
COUNTERPARTS = {
    "FlashAttention-2": "sdpa.flash",
    "FlashAttention-4": "peer.flash4",
    "PyTorch SDPA, efficient": "sdpa.efficient",
    "PyTorch SDPA, flash": "sdpa.flash",
    "cuDNN": "sdpa.cudnn",
}
"""What a run calls the same algorithm; its version may be another."""
Name = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(gt=0)]


class Published(BaseModel):
    """One number as its source states it; None is what the source does not say.

    Attributes:
        source: key in references.bib.
        device: a device of datasheets.csv.
        value: in `unit`; "highest throughput" is what a source says it reaches "up to".
        convention: the FLOPs that a throughput counts under a causal mask: ``full`` 4·B·H·S²·D, ``halved`` half of
            that, ``masked`` 2·B·H·S·(S+1)·D.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Name
    place: Name
    url: str = ""
    device: Name
    implementation: Name
    batch: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    seq_len: Size | None = None
    head_dim: Size | None = None
    causal: bool | None = None
    dtype: Literal["float16", "bfloat16"] | None = None
    direction: Literal["forward"]
    quantity: Literal["throughput", "highest throughput", "latency"]
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    unit: Literal["TFLOP/s", "ms"]
    convention: Literal["full", "halved", "masked"] | None = None
    read_from: Literal["table", "text", "label on figure", "plot"]
    note: str = ""

    @property
    def shape(self) -> Shape | None:
        """Its shape, None where a part of it is not stated; a dtype that isn't is taken for float16."""
        sizes = (self.batch, self.heads, self.seq_len, self.head_dim)
        if self.causal is None or None in sizes:
            return None
        batch, heads, seq_len, head_dim = (size or 0 for size in sizes)
        return Shape(batch, heads, seq_len, head_dim, self.causal, self.dtype or "float16", self.kv_heads or 0)

    @property
    def throughput_tflops(self) -> float:
        """In TFLOP/s of the scores under the mask; as stated where the source leaves open what to convert.

        NaN for a latency without a whole shape.
        """
        if self.quantity == "latency":
            return self.shape.flops / self.value / 1e9 if self.shape else math.nan
        if not self.causal or self.seq_len is None or self.convention is None:
            return self.value
        return self.value * masked_over(self.convention, self.seq_len)

    @property
    def share_pct(self) -> float:
        """Of the dense peak that the device's datasheet states."""
        return 100 * self.throughput_tflops / peak_tflops(self.device)

    @property
    def is_above_peak(self) -> bool:
        """Whether it is more than the device can do."""
        return self.share_pct > 100

    @property
    def axes(self) -> str:
        """Its shape in words, as far as it is stated."""
        if self.shape:
            words = formats.shape(self.shape)
            return words if self.dtype else words.replace(self.shape.dtype, "dtype not stated")
        stated = {"B": self.batch, "H": self.heads, "S": self.seq_len, "D": self.head_dim}
        known = " ".join(f"{name}={size}" for name, size in stated.items() if size)
        return known + ", mask not stated" * (self.causal is None) if known else "not stated"


@dataclass(frozen=True)
class Here:
    """What a run has beside a published number: the nearest shape of the same head_dim and mask.

    Attributes:
        name: the implementation, the number's counterpart or else the fastest.
        datasheet_pct, measured_pct: shares of the dense peak that the datasheet states, and of the matrix product that
            the run measured; NaN where there is none.
    """

    name: str
    shape: Shape
    throughput_tflops: float
    datasheet_pct: float
    measured_pct: float


def masked_over(convention: str, seq_len: int) -> float:
    """FLOPs of the causal scores under the mask, S·(S+1)/2 for each head, over those that a convention counts."""
    return {"full": (seq_len + 1) / (2 * seq_len), "halved": (seq_len + 1) / seq_len, "masked": 1.0}[convention]


@cache
def published(path: Path = PATH) -> list[Published]:
    """Every number that was transcribed, in the order of the file.

    Raises:
        UserError: a row that can't be read, has no source, or names a source, a device or a unit that is not known; one
            line that names the file and the line.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        return [_row(row, f"{paths.shown(path)}, line {reader.line_num}") for row in reader]


def _row(row: dict[str | None, str], where: str) -> Published:
    if None in row:
        raise UserError(f"{where}: it has more cells than there are columns")
    stated = {column: cell for column, cell in row.items() if cell}
    try:
        number = Published.model_validate(stated)
    except ValidationError as error:
        raise UserError(f"{where}: {first_problem(error, Published.model_fields)}") from None
    if number.unit != ("ms" if number.quantity == "latency" else "TFLOP/s"):
        raise UserError(f"{where}: a {number.quantity} is not in {number.unit}")
    for column, name, known in (
        ("source", number.source, list(references.load())),
        ("device", number.device, list(_peaks())),
    ):
        if name not in known:
            file = "references.bib" if column == "source" else "datasheets.csv"
            raise UserError(f"{where}: the {column} {name!r} is not in {file}{suggestion(name, known)}")
    return number


def peak_tflops(device: str) -> float:
    """Dense FP16 or BF16 products with FP32 accumulation, as the device's datasheet states them."""
    return _peaks()[device]


@cache
def _peaks() -> dict[str, float]:
    return datasheets().set_index("device")["matmul_float16_tflops"].astype(float).to_dict()


def here(results: Results, number: Published) -> Here | None:
    """What this run has beside a published number, None where no case has its head_dim and mask.

    Near is, in this order: the sequence length by its ratio, the heads of the whole batch and the batch by theirs, how
    many heads share their keys, the dtype.
    """
    if number.seq_len is None:
        return None
    rows = alike(results)
    rows = rows[(rows["head_dim"] == number.head_dim) & (rows["causal"] == number.causal)]
    same = rows[rows["implementation"] == COUNTERPARTS.get(number.implementation)]
    rows = rows if same.empty else same
    if rows.empty:
        return None
    apart = pd.DataFrame(
        {
            "seq_len": (rows["seq_len"] / number.seq_len).map(_apart),
            "heads": (rows["batch"] * rows["heads"] / _heads(number)).map(_apart),
            "batch": (rows["batch"] / (number.batch or math.nan)).map(_apart),
            "shared": (rows["heads"] / rows["kv_heads"] / _shared(number)).map(_apart),
            "dtype": rows["dtype"] != (number.dtype or rows["dtype"]),
            "median_us": rows["median_us"],
        }
    )
    row = rows.loc[apart.sort_values(list(apart.columns)).index[0]]
    batch, heads, seq_len, head_dim, kv_heads = (int(row[axis]) for axis in (*Shape.AXES[:4], "kv_heads"))
    shape = Shape(batch, heads, seq_len, head_dim, bool(row["causal"]), str(row["dtype"]), kv_heads)
    tflops = float(row["throughput_tflops"])
    return Here(str(row["implementation"]), shape, tflops, *shares_pct(results, shape.dtype, tflops))


def alike(results: Results) -> pd.DataFrame:
    """This run's rows that can stand beside a published number: forward, as many keys as queries, of equal lengths."""
    rows = results.under(results.headline)
    return rows[(rows["kv_len"] == rows["seq_len"]) & (rows["lengths"] == "equal") & (rows["direction"] == "forward")]


def _shared(number: Published) -> float:
    return number.heads / number.kv_heads if number.heads and number.kv_heads else math.nan


def _heads(number: Published) -> float:
    return number.batch * number.heads if number.batch and number.heads else math.nan


def _apart(ratio: float) -> float:
    return abs(math.log(ratio)) if ratio == ratio else 0.0


def shares_pct(results: Results, dtype: str, tflops: float) -> tuple[float, float]:
    """A throughput over the dense peak of this run's device and over the product that it measured, in percent."""
    name = f"matmul.{dtype}"
    stated = next((ceiling.datasheet for ceiling in results.ceilings.all if ceiling.name == name), None)
    return 100 * tflops / (stated or math.nan), 100 * tflops / results.ceilings.rate(name)


def by_device(numbers: Iterable[Published]) -> list[Published]:
    """In the order of the datasheets, then of the implementations' names."""
    devices = list(_peaks())
    return sorted(numbers, key=lambda number: (devices.index(number.device), number.implementation))
