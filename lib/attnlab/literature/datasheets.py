"""The vendors' datasheets: peak rates by device."""

from pathlib import Path
from typing import Annotated

import pandas as pd
from pydantic import BaseModel, Field

from attnlab.base import paths
from attnlab.base.documents import Positive, Size, Words
from attnlab.base.errors import UserError
from attnlab.literature import tables

PATH = paths.REFERENCE / "datasheets.csv"


class Sheet(BaseModel, extra="forbid", frozen=True):
    """What the datasheet of one device states; None where it states nothing. Rates are dense but for the sparse one.

    Attributes:
        device: its name on our pages.
        matches: its name as the driver reports it.
    """

    device: Words
    matches: Words
    matmul_float16_tflops: Positive
    matmul_bfloat16_tflops: Positive
    matmul_float32_tflops: Positive | None = None
    matmul_float8_e4m3fn_tflops: Positive | None = None
    copy_gbs: Positive
    multiprocessors: Size | None = None
    sm_clock_mhz: Size | None = None
    sparse_float16_tflops: Positive | None = None
    l2_mib: Positive | None = None
    power_w: Positive | None = None
    memory_gb: Positive | None = None
    memory_kind: Words | None = None
    source: Annotated[str, Field(pattern=r"https?://\S")]


def datasheets(path: Path = PATH) -> pd.DataFrame:
    """data/reference/datasheets.csv: a row for each device, NaN where no rate is stated.

    Raises UserError where the file can't be read, a column is missing, a device is there twice, or a cell doesn't hold
    what its column holds; the message is one line that names file and line.
    """
    sheets: list[Sheet] = []
    for place, sheet in tables.read(path, Sheet):
        for column in ("device", "matches"):
            if (name := getattr(sheet, column)) in [getattr(other, column) for other in sheets]:
                raise UserError(f"{place}: {column}: an earlier line is of {name!r}: leave one")
        sheets.append(sheet)
    return pd.DataFrame([sheet.model_dump() for sheet in sheets], columns=list(Sheet.model_fields))


def datasheet(device_name: str) -> pd.Series | None:
    """The row of a device in the datasheets; None for a device that they lack."""
    known = datasheets()
    match = known[known["matches"] == device_name]
    return None if match.empty else match.iloc[0]
