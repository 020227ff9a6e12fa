"""The vendors' datasheets: what a cell may hold."""

import csv
from pathlib import Path

import pytest

from attnlab.base.errors import UserError
from attnlab.literature import datasheets


def spoilt(folder: Path, line: int = 3, **changes: str) -> Path:
    """The datasheets with other cells in one line; columns that are ... are left out everywhere."""
    with datasheets.PATH.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows[line - 2] |= {column: cell for column, cell in changes.items() if cell is not ...}
    path = folder / "datasheets.csv"
    with path.open("w", newline="") as file:
        columns = [column for column in rows[0] if changes.get(column) is not ...]
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_they_are_read_as_they_are(tmp_path):
    assert datasheets.datasheets(spoilt(tmp_path)).equals(datasheets.datasheets())
    assert datasheets.datasheets(spoilt(tmp_path, copy_gbs="1")).loc[1, "copy_gbs"] == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"copy_gbs": "0"}, "copy_gbs: input should be greater than 0, not '0'"),
        ({"copy_gbs": "-2039"}, "copy_gbs: input should be greater than 0, not '-2039'"),
        (
            {"copy_gbs": "fast"},
            "copy_gbs: input should be a valid number, unable to parse string as a number, not 'fast",
        ),
        ({"copy_gbs": ""}, "the field 'copy_gbs' is missing"),
        ({"l2_mib": "inf"}, "l2_mib: input should be a finite number, not 'inf'"),
        ({"l2_mib": "nan"}, "l2_mib: input should be a finite number, not 'nan'"),
        ({"multiprocessors": "108.5"}, "multiprocessors: input should be a valid integer, "),
        ({"sm_clock_mhz": "0"}, "sm_clock_mhz: input should be greater than or equal to 1, not '0'"),
        ({"source": ""}, "the field 'source' is missing"),
        ({"device": "NVIDIA L4"}, "device: an earlier line is of 'NVIDIA L4': leave one"),
        ({"matches": "NVIDIA L4"}, "matches: an earlier line is of 'NVIDIA L4': leave one"),
    ],
)
def test_what_no_datasheet_can_state_is_a_line_that_names_its_own(tmp_path, changes, said):
    path = spoilt(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        datasheets.datasheets(path)
    assert str(caught.value).startswith(f"{path}, line 3: {said}")
    assert "\n" not in str(caught.value)


def test_a_column_that_is_missing_or_a_line_with_too_many_cells_is_told(tmp_path):
    path = spoilt(tmp_path, copy_gbs=...)
    with pytest.raises(UserError, match=r"line 2: the field 'copy_gbs' is missing$"):
        datasheets.datasheets(path)
    path = spoilt(tmp_path)
    stated = path.read_text()
    path.write_text(stated.replace("copy_gbs", "copy_gb", 1))
    with pytest.raises(UserError, match=r"line 2: (the field 'copy_gbs' is missing|unknown field 'copy_gb')"):
        datasheets.datasheets(path)
    path.write_text(stated.rstrip("\n") + ",one,more\n")
    with pytest.raises(UserError, match=r"^.*datasheets\.csv, line 8: it should have 15 cells: count the commas$"):
        datasheets.datasheets(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b'device,matches\n"NVIDIA L4,'])
def test_what_is_no_csv_is_told(tmp_path, content):
    path = tmp_path / "datasheets.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^.*datasheets\.csv can't be read: .*: restore it$"):
        datasheets.datasheets(path)
    with pytest.raises(UserError, match=r"can't be read: .*No such file"):
        datasheets.datasheets(tmp_path / "gone.csv")
