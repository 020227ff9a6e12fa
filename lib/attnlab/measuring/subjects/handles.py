"""Attention that a notebook calls and measures by name: SDPA's backends, peers, the ladder's kernels, and your own.

Each is callable as ``(q, k, v, causal=False, scale=None) -> o`` and can be pickled. The process that calls it looks it
up or compiles it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnlab.base import paths
from attnlab.base.documents import validated
from attnlab.base.errors import UserError, suggestion
from attnlab.compile import nvrtc
from attnlab.measuring.kernels import rungs
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.implementation import Implementation, Unsupported
from attnlab.study import implementations, ladder
from attnlab.study.ladder import ELEMENTS, Rung, Tile
from attnlab.study.shapes import Shape

ARCHITECTURE = "sm_90a"
"""The target architecture of a source if there is no GPU."""
Grid = Callable[[Shape], int | tuple[int, ...]]


@dataclass(frozen=True)
class NamedAttention:
    """An implementation that a study names, such as ``sdpa.flash``."""

    name: str

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        found = self.implementation()
        with found.selected():
            return found.call(q, k, v, causal, scale=scale)

    def implementation(self) -> Implementation:
        """The implementation in the registry."""
        return registry.find(self.name)


@dataclass(frozen=True)
class LadderKernel:
    """A kernel of the ladder. Its name is ``kernel.<rung>``, or empty if its tile or source was changed."""

    rung: Rung
    name: str = ""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        _require_gpu(self.rung.name)
        return rungs.of(self.rung)(q, k, v, causal, scale)

    @property
    def source(self) -> str:
        """The source, as it is compiled."""
        return ladder.texts(self.rung)[self.rung.source]

    def edited(self, old: str, new: str) -> "LadderKernel":
        """A copy whose source has `new` in place of each `old`; UserError if the source doesn't contain `old`."""
        return LadderKernel(self.rung.model_copy(update={"text": _edited(self.source, old, new)}))

    def resources(self, shape: Shape) -> pd.DataFrame:
        """The compiler's report on the instance for a shape, a row for each architecture: `Instance.needs`.

        Raises UserError: it serves no such shape, doesn't compile, or NVRTC is not installed.
        """
        tile = next(iter(self.rung.tiles_for(shape.head_dim, shape.kv_len, shape.causal)), None)
        if not tile or shape.dtype not in self.rung.dtypes:
            raise UserError(f"{self.rung.name} has no tile for {shape}")
        expression, rows = self.rung.expression(shape.dtype, tile, shape.causal), []
        per_call = tile.threads, tile.shared_bytes, tile.items(shape.seq_len, shape.batch * shape.heads)
        for architecture in self.rung.architectures:
            build = nvrtc.build(self.rung, architecture, [expression])
            if build.error:
                raise UserError(build.error)
            instance = build.instances[expression]
            if instance.most_threads not in (0, tile.threads):
                raise UserError(f"{expression} is written for {instance.most_threads} threads: state other `sizes`")
            needs = instance.needs(architecture, *per_call, self.rung.persistent)
            rows.append({"function": expression, "architecture": architecture} | needs)
        return pd.DataFrame(rows)

    def implementation(self) -> Implementation:
        """The implementation that a study measures."""
        return rungs.named(self.rung.implementation, rungs.of(self.rung))


@dataclass(frozen=True)
class SourceKernel:
    """A kernel from your own source, with the parameters ``(q, k, v, o, heads, seq_len, scale)``.

    The first 4 are addresses of contiguous tensors. ``heads`` (batch · heads) and ``seq_len`` are of type ``int``,
    ``scale`` is a ``float``. A call raises Unsupported unless K and V have the shape of Q.

    Attributes:
        function: its name; for a template with arguments, which may be ``{element}``, ``{head_dim}``, ``{causal}``.
        grid: maps a `Shape` to the number of CTAs, or to a tuple of up to 3 numbers.
    """

    name: str
    source: str
    function: str
    grid: Grid
    threads: int
    shared_bytes: int = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        _require_gpu(self.name)
        if q.ndim != 4 or not q.shape == k.shape == v.shape:
            raise Unsupported(f"{self.name} takes as many heads and keys of K and V as of Q")
        batch, heads, seq_len, head_dim = q.shape
        shape = Shape(batch, heads, seq_len, head_dim, causal, str(q.dtype).removeprefix("torch."))
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        output = torch.empty_like(q)
        addresses = [np.uint64(tensor.data_ptr()) for tensor in (q, k, v, output)]
        given = (*addresses, np.int32(batch * heads), np.int32(seq_len), np.float32(scale or head_dim**-0.5))
        with torch.cuda.device(q.device):
            launch, stream = _launchable(self.source, self._expression(shape), self.shared_bytes, q.get_device())
            with stream(torch.cuda.current_stream().cuda_stream):
                launch(self._grid(shape), (self.threads,), given, shared_mem=self.shared_bytes)
        return output

    def edited(self, old: str, new: str) -> "SourceKernel":
        """A copy whose source has `new` in place of each `old`; UserError if the source doesn't contain `old`."""
        return replace(self, source=_edited(self.source, old, new))

    def resources(self, shape: Shape) -> pd.DataFrame:
        """The compiler's report on it, in one row: `Instance.needs`; raises as `LadderKernel.resources` does."""
        expression = self._expression(shape)
        log, found = nvrtc.compiled(self.source, self.name, _architecture(), [expression] * ("<" in expression))
        if found is None:
            raise UserError(f"{self.name} does not compile: {'; '.join(nvrtc.errors(log)[: nvrtc.SHOWN])}")
        if expression not in found:
            plain = 'extern "C" __global__'
            raise UserError(f"{self.name} has no {plain} function {expression!r}{suggestion(expression, found)}")
        ctas = math.prod(self._grid(shape))
        needs = found[expression].needs(_architecture(), self.threads, self.shared_bytes, ctas)
        return pd.DataFrame([{"function": expression, "architecture": _architecture()} | needs])

    def implementation(self) -> Implementation:
        """The implementation that a study measures."""
        return Implementation(self.name, self, differentiable=False)

    def _grid(self, shape: Shape) -> tuple[int, ...]:
        stated = self.grid(shape)
        return (stated,) if isinstance(stated, int) else tuple(stated)

    def _expression(self, shape: Shape) -> str:
        found = self.function.replace("{element}", ELEMENTS.get(shape.dtype, "float"))
        return found.replace("{head_dim}", str(shape.head_dim)).replace("{causal}", str(shape.causal).lower())


def sdpa(backend: str = "auto") -> NamedAttention:
    """PyTorch's SDPA with a backend: auto, flash, cudnn, efficient or math; UserError for other names."""
    return NamedAttention(implementations.require(f"sdpa.{backend}", implementations.SDPA))


def peer(name: str) -> NamedAttention:
    """Another package's attention: flex, flash4, cudnn, flashinfer or xformers; UserError for other names."""
    return NamedAttention(implementations.require(f"peer.{name}", implementations.PEERS))


def kernel(
    name: str,
    source: str | Path | None = None,
    *,
    template: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    function: str = "",
    grid: Grid | None = None,
    threads: int = 0,
    shared_bytes: int = 0,
) -> NamedAttention | LadderKernel | SourceKernel:
    """A kernel of the ladder by its name, or your own from a source.

    Args:
        source: CUDA C++, or the path of a .cu file. It needs `function`, `grid` and `threads` per CTA, and may have
            `shared_bytes` of dynamic shared memory per CTA, as in `SourceKernel`.
        template: template arguments of a ladder kernel. They replace those of its first tile, or of the first tile for
            the `head_dim` in `sizes`.
        sizes: sizes of that tile that change with the template: `rows`, `keys`, `threads` and `shared_bytes`.

    Raises:
        UserError: the ladder has no such kernel, or that kernel no such template argument. Or the file can't be read,
            or a source comes without `function`, `grid` or `threads`, or with `template` or `sizes`.
    """
    if source is not None:
        if template or sizes or not (function and grid and threads > 0):
            raise UserError(f"kernel {name!r} has a source: state its function, grid and threads, no template or sizes")
        text = str(source)
        if isinstance(source, Path) or text.endswith(".cu"):
            try:
                text = Path(source).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"{paths.shown(Path(source))} can't be read as a source: {error}") from None
        return SourceKernel(name, text, function, grid, threads, shared_bytes)
    full = implementations.require(name if name.startswith(ladder.PREFIX) else ladder.PREFIX + name)
    rung = {rung.implementation: rung for rung in ladder.load()}.get(full)
    if rung is None or rung.scaled:  # chosen by the tuning, or called with rounded inputs
        if template or sizes:
            raise UserError(f"{full} has no template arguments of its own: name the kernel that has")
        return NamedAttention(full)
    return (
        LadderKernel(_with_tile(rung, template or {}, sizes or {})) if template or sizes else LadderKernel(rung, full)
    )


def _with_tile(rung: Rung, template: Mapping[str, int], sizes: Mapping[str, int]) -> Rung:
    """A copy of a kernel with 1 tile, for all lengths, with these template arguments and sizes."""
    tile = next((tile for tile in rung.tiles if tile.head_dim == sizes.get("head_dim", tile.head_dim)), rung.tiles[0])
    for wrong in set(template) - set(tile.template):
        near = suggestion(wrong, tile.template)
        raise UserError(f"{rung.name} has no template argument {wrong!r}, but {', '.join(tile.template)}{near}")
    stated = tile.model_dump(exclude={"name", "shortest", "longest"}) | dict(sizes)
    stated["template"] = tile.template | dict(template)
    return rung.model_copy(update={"tiles": [validated(Tile, stated, f"{rung.name}: sizes")]})


def _edited(source: str, old: str, new: str) -> str:
    if not old or old not in source:
        raise UserError(f"the source holds no {old!r}: look at it with .source")
    return source.replace(old, new)


def _require_gpu(name: str) -> None:
    if not torch.cuda.is_available():
        raise UserError(f"the kernel {name!r} needs an NVIDIA GPU to be called; .resources(shape) compiles it here")


def _architecture() -> str:
    if not torch.cuda.is_available():
        return ARCHITECTURE
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + "a" * (major >= 9)


@lru_cache(64)
def _launchable(source: str, expression: str, shared_bytes: int, device: int) -> tuple[Any, Callable[[int], Any]]:
    """A source's kernel for the current device, whose number is `device`; and CuPy's stream for torch's by address."""
    shown = lambda log: f"the source does not compile: {'; '.join(nvrtc.errors(log)[: nvrtc.SHOWN])}"  # noqa: E731
    (function,) = rungs.functions(source, [expression], _architecture(), shown)
    from cupy.cuda import ExternalStream, Stream

    if shared_bytes > function.max_dynamic_shared_size_bytes:
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function, lambda address: ExternalStream(address) if address else Stream.null
