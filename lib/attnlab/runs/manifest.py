"""What a manifest says of its run: its fields, their types and ranges, and what they say of each other."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from attnlab.base.documents import Count, Hash, Positive, Size, Words, validated
from attnlab.base.errors import UserError
from attnlab.base.rules import GATE_FACTOR
from attnlab.base.texts import first_odd
from attnlab.runs.schema import IMPLEMENTATION, NAME, TIME, Manifest
from attnlab.runs.tables import TABLES
from attnlab.study import studies
from attnlab.study.ladder import Recorded

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Time = Annotated[AwareDatetime, Field(strict=False)]
Named = Annotated[str, Field(pattern=r"^(copy|l2|exponentials|(matmul|wgmma)\.\w+)$")]
"""The name of a ceiling; those of matrix products end with their dtype."""
FREE = frozenset(
    ("title", "hypothesis", "how", "why", "telemetry", "tool", "command", "converted", "unavailable", "captured")
)
"""Fields that hold sentences, commands and paths. All other texts are names, see `texts.PLAIN`."""


FILES = tuple(f"{table}.parquet" for table in TABLES)
"""The files that a complete run has."""


class ManifestPart(BaseModel):
    """A part of a manifest, or the whole. It may hold more fields than are named here."""

    model_config = ConfigDict(frozen=True, strict=True)


class Device(ManifestPart):
    """What was measured on; sizes in bytes."""

    kind: Literal["cuda", "cpu"]
    name: Words
    multiprocessors: Size | None = None
    compute_capability: Words | None = None
    threads: Size | None = None
    l2_bytes: Size
    memory_bytes: Count

    @model_validator(mode="after")
    def _says_what_its_kind_has(self) -> "Device":
        for field in ("threads",) if self.kind == "cpu" else ("multiprocessors", "compute_capability"):
            if getattr(self, field) is None:
                raise UserError(f"device.{field} is missing, and the device is of the kind {self.kind}")
        return self


class Environment(ManifestPart):
    """The locked environment."""

    settings: dict[str, Any]
    packages: dict[str, str]
    python: str
    system: str
    cuda: str
    cudnn: str
    driver: str
    card: dict[str, Any]
    hash: Words


class Ceiling(ManifestPart):
    """A measured rate; without samples, `how` says why it was not measured."""

    unit: Literal["TFLOP/s", "GB/s", "Gexp/s"]
    samples: list[Positive]
    sm_clock_mhz: Positive | None
    how: Words


class Rules(ManifestPart):
    """The rules that a run was recorded under; one whose gate let more pass than today's is refused."""

    gate_factor: Annotated[float, Field(ge=1, le=GATE_FACTOR)]
    steady: Share
    seed: float
    resamples: Positive
    confidence: Share
    alpha: Share
    equivalence_margin: Share
    claim_speedup: Annotated[float, Field(ge=1, lt=10)]
    claim_delta: Share
    power: Share


class Clocks(ManifestPart):
    """What the clock itself reads, in us."""

    tick_us: NotNegative
    nothing_us: NotNegative
    smallest_graph_us: Positive | None = None


class Surveyed(ManifestPart):
    """What the ceilings and clock ticks were measured on; the card is "" where it is no NVIDIA GPU."""

    card: str
    host: Words
    cpu: str
    governor: str


class Closed(ManifestPart):
    """What a run holds that was closed early, or that was reduced to the shapes that a dispatch table takes from it."""

    replicates: Annotated[int, Field(ge=0)]
    shapes: Size
    planned: Size


class Profile(ManifestPart):
    """How counters were taken, or why they weren't."""

    tool: str
    why: str
    command: str


class Fields(ManifestPart):
    """What the manifest of a run says.

    Attributes:
        converted: how it came into this layout, if it was recorded in another.
    """

    schema_: Annotated[int, Field(ge=1, alias="schema")]
    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    created: Time
    finished: Time | None = None
    complete: bool
    order: Annotated[str, Field(pattern=f"^{TIME.pattern}$")]
    attnlab: str
    commit: str
    command: str
    device: Device
    environment: Environment
    rules: Rules
    sources: dict[str, Hash]
    files: dict[str, Hash] = {}
    converted: str = ""
    telemetry: Words
    ceilings: dict[Named, Ceiling]
    clocks: Clocks
    surveyed: Surveyed
    study: dict[str, Any]
    missing_clocks: list[str]
    kernels: dict[str, Words]
    ladder: list[Recorded]
    dispatch: dict[str, str]
    captured: dict[str, Hash]
    profile: Profile | None = None
    closed_early: Closed | None = None

    @model_validator(mode="after")
    def _states_files_and_packages(self) -> "Fields":
        if self.complete and not self.finished:
            raise UserError("the field 'finished' is missing")
        if self.finished and self.finished < self.created:
            raise UserError("finished: it is before 'created'")
        began, order = self.created.isoformat()[:19], self.order[:19]
        if order != began and not (order > began and self.order.endswith("+")):
            raise UserError(f"order: {self.order!r} is neither 'created' nor that of a newer run and a '+'")
        if "torch" not in self.environment.packages:
            raise UserError("environment.packages: the version of torch is missing")
        for name in self.files:
            if name not in FILES:
                raise UserError(f"files: {name!r} is no table of a run; tables are {', '.join(FILES)}")
        if self.complete and (missing := [name for name in FILES if name not in self.files]):
            raise UserError(f"files: {missing[0]} is missing")
        return self

    @model_validator(mode="after")
    def _agrees(self) -> "Fields":
        if "copy" not in self.ceilings:
            raise UserError("ceilings: 'copy' is missing")
        names = [rung.name for rung in self.ladder]
        for number, rung in enumerate(self.ladder):
            if rung.name in names[:number] or rung.after in names[number:]:
                raise UserError(f"ladder.{number}: {rung.name!r} is there twice, or isn't after {rung.after!r}")
        if self.complete and self.profile is None:
            raise UserError("the field 'profile' is missing")
        self._require_study()
        return self

    def _require_study(self) -> None:
        if not isinstance(self.study.get("implementations"), list):
            raise UserError("study: the field 'implementations' is missing, or is no list")
        for name in self.study["implementations"]:
            if not isinstance(name, str) or not IMPLEMENTATION.fullmatch(name):
                raise UserError(f"study.implementations: {name!r} can't be the name of an implementation")
        study = studies.recorded({"name": "study", "study": self.study})
        known = [str(timing) for timing in study.timings]
        if unknown := [clock for clock in self.missing_clocks if clock not in known]:
            raise UserError(f"missing_clocks: {unknown[0]!r} is no timing of the study; timings are {', '.join(known)}")
        planned = len(study.shapes) * study.replicates
        if self.closed_early and self.closed_early.planned != planned:
            raise UserError(f"closed_early.planned: the study plans {planned}, not {self.closed_early.planned}")


def require(manifest: Manifest, where: str) -> None:
    """Raise UserError unless this is what the manifest of a run holds; `where` names it in the message."""
    advice = ": restore it from where the run came from"
    if odd := first_odd(manifest, FREE):
        raise UserError(f"{where}: {odd[0]}: {odd[1][:60]!r} has to be plain: letters, digits and signs{advice}")
    validated(Fields, manifest, where, advice=advice)
