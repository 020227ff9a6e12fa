"""The vendors' datasheets: peak rates by device."""

import pandas as pd

from attnlab.base import paths


def datasheets() -> pd.DataFrame:
    """data/reference/datasheets.csv: a row for each device, NaN where no rate is stated."""
    return pd.read_csv(paths.REFERENCE / "datasheets.csv")


def datasheet(device_name: str) -> pd.Series | None:
    """The row of a device in the datasheets; None for a device that they lack."""
    known = datasheets()
    match = known[known["matches"] == device_name]
    return None if match.empty else match.iloc[0]
