"""The ladder: the hand-written kernels, each improving on an earlier one, as kernels/ladder.toml states them.

Nothing here needs a GPU or a compiler. `attnlab.compile` compiles a rung, and the half that measures launches it.
"""

import ast
import hashlib
import math
import operator
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

from attnlab.base import paths
from attnlab.base.documents import Count, Positive, Size, digest, validated
from attnlab.base.errors import UserError, suggestion
from attnlab.study.shapes import Shape

PREFIX = "kernel."
"""The start of a rung's name as an implementation."""
BEST = f"{PREFIX}best"
"""The implementation that runs, at each shape, what the tuning of the device chose (`attnlab.study.tuning`)."""
MASKS = {False: "full", True: "causal"}
"""What a tile calls a mask, by whether it is causal."""
ELEMENTS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float8_e4m3fn": "E4M3"}
"""The type that is a kernel's first template argument, by dtype."""
STANDARD = "-std=c++17"
# The most that one CTA can have: threads on any architecture, shared memory on sm_90, which has the most (227 KiB).
MOST_THREADS = 1024
MOST_SHARED_BYTES = 227 * 1024
# The most rows that a box of a tensor map can have.
MOST_BOX_ROWS = 256
TILE_ROWS = 128
"""Tiles of queries have mostly so many rows, of which each multiprocessor has one at a time."""

SCALED = "scaled views"
"""The `arguments` of kernels whose Q, K and V are e4m3 with scales."""
MAPPED = ("tensor maps", "views", SCALED)
"""The `arguments` that are tensor maps."""
PAIRED = "split keys in pairs"
"""The `arguments` of kernels whose CTAs load K and V in pairs."""
SPLIT = ("split keys", PAIRED)
"""The `arguments` of kernels whose keys are split over CTAs."""
STRIDED = ("views", SCALED, *SPLIT)
"""The `arguments` by which tensors may have any strides, heads may share K and V, and lengths and scales may differ."""
LAUNCH = ("dtypes", "architectures", "arguments", "persistent", "sizes", "tiles")
"""The fields that a rung takes over from the one that `launched_like` names, unless it states them."""
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}

Name = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
Architecture = Annotated[str, Field(pattern=r"^sm_[1-9][0-9]+[af]?$")]


class Served(BaseModel):
    """What a tile serves, and how much of it is a work item: what a run that recorded the tile is shown by.

    Attributes:
        rows: queries that one work item covers.
        shortest: the smallest number of keys that it serves; `longest` the largest, 0 for any.
        masks: the masks that it serves.
    """

    model_config = ConfigDict(frozen=True, strict=True)
    head_dim: Size
    rows: Size
    shortest: Size = 1
    longest: Count = 0
    masks: Annotated[list[Literal["full", "causal"]], Field(min_length=1)] = ["full", "causal"]

    def items(self, seq_len: int, heads: int) -> int:
        """The work items of a call with so many queries a head, and heads over all batches."""
        return math.ceil(seq_len / self.rows) * heads

    def serves_length(self, kv_len: int) -> bool:
        """Whether it serves this number of keys."""
        return self.shortest <= kv_len <= (self.longest or kv_len)

    def serves(self, head_dim: int, kv_len: int, causal: bool) -> bool:
        """Whether it serves such shapes."""
        return self.head_dim == head_dim and self.serves_length(kv_len) and MASKS[causal] in self.masks


class Tile(Served):
    """How a rung serves one head_dim, at all shapes or at some.

    Attributes:
        keys: keys that are held at once.
        threads: threads per CTA.
        shared_bytes: dynamic shared memory per CTA.
        template: template arguments after element, head_dim and causal, by name, in the kernel's order.
        box_rows: rows of the boxes of Q and O if the arguments are tensor maps; by default `rows`.
        name: what distinguishes it from the rung's other tiles for this head_dim; may be empty if there are none.
    """

    model_config = ConfigDict(extra="forbid")
    keys: Size
    threads: Annotated[int, Field(ge=32, le=MOST_THREADS, multiple_of=32)]
    shared_bytes: Annotated[int, Field(ge=0, le=MOST_SHARED_BYTES)]
    template: dict[Name, int] = {}
    box_rows: Size | None = None
    name: Name = ""

    @field_serializer("template")
    def _values(self, template: dict[str, int]) -> list[int]:
        # As runs have recorded them since before they had names.
        return list(template.values())

    @model_validator(mode="after")
    def _serves_a_length(self) -> "Tile":
        if self.longest and self.longest < self.shortest:
            raise UserError(f"{self.title}: `longest`, {self.longest}, is less than `shortest`, {self.shortest}")
        return self

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"the tile {repr(self.name) + ' ' if self.name else ''}for head_dim {self.head_dim}"

    @property
    def box(self) -> int:
        """Rows of the boxes of Q and O."""
        return self.box_rows or self.rows

    def resized(self, sizes: dict[str, int | str], stated: dict[str, Any]) -> "Tile":
        """It with these fields and no name, for all lengths, and with the sizes that follow by a rung's formulas."""
        own = self.model_dump(exclude={"template", "name", "shortest", "longest"})
        kept = {field: value for field, value in own.items() if field not in sizes}
        return validated(Tile, kept | _sized(stated, sizes))


class Step(BaseModel):
    """What a rung is to gain over an earlier one.

    Attributes:
        after: the rung that it is compared with; empty if there is none.
        hypothesis: what it changes, and what that should gain.
        expected_speedup: the speedup over `after` at the target.
    """

    model_config = ConfigDict(frozen=True, strict=True)
    name: Name
    title: str
    source: Annotated[str, Field(pattern=r"^[\w.-]+\.cu$")]
    after: str
    hypothesis: str
    expected_speedup: Positive

    @property
    def implementation(self) -> str:
        """The name that a study calls it by."""
        return PREFIX + self.name

    @property
    def before(self) -> str:
        """The same of the rung that it is compared with; empty if there is none."""
        return PREFIX + self.after if self.after else ""


class Recorded(Step):
    """A rung as a run recorded it; how kernels are built may have changed since.

    Attributes:
        merge: the kernel that merges what CTAs leave, each of which has a work item; empty for none.
    """

    tiles: Annotated[list[Served], Field(min_length=1)]
    merge: str = ""

    def work_items(self, shape: Shape) -> int | None:
        """Tiles of query rows over all heads, which CTAs work on; None if those of the shape are not known."""
        serving = (tile for tile in self.tiles if tile.serves(shape.head_dim, shape.seq_len, shape.causal))
        first = None if self.merge else next(serving, None)
        return first.items(shape.seq_len, shape.batch * shape.heads) if first else None


class Rung(Step):
    """One kernel: where its source is, how it is instantiated and launched, what it serves, and what it should gain.

    Attributes:
        arguments: how Q, K, V and O are passed: ``pointers`` to contiguous tensors; ``tensor maps`` of contiguous
            tensors, with all heads in one dimension; ``views``, tensor maps of four dimensions with any strides;
            ``scaled views``, the same with Q, K and V in e4m3; ``split keys``, pointers to views, a workspace and the
            lengths of sequences; or ``split keys in pairs``, the same for CTAs in clusters of two, whose tiles of rows
            share a head of K and V. Scalars follow: the heads over all batches, seq_len and the scale, for views a
            `Problem`, with the `Scales` of those that are scaled, for split keys a `Packing`, and in pairs then maps of
            K and V.
        dtypes: of Q, K, V and O; of O alone where the others are e4m3, which it may be too.
        merge: with split keys, the kernel of the same source that merges the results of CTAs.
        most_queries: the most queries of a head that it serves; 0 for any.
        persistent: whether each CTA takes work items in turn until all are done, instead of a single one.
        spill_bytes: the most bytes that one thread may spill; more is an error of `make kernels`.
        reproducible: whether two runs on the same inputs have to be bitwise the same.
        launched_like: the earlier rung whose `LAUNCH` fields this one takes over; empty for none.
        sizes: fields of its tiles that follow from their head_dim and template arguments, as numbers or formulas.
        text: the source itself, where it is not the file's.
        tiles: how it is instantiated; of several that serve a shape, the first is what runs.
    """

    model_config = ConfigDict(extra="forbid")
    function: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
    dtypes: Annotated[list[Literal["float16", "bfloat16", "float8_e4m3fn"]], Field(min_length=1)]
    architectures: Annotated[list[Architecture], Field(min_length=1)]
    arguments: Literal["pointers", "tensor maps", "views", "scaled views", "split keys", "split keys in pairs"]
    merge: Annotated[str, Field(pattern=r"^([A-Za-z_]\w*)?$")] = ""
    most_queries: Count = 0
    persistent: bool = False
    spill_bytes: Count = 0
    reproducible: bool = True
    launched_like: str = Field("", exclude=True)
    sizes: dict[str, int | str] = Field({}, exclude=True)
    text: str = Field("", exclude=True)
    tiles: Annotated[list[Tile], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _sizes_follow(cls, stated: Any) -> Any:
        tiles, sizes = stated.get("tiles"), stated.get("sizes", {})
        if isinstance(tiles, list) and isinstance(sizes, dict):
            return stated | {"tiles": [_sized(tile, sizes) for tile in tiles]}
        return stated  # which is refused by its type

    @model_validator(mode="after")
    def _tiles_fit(self) -> "Rung":
        ((head_dim, name), times), *_ = Counter((tile.head_dim, tile.name) for tile in self.tiles).most_common(1)
        if times > 1:
            raise UserError(f"{times} tiles for head_dim {head_dim} are called {name!r}: give each a `name` of its own")
        if bool(self.merge) != self.splits_keys:
            raise UserError("`merge` names the second kernel of what splits keys (`arguments`), and of no others")
        for tile in self.tiles if self.arguments in MAPPED else ():
            if tile.head_dim % 64 or max(tile.keys, tile.box) > MOST_BOX_ROWS:
                raise UserError(
                    f"{tile.title}: a box of a tensor map has 64 columns and at most {MOST_BOX_ROWS} rows, which "
                    "`head_dim`, `keys` and `box_rows` have to go by"
                )
        return self

    @property
    def scaled(self) -> bool:
        """Whether its Q, K and V are e4m3 with scales: studies round what they draw to these, and nothing tunes it."""
        return self.arguments == SCALED

    def tiles_for(self, head_dim: int, kv_len: int, causal: bool, rows: int = 0) -> list[Tile]:
        """The tiles that serve such shapes, in the entry's order; the first is what runs.

        Args:
            rows: the queries of all heads that share a head of K and V. With split keys, only tiles serve them that
                hold them, or `TILE_ROWS` of them, and leave the fewest rows empty; 0 for all.
        """
        tiles = [tile for tile in self.tiles if tile.serves(head_dim, kv_len, causal)]
        if rows and tiles and self.splits_keys:
            held = min(rows, TILE_ROWS, max(tile.rows for tile in tiles))
            large = [tile for tile in tiles if tile.rows >= held]
            fewest = min((tile.items(rows, 1) * tile.rows, tile.rows) for tile in large)[1]
            return [tile for tile in large if tile.rows == fewest]
        return tiles

    @property
    def splits_keys(self) -> bool:
        """Whether its keys are split over CTAs, whose results are merged."""
        return self.arguments in SPLIT

    @property
    def paired(self) -> bool:
        """Whether its CTAs load K and V in pairs."""
        return self.arguments == PAIRED

    def serves_rows(self, tile: Tile, rows: int) -> bool:
        """Whether a tile serves heads of K and V with so many rows: in pairs, those with an even number of tiles."""
        return not self.paired or tile.items(rows, 1) % 2 == 0

    def serves_queries(self, seq_len: int) -> bool:
        """Whether it serves so many queries of a head."""
        return seq_len <= (self.most_queries or seq_len)

    def architecture(self, capability: tuple[int, int]) -> str | None:
        """The architecture to compile for on a device of this compute capability; None if the rung doesn't serve it.

        Code for an architecture with a letter runs only there. Without a letter, it also serves all later ones, and is
        compiled for the device's own.
        """
        own = "{}{}".format(*capability)
        for letter in ("a", "f"):
            if f"sm_{own}{letter}" in self.architectures:
                return f"sm_{own}{letter}"
        plain = [int(name[3:]) for name in self.architectures if name[-1].isdigit()]
        return f"sm_{own}" if any(number <= int(own) for number in plain) else None

    def expression(self, dtype: str, tile: Tile, causal: bool) -> str:
        """The name expression of one instance, as NVRTC takes it."""
        arguments = [ELEMENTS[dtype], str(tile.head_dim), str(causal).lower(), *map(str, tile.template.values())]
        return f"{self.function}<{', '.join(arguments)}>"

    def merge_expression(self, dtype: str, tile: Tile) -> str:
        """The name expression of the kernel that merges what an instance leaves; empty if there is none."""
        return f"{self.merge}<{ELEMENTS[dtype]}, {tile.head_dim}>" if self.merge else ""


def load(folder: Path | None = None) -> tuple[Rung, ...]:
    """The rungs in order; none if there is no ladder.toml.

    Args:
        folder: the folder of the kernels; default `paths.kernels`.

    Raises:
        UserError: ladder.toml is not valid; the message names the rung and what to change.
    """
    folder = folder or paths.kernels()
    path = folder / "ladder.toml"
    if not path.is_file():
        return ()
    where = paths.shown(path)
    try:
        stated = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not valid TOML: {error}") from None
    entries = stated.pop("rungs", [])
    if stated or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{where} holds rungs alone: each begins with [[rungs]], in double brackets")
    rungs: list[Rung] = []
    launches: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        name = entry.get("name")
        try:
            if like := entry.get("launched_like"):
                entry = launches[_earlier("launched_like", like, launches)] | entry
            rung = validated(Rung, entry)
            _require_place(rung, list(launches), folder)
        except UserError as error:
            raise UserError(f"{where}: rung {name or number!r}: {error}") from None
        rungs.append(rung)
        launches[rung.name] = {field: entry[field] for field in LAUNCH if field in entry}
    return tuple(rungs)


def drawn() -> tuple[Rung, ...]:
    """The rungs that take what is drawn as it is: all but those of e4m3 with scales."""
    return tuple(rung for rung in load() if not rung.scaled)


def among(names: Iterable[str]) -> list[Rung]:
    """The rungs whose implementations are among these names; the ladder is read only if one is a kernel's."""
    kernels = {name for name in names if name.startswith(PREFIX)}
    return [rung for rung in load() if rung.implementation in kernels] if kernels else []


def rung(name: str) -> Rung:
    """The rung whose implementation is called `name`.

    Raises:
        UserError: the ladder has no such rung.
    """
    rungs = {rung.implementation: rung for rung in load()}
    if name not in rungs:
        raise UserError(f"the ladder has no rung for {name!r}{suggestion(name, rungs)}")
    return rungs[name]


def hashes(rungs: Iterable[Rung] | None = None) -> dict[str, str]:
    """By implementation, the SHA-256 of all that makes up the kernel: its entry and, without their comments, its source
    and our headers in it."""
    return {rung.implementation: _hash(rung) for rung in (load() if rungs is None else rungs)}


def texts(rung: Rung) -> dict[str, str]:
    """The source of a rung by its file's name, and the headers beside it that it includes, directly or through others.

    Raises:
        UserError: one of them is not a text file.
    """
    found: dict[str, str] = {}
    waiting = [rung.source]
    while waiting:
        name = waiting.pop(0)
        path = paths.kernels() / name
        own = rung.text if name == rung.source else ""
        if name not in found and (own or path.is_file()):  # else a header that isn't ours
            found[name] = own or _text(path)
            waiting += _INCLUDE.findall(found[name])
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise UserError(f"{paths.shown(path)} is not a text in UTF-8: save it as one") from None


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


# A string goes on past what looks like a comment in it.
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


def code(source: str) -> str:
    """A source without its comments, the blanks that end a line, and lines that are empty."""
    lines = _COMMENT.sub(lambda match: match[1] or " ", source).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _hash(rung: Rung) -> str:
    files = {name: hashlib.sha256(code(text).encode()).hexdigest() for name, text in texts(rung).items()}
    # Only fields that are stated: one that a later attnlab adds must not make older measurements stale.
    content = {"entry": rung.model_dump(mode="json", exclude_unset=True), "files": files}
    return digest(content)


def _sized(tile: Any, sizes: dict[str, Any]) -> Any:
    """A stated tile with the sizes that follow from its head_dim and template arguments.

    Raises:
        UserError: a formula is not one, or uses another name.
    """
    if not isinstance(tile, dict) or not isinstance(tile.get("template", {}), dict):
        return tile  # which is refused by its type
    names = {"head_dim": tile.get("head_dim"), **tile.get("template", {})}
    known = {name: value for name, value in names.items() if isinstance(value, int)}
    return {field: _computed(str(formula), known) for field, formula in sizes.items()} | tile


def _computed(formula: str, known: dict[str, int]) -> int:
    """The value of a formula in which the known names stand for numbers; raises UserError if it isn't one."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(int(number)):
                return number
            case ast.Name(name) if name in known:
                return known[name]
            case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
                return int(_OPERATIONS[type(operation)](value(left), value(right)))
        raise SyntaxError

    try:
        return value(ast.parse(formula, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        raise UserError(
            f"sizes: {formula!r} is no formula of whole numbers and {', '.join(known)} with +, -, * and //"
        ) from None


def _require_place(rung: Rung, earlier: list[str], folder: Path) -> None:
    """Raise UserError unless a rung has a new name, a source, and comes after the rung that it names."""
    if rung.implementation == BEST:
        raise UserError(f"`{BEST}` is what `make tune` chose: choose another name")
    if rung.name in earlier:
        raise UserError("an earlier rung has this name: choose another")
    if rung.after:
        _earlier("after", rung.after, earlier)
    if not (folder / rung.source).is_file():
        near = suggestion(rung.source, (path.name for path in sorted(folder.glob("*.cu"))))
        raise UserError(f"{paths.shown(folder / rung.source)} is missing: add it, or correct `source`{near}")


def _earlier(field: str, name: Any, earlier: Collection[str]) -> str:
    """The name that a field states, if an earlier rung has it."""
    if name in earlier:
        return str(name)
    known = ", ".join(earlier) or "none"
    near = suggestion(str(name), earlier)
    raise UserError(f"{field}: no earlier rung is called {name!r}; earlier are {known}{near}")
