"""Runs that record how models generate, as they are read."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.base.errors import UserError
from attnlab.runs import read
from attnlab.runs.manifest import ModelFields
from attnlab.runs.schema import OF_MODELS
from attnlab.study.models import Workload

WORKLOAD = ("model", "batch", "prompt")


@dataclass(frozen=True)
class Record:
    """How models generated, as it was recorded.

    Attributes:
        samples: a row per generation; `tables.MODEL_TABLES` declares what this table and the others hold.
    """

    manifest: ModelFields
    samples: pd.DataFrame
    outputs: pd.DataFrame
    kernels: pd.DataFrame

    @property
    def workloads(self) -> list[Workload]:
        """Every workload of the plan."""
        plan = self.manifest.plan
        return [workload for model in plan.models for workload in plan.workloads(model)]

    @property
    def models(self) -> frozenset[str]:
        """The names of its models."""
        return frozenset(model.name for model in self.manifest.plan.models)

    def at(self, table: str, workload: Workload) -> pd.DataFrame:
        """The rows of a table that are of a workload."""
        rows: pd.DataFrame = getattr(self, table)
        named = dict(zip(WORKLOAD, (workload.model.name, workload.batch, workload.prompt), strict=True))
        return rows[np.logical_and.reduce([rows[axis] == value for axis, value in named.items()])]


def run_of(name: str) -> str:
    """The name of the run that a record of models is."""
    return f"{OF_MODELS}{name}"


def newest(device_name: str, refused: Callable[[UserError], object] = lambda error: None) -> list[Record]:
    """The complete records on a device of whose models there is no newer record, the newest first.

    Args:
        refused: called with the reason for each record that isn't what was recorded, and is passed over.
    """
    found: list[Record] = []
    for run, manifest in list(read.manifests(refused, within=OF_MODELS)):  # all are read: whatever is wrong is said
        if manifest["complete"] and manifest["device"]["name"] == device_name:
            try:
                record = Record(ModelFields.model_validate(manifest), **read.held(run)[1])
            except UserError as error:
                refused(error)
            else:
                if not any(record.models & newer.models for newer in found):
                    found.append(record)
    return found
