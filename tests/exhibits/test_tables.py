"""What the tables print of the synthetic runs, worked by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from reading import NOT_A_NUMBER, first_number, html, values
from synthetic import ONE_BATCH, TARGET, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Table
from attnlab.exhibits.verdicts import target
from attnlab.exhibits.display import Missing, Prose, Table
from attnlab.exhibits.environment import clocks, machine, provenance
from attnlab.exhibits.roofline import floor
from attnlab.exhibits.verdicts import abstract
from attnlab.infer.cases import passed_samples
from attnlab.infer.results import Results

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


def test_a_throughput_above_the_ceiling_is_marked_beside_itself():
    slow = synthetic.CEILINGS | {"matmul.float16": (0.5, "TFLOP/s")}
    study = {"implementations": ["sdpa.auto"], "timings": synthetic.STUDY["timings"][:1]}
    of = synthetic.infer(synthetic.Recipe(study=study, ceilings=slow, fates={}))


def throttled_from(length: int) -> Results:
    """The ordinary run, but that the card held itself back from a length on."""
    run = inferred().run
    held = run.samples["throttled"] | (run.samples["seq_len"] >= length)
    return Results(replace(run, samples=run.samples.assign(throttled=held)), inferred().table)


def test_tables_say_which_regime_they_speak_of():
