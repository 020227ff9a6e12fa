"""A study: the cases of a run, its baseline, and how they are timed."""

import math
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator
from yaml.constructor import ConstructorError

from attnlab.base import paths
from attnlab.base.documents import Count, Positive, validated
from attnlab.base.errors import UserError, suggestion
from attnlab.base.texts import PLAIN, is_name
from attnlab.study import callables, drawn, implementations
from attnlab.study import values as kinds
from attnlab.study.shapes import Shape

Block = dict[str, Any]
LONGEST = 200
"""The most characters of a name or a title."""
Line = Annotated[str, Field(max_length=LONGEST, pattern=r"^[^\r\n]+$")]
LARGEST_FILE, MOST_SHAPES = 2**18, 10_000
"""The most bytes of a study's file, and shapes of its sweeps; more take too long to read."""
MOST_SAMPLES, MOST_REPLICATES, MOST_REQUESTS = 100_000, 1_000, 10_000_000
"""With more, a run would take years, or be too large to be read."""
FILES = (".yaml", ".yml")
"""The suffixes of a path to a study; any other text is a name in studies/."""
TRACED = 4
"""CUPTI's durations take long to read and vary little, so 1 sample in 4 is enough."""
DTYPES = ("float16", "bfloat16", "float32")
"""The dtypes that a shape may have. float64 is the oracle's dtype, so the oracle can't check it."""
MOST_BYTES = 2**60
"""The most bytes that a shape may have; with more, sizes overflow before memory is allocated."""


class _Loader(yaml.SafeLoader):
    """Rejects a key that a mapping states twice, of which YAML's own loader keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise ConstructorError(problem=f"the key {key.value!r} is stated twice", problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


class Timing(BaseModel, extra="forbid", frozen=True):
    """A clock, and the state of the L2 when a sample begins."""

    clock: Literal["eager", "device", "cupti"]
    cache: Literal["warm", "cold"]

    @model_validator(mode="after")
    def _has_a_sampler(self) -> "Timing":
        if self.clock == "cupti" and self.cache == "cold":
            raise UserError("the clock cupti times calls from a warm cache alone: state cache: warm")
        return self

    def __str__(self) -> str:
        return f"{self.clock} {self.cache}"

    @property
    def words(self) -> str:
        """The timing in words, for captions."""
        return f"{self.clock} clock, {self.cache} cache"


class Drawn(BaseModel, extra="forbid", frozen=True, strict=True):
    """Shapes drawn at random by a seed and a law of `drawn.draw`, each on all of these input distributions."""

    shapes: Annotated[int, Field(ge=1, le=1000)]
    seed: Count
    law: Literal["models", "log-uniform"] = "models"
    values: Annotated[list[str], Field(min_length=1)] = [kinds.NORMAL]


class Study(BaseModel, extra="forbid", frozen=True, strict=True):
    """The work of a run, as a file in studies/ states it; docs/method.md explains each field.

    ``values: all`` becomes the list of all distributions that are timed by default, which a run records. Shapes of
    `drawn` follow those of the sweeps, and belong to no sweep.
    """

    name: Annotated[str, Field(max_length=LONGEST, pattern=rf"^{PLAIN}$", min_length=1)]
    title: Line
    device: Literal["auto", "cuda", "cpu"] = "auto"
    implementations: Annotated[list[str], Field(min_length=1)]
    baseline: str
    target: Block
    counted: list[Block] = []
    timings: Annotated[list[Timing], Field(min_length=1)]
    samples: Annotated[int, Field(ge=2, le=MOST_SAMPLES)] = 100
    replicates: Annotated[int, Field(ge=1, le=MOST_REPLICATES)] = 1
    warmup_calls: Annotated[int, Field(ge=20, le=MOST_SAMPLES)] = 20
    longest_call_ms: Positive = 1000.0
    time_limit_s: Positive = 120.0
    panel: bool = True
    stream: Annotated[int, Field(ge=0, le=MOST_REQUESTS)] = 0
    captured: Line = kinds.CAPTURED_FILE
    drawn: Drawn | None = None
    only_in: dict[str, list[str]] = {}
    sweeps: Annotated[dict[str, Annotated[list[Block], Field(min_length=1)]], Field(min_length=1)]

    @field_validator("sweeps", mode="before")
    @classmethod
    def _are_spelled_out(cls, sweeps: Any) -> Any:
        """Sweeps as lists of mappings, with the list of standard values in place of ``values: all``."""

        def spelled(block: Any) -> Any:
            stated = block.get("values") if isinstance(block, dict) else None
            return block | {"values": list(kinds.STANDARD)} if stated in (kinds.ALL, [kinds.ALL]) else block

        if not isinstance(sweeps, dict):
            return sweeps
        return {name: [*map(spelled, each if isinstance(each, list) else [each])] for name, each in sweeps.items()}

    @model_validator(mode="after")
    def _agrees(self, information: ValidationInfo) -> "Study":
        named = [*self.implementations, self.baseline]
        known = information.context or implementations.known(named)
        for name in named:
            implementations.require(name, known)
        for said in self._contradictions():
            raise UserError(said)
        return self

    def _contradictions(self) -> Iterator[str]:
        if self.baseline not in self.implementations:
            yield f"the baseline {self.baseline} is not among the implementations"
        for word, values in (("an implementation", self.implementations), ("a timing", self.timings)):
            if len(set(values)) < len(values):
                yield f"{word} is listed twice"
        blocks = [block for sweep in self.sweeps.values() for block in sweep]
        stated = sum(math.prod(len(each) for each in block.values() if isinstance(each, list)) for block in blocks)
        if stated > MOST_SHAPES:
            yield f"sweeps: {stated} shapes, and a run can hold {MOST_SHAPES}: state fewer values"
        for name in self.sweeps:
            if not name.strip() or len(name) > LONGEST or not is_name(name):
                plain = "letters, digits, blanks and . , : ; / + - ( ) @ = ' %"
                yield f"sweeps: {name[:LONGEST]!r} is no name of 1 to {LONGEST} characters: {plain}"
        for name, sweeps in self.only_in.items():
            if name not in self.implementations or name == self.baseline:
                yield f"only_in: {name} is none of the implementations, or is the baseline"
            if unknown := [sweep for sweep in sweeps if sweep not in self.sweeps]:
                yield f"only_in: {name}: there is no sweep {unknown[0]!r}"
        if self.target_shape not in self.shapes:
            yield f"no sweep holds the target {self.target_shape}"
        for shape in self.counted_shapes:
            if shape not in self.shapes:
                yield f"counted: no sweep holds {shape}"

    @property
    def subjects(self) -> list[str]:
        """The implementations, which take turns in a round, and the baseline once more as its control."""
        return [*self.implementations, implementations.control(self.baseline)]

    def leaves_out(self, implementation: str, shape: Shape) -> bool:
        """Whether an implementation is measured in some sweeps only, and this shape is in none of these."""
        return implementation in self._only_at and shape not in self._only_at[implementation]

    @cached_property
    def _only_at(self) -> dict[str, set[Shape]]:
        return {name: {s for sweep in sweeps for s in self._swept(sweep)} for name, sweeps in self.only_in.items()}

    def _swept(self, sweep: str) -> Iterator[Shape]:
        for block in self.sweeps[sweep]:
            yield from _multiply_out(block, f"sweeps.{sweep}")

    def rounds(self, timing: Timing) -> int:
        """The number of samples of each case under a timing in a replicate; by CUPTI, 1 in `TRACED`."""
        return max(2, self.samples // TRACED) if timing.clock == "cupti" else self.samples

    @property
    def target_shape(self) -> Shape:
        """The shape of the report's headline."""
        return _shape(self.target, "target")

    @property
    def counted_shapes(self) -> list[Shape]:
        """The target, and the other shapes at which Nsight Compute counts a call."""
        others = [_shape(block, f"counted.{number}") for number, block in enumerate(self.counted)]
        return list(dict.fromkeys([self.target_shape, *others]))

    @cached_property
    def drawn_shapes(self) -> list[Shape]:
        """The shapes drawn at random, on each of their input distributions."""
        if self.drawn is None:
            return []
        plain = drawn.draw(self.drawn.shapes, self.drawn.seed, self.drawn.law)
        return [_shape(shape.axes | {"values": kind}, "drawn") for shape in plain for kind in self.drawn.values]

    @cached_property
    def swept_shapes(self) -> list[Shape]:
        """The shapes of all sweeps, each once, in the order in which they are first stated."""
        return list(dict.fromkeys(shape for sweep in self.sweeps for shape in self._swept(sweep)))

    @cached_property
    def shapes(self) -> list[Shape]:
        """Every shape of the study once: those of its sweeps, then those that are drawn."""
        return list(dict.fromkeys([*self.swept_shapes, *self.drawn_shapes]))


def shown(name: str) -> str:
    """A study as a recorded command states it: its name, its path in the project, or outside of it the file's name."""
    if not name.endswith(FILES):
        return name
    path = Path(name).resolve()
    return paths.shown(path) if path.is_relative_to(paths.working()) else path.name


def load(name: str | Path) -> Study:
    """Read a study: a name in studies/, or a path to a YAML file.

    Raises:
        UserError: there is no such file, it isn't valid YAML, or it states something that can't be measured.
    """
    path = _path(name)
    if not path.is_file():
        there = sorted(p.stem for p in paths.STUDIES.glob("*.yaml"))
        ends = f"; a path to a study ends with {' or '.join(FILES)}" if Path(name).is_file() else ""
        near = ends or suggestion(Path(name).stem, there)
        raise UserError(f"there is no study {str(name)!r}; studies/ has {', '.join(there)}{near}")
    where, size = paths.shown(path), path.stat().st_size
    if size > LARGEST_FILE:
        raise UserError(f"{where} has {size:,} bytes, and a study {LARGEST_FILE:,} at most: state fewer values")
    try:
        stated = yaml.load(path.read_text(), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that isn't one is a ValueError
        words = " ".join(str(error).split()).replace('in "<unicode string>", line', "in line")
        raise UserError(f"{where} is not valid YAML: {words}") from None
    if not isinstance(stated, dict):
        raise UserError(f"{where} must be a mapping with the fields of a study")
    return parse({"name": path.stem, **stated}, where)


def modules_beside(name: str) -> AbstractContextManager[None]:
    """A context in which functions are also found next to the file of a study, in this process and its children.

    Only measuring uses it: showing a run imports nothing from there.
    """
    return callables.beside(_path(name).resolve().parent)


def _path(name: str | Path) -> Path:
    return Path(name) if str(name).endswith(FILES) else paths.STUDIES / f"{name}.yaml"


def parse(stated: dict[str, Any], where: str, known: Collection[str] = ()) -> Study:
    """The study with these fields, which come from `where`.

    Its implementations may be those of `known`, or if that is empty, of `implementations.known`.
    Raises UserError: something is wrong with a field; the message is one line.
    """
    return validated(Study, stated, where, known)


def recorded(manifest: dict[str, Any]) -> Study:
    """The study of a run. It may name kernels that are not on the ladder here."""
    return parse(manifest["study"], manifest["name"], manifest["study"]["implementations"])


def _multiply_out(block: Block, where: str) -> list[Shape]:
    axes = {axis: value if isinstance(value, list) else [value] for axis, value in block.items()}
    if empty := [axis for axis, values in axes.items() if not values]:
        raise UserError(f"{where}: the axis {empty[0]!r} has no values")
    return [_shape(dict(zip(axes, values, strict=True)), where) for values in product(*axes.values())]


def sweep(**axes: Any) -> list[Shape]:
    """The shapes of these axes; lists are multiplied out: ``sweep(batch=2, heads=8, seq_len=[64, 128], head_dim=64)``.

    Raises UserError: an axis that is not one, or that is missing; a value that it can't have.
    """
    several = (list, tuple, range)
    return _multiply_out({axis: [*one] if isinstance(one, several) else one for axis, one in axes.items()}, "sweep")


def _shape(axes: Block, where: str) -> Shape:
    for axis in axes:
        if axis not in Shape.AXES:
            near = suggestion(str(axis), Shape.AXES)
            raise UserError(f"{where}: unknown axis {axis!r}; axes are {', '.join(Shape.AXES)}{near}")
    if missing := [axis for axis in Shape.AXES[:4] if axis not in axes]:
        raise UserError(f"{where}: the axis {missing[0]!r} is missing")
    if axes.get("dtype", DTYPES[0]) not in DTYPES:
        raise UserError(f"{where}: unknown dtype {axes['dtype']!r}; known are {', '.join(DTYPES)}")
    try:
        shape = Shape(**axes)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if shape.bytes > MOST_BYTES:
        raise UserError(f"{where}: no memory holds {shape}: state smaller sizes")
    return shape
