"""The manifest of a run: its fields, their types and ranges, and the relations among them."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from attnlab.base import rules
from attnlab.base.documents import Count, Hash, Positive, Size, Words, validated
from attnlab.base.errors import UserError
from attnlab.base.texts import first_odd
from attnlab.runs.schema import IMPLEMENTATION, NAME, TIME, Manifest
from attnlab.runs.tables import TABLES
from attnlab.study import studies
from attnlab.study.ladder import Recorded

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Time = Annotated[AwareDatetime, Field(strict=False)]
Named = Annotated[str, Field(pattern=r"^(copy|l2|exponentials|(matmul|wgmma)\.\w+)$")]
"""The name of a ceiling; those of matrix products end with their dtype."""
FREE = frozenset(
    ("title", "hypothesis", "how", "why", "telemetry", "tool", "command", "converted", "unavailable", "captured")
)
"""Fields that hold sentences, commands and paths. All other texts are names, see `texts.PLAIN`."""
KEYS = {
    "rules": tuple(rules.recorded()),
    "clocks": ("tick_us", "nothing_us"),  # in us
    "surveyed": ("card", "host", "cpu", "governor"),  # where ceilings and ticks were measured; on a CPU card is ""
    "profile": ("tool", "why", "command"),
    "closed_early": ("replicates", "shapes", "planned"),
}
"""Fields that are mappings, with the keys that each has."""
FILES = tuple(f"{table}.parquet" for table in TABLES)
"""The files that a complete run has."""


class _Part(BaseModel):
    """A manifest or a part of it, which may have further fields."""

    model_config = ConfigDict(frozen=True, strict=True)


class _Device(_Part):
    kind: Literal["cuda", "cpu"]
    name: Words
    multiprocessors: Size | None = None
    compute_capability: Words | None = None
    threads: Size | None = None
    l2_bytes: Size
    memory_bytes: Count


class _Environment(_Part):
    settings: dict[str, Any]
    packages: dict[str, str]
    python: str
    system: str
    cuda: str
    cudnn: str
    driver: str
    card: dict[str, Any]
    hash: Words


class _Ceiling(_Part):
    """A measured rate; without samples, `how` says why it was not measured."""

    unit: Literal["TFLOP/s", "GB/s", "Gexp/s"]
    samples: list[Positive]
    sm_clock_mhz: Positive | None
    how: Words


class _Fields(_Part):
    """All fields; `converted` states the conversion of a run that was recorded in another layout."""

    schema_: Annotated[int, Field(ge=1, alias="schema")]
    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    created: Time
    finished: Time | None = None
    complete: bool
    order: Annotated[str, Field(pattern=f"^{TIME.pattern}$")]
    attnlab: str
    commit: str
    command: str
    device: _Device
    environment: _Environment
    rules: dict[str, NotNegative]
    sources: dict[str, Hash]
    files: dict[str, Hash] = {}
    converted: str = ""
    telemetry: Words
    ceilings: dict[Named, _Ceiling]
    clocks: dict[str, NotNegative | None]
    surveyed: dict[str, str]
    study: dict[str, Any]
    missing_clocks: list[str]
    kernels: dict[str, Words]
    ladder: list[Recorded]
    dispatch: dict[str, str]
    captured: dict[str, Hash]
    profile: dict[str, str] | None = None
    closed_early: dict[str, Count] | None = None  # 0 replicates are whole where a table takes some shapes alone

    @model_validator(mode="after")
    def _agrees(self) -> "_Fields":
        for said in self._contradictions():
            raise UserError(said)
        return self

    def _contradictions(self) -> Iterator[str]:
        due = ("threads",) if self.device.kind == "cpu" else ("multiprocessors", "compute_capability")
        for field in due:
            if getattr(self.device, field) is None:
                yield f"device.{field} is missing, and the device is of the kind {self.device.kind}"
        for field in ("finished", "profile") if self.complete else ():
            if getattr(self, field) is None:
                yield f"the field {field!r} is missing"
        for field, keys in KEYS.items():
            for key in keys if getattr(self, field) is not None else ():
                if getattr(self, field).get(key) is None:
                    yield f"the field '{field}.{key}' is missing"
        if not 1 <= self.rules["gate_factor"] <= rules.GATE_FACTOR:
            yield f"rules.gate_factor: {self.rules['gate_factor']} is not from 1 to today's {rules.GATE_FACTOR}"
        if self.finished and self.finished < self.created:
            yield "finished: it is before 'created'"
        began, order = self.created.isoformat()[:19], self.order[:19]
        if order != began and not (order > began and self.order.endswith("+")):
            yield f"order: {self.order!r} is neither 'created' nor that of a newer run and a '+'"
        if "torch" not in self.environment.packages:
            yield "environment.packages: the version of torch is missing"
        if "copy" not in self.ceilings:
            yield "ceilings: 'copy' is missing"
        for name in self.files.keys() - FILES:
            yield f"files: {name!r} is no table of a run; tables are {', '.join(FILES)}"
        for name in FILES if self.complete else ():
            if name not in self.files:
                yield f"files: {name} is missing"
        names = [rung.name for rung in self.ladder]
        for number, rung in enumerate(self.ladder):
            if rung.name in names[:number] or rung.after in names[number:]:
                yield f"ladder.{number}: {rung.name!r} is there twice, or isn't after {rung.after!r}"
        named = self.study.get("implementations")
        if not isinstance(named, list):
            yield "study: the field 'implementations' is missing, or is no list"
        for name in named or ():
            if not isinstance(name, str) or not IMPLEMENTATION.fullmatch(name):
                yield f"study.implementations: {name!r} can't be the name of an implementation"
        study = studies.recorded({"name": "study", "study": self.study})
        known = [str(timing) for timing in study.timings]
        for clock in self.missing_clocks:
            if clock not in known:
                yield f"missing_clocks: {clock!r} is no timing of the study; timings are {', '.join(known)}"
        planned = len(study.shapes) * study.replicates
        if self.closed_early and self.closed_early["planned"] != planned:
            yield f"closed_early.planned: the study plans {planned}, not {self.closed_early['planned']}"


def require(manifest: Manifest, where: str) -> None:
    """Raise UserError unless this is a valid manifest of a run; `where` names it in the message."""
    advice = ": restore it from where the run came from"
    if odd := first_odd(manifest, FREE):
        raise UserError(f"{where}: {odd[0]}: {odd[1][:60]!r} has to be plain: letters, digits and signs{advice}")
    validated(_Fields, manifest, where, advice=advice)
