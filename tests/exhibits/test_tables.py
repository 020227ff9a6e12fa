"""What the tables print of the synthetic runs, worked by hand."""

import pytest
from reading import NOT_A_NUMBER, html
from synthetic import inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Table

TABLES = [
    "environment.machine",
    "environment.settings",
    "environment.ceilings",
    "environment.clocks",
    "environment.cases",
    "environment.checklist",
    "environment.hashes",
]


@pytest.mark.parametrize("id", TABLES)
def test_no_table_prints_what_is_not_a_number(id):
    for run in (inferred, lonely):
        shown = Show(run())(id).content
        assert run is lonely or isinstance(shown, Table)
        assert not [cell for cell in html(shown).select("td, th") if NOT_A_NUMBER.search(cell.get_text())]
