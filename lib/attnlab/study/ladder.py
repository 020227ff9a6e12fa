"""The ladder: the hand-written kernels, each improving on an earlier one, as kernels/ladder.toml states them.

Nothing here needs a GPU or a compiler. `attnlab.compile` compiles a kernel, and `attnlab.measuring` launches it.
"""

import hashlib
import math
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

PREFIX = "kernel."
"""The start of a kernel's name as an implementation."""
BEST = f"{PREFIX}best"
"""The implementation that runs, at each shape, the choice of the device's tuning (`attnlab.study.tuning`)."""
MASKS = {False: "full", True: "causal"}
"""By whether a mask is causal, its name in a tile's `masks`."""
ELEMENTS = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float8_e4m3fn": "E4M3"}
"""By dtype, the type that is a kernel's first template argument."""
STANDARD = "-std=c++17"
# The limits of a CTA: threads on any architecture, shared memory on sm_90, which has the most (227 KiB).
MOST_THREADS = 1024
MOST_SHARED_BYTES = 227 * 1024
# The most rows that a box of a tensor map can have.
MOST_BOX_ROWS = 256
TILE_ROWS = 128
"""The rows of most tiles of queries. Each multiprocessor has one tile at a time."""
RECORDED = {
    ("pointers", "plain"): "pointers",
    ("tensor maps", "plain"): "tensor maps",
    ("tensor maps", "problem"): "views",
    ("tensor maps", "scaled problem"): "scaled views",
    ("tensor maps", "ragged"): "ragged views",
    ("pointers", "packing"): "split keys",
    ("pointers", "caches"): "caches",
    ("tensor maps", "packing"): "split keys in pairs",
}
"""By `arguments` and `parameters`, the single word for both in the records of runs and in hashes."""
LAUNCH = ("dtypes", "architectures", "arguments", "parameters", "persistent", "tiles")
"""The fields that a kernel inherits from the kernel that `launched_like` names, unless it states them."""

Name = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
Parameters = Literal["plain", "problem", "scaled problem", "packing", "caches", "ragged"]
Architecture = Annotated[str, Field(pattern=r"^sm_[1-9][0-9]+[af]?$")]


class Tile(BaseModel):
    """An instance of a kernel for one head_dim, at all shapes or at some; kernels/README.md explains each field."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
    head_dim: Size
    rows: Size
    keys: Size
    threads: Annotated[int, Field(ge=32, le=MOST_THREADS, multiple_of=32)]
    shared_bytes: Annotated[int, Field(ge=0, le=MOST_SHARED_BYTES)]
    template: dict[Name, int] = {}
    box_rows: Size | None = None
    name: Name = ""
    shortest: Size = 1
    longest: Count = 0
    masks: Annotated[list[Literal["full", "causal"]], Field(min_length=1)] = ["full", "causal"]
    for_caches: bool = False

    @field_serializer("template")
    def _values(self, template: dict[str, int]) -> list[int]:
        # Runs record the values without names.
        return list(template.values())

    @model_validator(mode="after")
    def _serves_a_length(self) -> "Tile":
        if self.longest and self.longest < self.shortest:
            raise UserError(f"{self.title}: `longest`, {self.longest}, is less than `shortest`, {self.shortest}")
        return self

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"the tile {repr(self.name) + ' ' if self.name else ''}for head_dim {self.head_dim}"

    @property
    def box(self) -> int:
        """Rows of the boxes of Q and O."""
        return self.box_rows or self.rows

    def items(self, seq_len: int, heads: int) -> int:
        """The number of work items of a call with `seq_len` queries per head, and `heads` heads over all batches."""
        return math.ceil(seq_len / self.rows) * heads

    def serves_length(self, kv_len: int) -> bool:
        """Whether it serves this number of keys."""
        return self.shortest <= kv_len <= (self.longest or kv_len)


class Recorded(BaseModel):
    """A kernel of the ladder as a run recorded it. Only the fields about its gain over an earlier one are read."""

    model_config = ConfigDict(frozen=True, strict=True)
    name: Name
    title: str
    source: Annotated[str, Field(pattern=r"^[\w.-]+\.cu$")]
    after: str
    hypothesis: str
    expected_speedup: Positive

    @property
    def implementation(self) -> str:
        """Its name in a study."""
        return PREFIX + self.name

    @property
    def before(self) -> str:
        """The name in a study of the kernel `after`; empty if there is none."""
        return PREFIX + self.after if self.after else ""


class Rung(Recorded):
    """One kernel: its source, its instances and launch, the shapes that it serves, and its expected gain.

    kernels/README.md explains each field that an entry may state. `text` is the source, if it is in no file.
    """

    model_config = ConfigDict(extra="forbid")
    function: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
    dtypes: Annotated[list[Literal["float16", "bfloat16", "float8_e4m3fn"]], Field(min_length=1)]
    architectures: Annotated[list[Architecture], Field(min_length=1)]
    arguments: Literal["pointers", "tensor maps"]
    parameters: Parameters = Field("plain", exclude=True)
    merge: Annotated[str, Field(pattern=r"^([A-Za-z_]\w*)?$")] = ""
    deals: Annotated[str, Field(pattern=r"^([A-Za-z_]\w*)?$", exclude=True)] = ""
    most_queries: Count = 0
    persistent: bool = False
    spill_bytes: Count = 0
    reproducible: bool = True
    launched_like: str = Field("", exclude=True)
    text: str = Field("", exclude=True)
    same_code: dict[str, str] = Field({}, exclude=True)
    replaces: dict[str, str] = Field({}, exclude=True)
    tiles: Annotated[list[Tile], Field(min_length=1)]

    @field_serializer("arguments")
    def _recorded(self, arguments: str) -> str:
        return RECORDED[arguments, self.parameters]

    @model_validator(mode="after")
    def _tiles_fit(self) -> "Rung":
        ((head_dim, name), times), *_ = Counter((tile.head_dim, tile.name) for tile in self.tiles).most_common(1)
        if times > 1:
            raise UserError(f"{times} tiles for head_dim {head_dim} are called {name!r}: give each a `name` of its own")
        if (self.arguments, self.parameters) not in RECORDED:
            raise UserError(f"with `parameters = {self.parameters!r}`, `arguments` have to be tensor maps")
        # Earlier ladders, which tools/same_code.py reads, have one for caches too.
        if not self.by_lengths and bool(self.merge) != self.splits_keys:
            raise UserError("`merge` names the second kernel where `parameters` are a packing, and of no others")
        if bool(self.deals) != self.ragged:
            raise UserError("`deals` names the first kernel where `parameters` are ragged, and of no others")
        for tile in self.tiles if self.arguments == "tensor maps" else ():
            if tile.head_dim % 64 or max(tile.keys, tile.box) > MOST_BOX_ROWS:
                raise UserError(
                    f"{tile.title}: a box of a tensor map has 64 columns and at most {MOST_BOX_ROWS} rows, which "
                    "`head_dim`, `keys` and `box_rows` have to go by"
                )
        return self

    @property
    def scaled(self) -> bool:
        """Whether its Q, K and V are e4m3 with scales: studies round drawn values to these, and nothing tunes it."""
        return self.parameters == "scaled problem"

    @property
    def ragged(self) -> bool:
        """Whether each sequence has its own lengths, which are in device memory."""
        return self.parameters == "ragged"

    @property
    def strided(self) -> bool:
        """Whether tensors may have any strides, heads may share K and V, and lengths and scales may differ."""
        return self.parameters != "plain"

    @property
    def splits_keys(self) -> bool:
        """Whether its keys are split over CTAs, whose results are merged."""
        return self.parameters in ("packing", "caches")

    @property
    def by_lengths(self) -> bool:
        """Whether keys are split by the lengths of sequences."""
        return self.parameters == "caches"

    @property
    def paired(self) -> bool:
        """Whether its CTAs load K and V in pairs."""
        return self.splits_keys and self.arguments == "tensor maps"

    def tiles_for(self, head_dim: int, kv_len: int, causal: bool, rows: int = 0) -> list[Tile]:
        """The tiles that serve such shapes, in the entry's order; the first one runs.

        Args:
            rows: the queries of all heads that share a head of K and V; 0 for all tiles. With split keys, only
                tiles serve that hold these rows (at most `TILE_ROWS`) with the fewest empty ones.
        """
        tiles = [tile for tile in self.tiles if tile.head_dim == head_dim and tile.serves_length(kv_len)]
        tiles = [tile for tile in tiles if MASKS[causal] in tile.masks]
        if rows and tiles and self.splits_keys:
            held = min(rows, TILE_ROWS, max(tile.rows for tile in tiles))
            large = [tile for tile in tiles if tile.rows >= held]
            fewest = min((tile.items(rows, 1) * tile.rows, tile.rows) for tile in large)[1]
            return [tile for tile in large if tile.rows == fewest]
        return tiles

    def serves_rows(self, tile: Tile, rows: int) -> bool:
        """Whether a tile serves heads of K and V with these rows: paired CTAs need an even number of tiles."""
        return not self.paired or tile.items(rows, 1) % 2 == 0

    def serves_queries(self, seq_len: int) -> bool:
        """Whether it serves this number of queries of a head."""
        return seq_len <= (self.most_queries or seq_len)

    def architecture(self, capability: tuple[int, int]) -> str | None:
        """The architecture to compile for on a device of this compute capability; None if the kernel has none.

        Code for an architecture with a letter runs only there. Without a letter, it also serves all later ones, and is
        compiled for the device's own.
        """
        own = "{}{}".format(*capability)
        if lettered := [f"sm_{own}{letter}" for letter in "af" if f"sm_{own}{letter}" in self.architectures]:
            return lettered[0]
        plain = [int(name[3:]) for name in self.architectures if name[-1].isdigit()]
        return f"sm_{own}" if any(number <= int(own) for number in plain) else None

    def expression(self, dtype: str, tile: Tile, causal: bool, box: int = 0) -> str:
        """The name expression of one instance, as NVRTC takes it; `box` is the rows of a box, if K and V are paged."""
        arguments = [ELEMENTS[dtype], str(tile.head_dim), str(causal).lower(), *map(str, tile.template.values())]
        arguments += [str(box)] if box else []
        return f"{self.function}<{', '.join(arguments)}>"

    def merge_expression(self, dtype: str, tile: Tile) -> str:
        """The name expression of the kernel that merges the results of an instance; empty if there is none."""
        return f"{self.merge}<{ELEMENTS[dtype]}, {tile.head_dim}>" if self.merge else ""

    def deal_expression(self, causal: bool) -> str:
        """The name expression of the kernel that lists the work; empty if there is none."""
        return f"{self.deals}<{str(causal).lower()}>" if self.deals else ""


def load(folder: Path | None = None) -> tuple[Rung, ...]:
    """The kernels of a folder, by default `paths.kernels`, in order; none if there is no ladder.toml.

    Raises UserError: ladder.toml is not valid; the message names the kernel and the remedy.
    """
    folder = folder or paths.kernels()
    path, where = folder / "ladder.toml", paths.shown(folder / "ladder.toml")
    if not path.is_file():
        return ()
    try:
        stated = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not valid TOML: {error}") from None
    entries = stated.pop("rungs", [])
    if stated or not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{where} holds rungs alone: each begins with [[rungs]], in double brackets")
    rungs: dict[str, Rung] = {}
    launches: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        try:
            if like := entry.get("launched_like"):
                entry = launches[_earlier("launched_like", like, launches)] | entry
            rung = validated(Rung, entry)
            _require_place(rung, launches, folder)
        except UserError as error:
            raise UserError(f"{where}: rung {entry.get('name') or number!r}: {error}") from None
        rungs[rung.name] = rung
        launches[rung.name] = {field: entry[field] for field in LAUNCH if field in entry}
    return tuple(rungs.values())


def drawn() -> tuple[Rung, ...]:
    """The kernels that take drawn values without rounding, in sequences of equal lengths."""
    return tuple(rung for rung in load() if not (rung.scaled or rung.ragged or rung.by_lengths))


def among(names: Iterable[str]) -> list[Rung]:
    """The kernels whose implementations are among these names; the ladder is read only if one is a kernel's."""
    kernels = {name for name in names if name.startswith(PREFIX)}
    return [rung for rung in load() if rung.implementation in kernels] if kernels else []


def rung(name: str) -> Rung:
    """The kernel whose implementation is called `name`; UserError if the ladder has none."""
    rungs = {rung.implementation: rung for rung in load()}
    if name not in rungs:
        raise UserError(f"the ladder has no rung for {name!r}{suggestion(name, rungs)}")
    return rungs[name]


def hashes(rungs: Iterable[Rung] | None = None) -> dict[str, str]:
    """By implementation, the hash in runs and tables: its own, or that of the source with the same machine code."""
    own = [(rung, own_hash(rung)) for rung in (load() if rungs is None else rungs)]
    return {rung.implementation: rung.same_code.get(value, value) for rung, value in own}


def replaced(rungs: Iterable[Rung]) -> dict[str, str]:
    """By implementation, the hash of the earlier source that it replaces in tables, if any."""
    stated = {rung.implementation: rung.replaces.get(own_hash(rung)) for rung in rungs if rung.replaces}
    return {name: earlier for name, earlier in stated.items() if earlier}


def own_hash(rung: Rung) -> str:
    """The SHA-256 of all that makes up the kernel: its entry and, without their comments, its source and our headers in
    it."""
    files = {name: hashlib.sha256(code(text).encode()).hexdigest() for name, text in texts(rung).items()}
    # Only fields that are stated: one that a later attnlab adds must not make older measurements stale.
    return digest({"entry": rung.model_dump(mode="json", exclude_unset=True), "files": files})


def texts(rung: Rung) -> dict[str, str]:
    """The source of a kernel by its file's name, and our headers in it; raises as `files`."""
    return files(rung.source, rung.text)


def files(source: str, text: str = "") -> dict[str, str]:
    """A source by its file's name, and the headers next to it that it includes, directly or through others.

    If the source is in no file, it is `text`. Raises UserError: one of them is not a text file.
    """
    found = {source: text} if text else {}
    waiting = _INCLUDE.findall(text) if text else [source]
    for name in waiting:  # the loop extends it
        path = paths.kernels() / name
        if name not in found and path.is_file():  # else a header that isn't ours
            try:
                found[name] = path.read_text()
            except UnicodeDecodeError:
                raise UserError(f"{paths.shown(path)} is not a text in UTF-8: save it as one") from None
            waiting += _INCLUDE.findall(found[name])
    return found


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
# Strings are matched too, since text in them may look like a comment.
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


def code(source: str) -> str:
    """A source without comments, trailing blanks and empty lines."""
    lines = _COMMENT.sub(lambda match: match[1] or " ", source).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _require_place(rung: Rung, earlier: Collection[str], folder: Path) -> None:
    """Raise UserError unless a kernel has a new name, a source, and comes after the kernel that it names."""
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
    """The name that a field states, if an earlier kernel has it."""
    if name in earlier:
        return str(name)
    known, near = ", ".join(earlier) or "none", suggestion(str(name), earlier)
    raise UserError(f"{field}: no earlier rung is called {name!r}; earlier are {known}{near}")
