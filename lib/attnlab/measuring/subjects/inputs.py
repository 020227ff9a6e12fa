"""Inputs: seeded, the same for every implementation at a shape, and new to it whenever it is timed.

They are of the shape's values (`attnlab.study.values`); besides these, each implementation is checked on

=============  =========================================================================================================
large logits   Q times 50: scores with a standard deviation of 50. In most rows some of them overflow exp in float32
               (beyond 88.7), and in nearly all rows in float16 (11.1); the softmax saturates, its running maximum jumps
constant rows  as above, with all keys of a head equal: each weight is 1 over the number of keys, whatever the scores.
               This reveals a key too few or too many, and errors in rows whose scores are all far below zero
=============  =========================================================================================================
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from attnlab.measuring.fp8 import quantize
from attnlab.measuring.fp8.quantize import Quantized
from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.values import drawn
from attnlab.measuring.values.drawn import Memory
from attnlab.runs.schema import CONSTANT_ROWS, EXTREMES
from attnlab.study.shapes import Shape

Inputs = tuple[Tensor, ...]
"""Q, K and V, in training also the gradient of O."""
# Standard deviation of the scores where they are large.
LOGITS = 50.0
# How many ways there are to scramble inputs, in addition to those by their sizes.
SIGNS = 2**16


class Windows:
    """Inputs in memory for a few heads more than a call takes, so that each call of a graph has a window of its own.

    No head's queries meet the same head's keys in two windows, so nothing that a call computes from both is of use to a
    later one. Neighbouring windows share nearly all of their memory, so that they fit a cache as one does. The windows
    after the first, 0, begin further on in Q or in K, by a number of heads.

    Args:
        count: the number of windows.

    Raises:
        Unsupported: what was captured doesn't do for this shape.
    """

    def __init__(self, shape: Shape, device: torch.device, count: int = 1) -> None:
        self._shape, self._count = shape, count
        self._rounded: dict[str, Rounded] = {}
        self._shared = shape.heads // shape.kv_heads
        self._step, self._kind = drawn.step(shape, device), shape.values
        dtype = getattr(torch, shape.dtype)
        self._memory = [torch.empty(size, dtype=dtype, device=device) for size in self._sizes()]
        longest = max(memory.shape[0] * memory.shape[2] for memory in self._memory)
        unknown = torch.Generator(device).manual_seed(random.SystemRandom().getrandbits(63))
        each = len(self._memory), longest + SIGNS  # were Q's signs those of K, scores would stay as they are
        self._signs = 1 - 2 * torch.randint(0, 2, each, generator=unknown, device=device).to(dtype)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, window: int) -> Inputs:
        """Q, K and V of a window, in training also the gradient of O."""
        if not 0 <= window < self._count:
            raise IndexError(window)
        return self.within(self._memory, window)

    def rounded(self, rounding: str) -> "Rounded":
        """The same windows in e4m3, kept for each rounding; made of the values when it is refreshed.

        Args:
            rounding: as `quantize.rounded` takes it.

        Raises:
            Unsupported: there is no head whose rows lie in one window alone, the inputs are more than Q, K and V, or
                rows of this head_dim can't be rotated.
        """
        if self._by_token or len(self._memory) != 3:
            raise Unsupported("inputs are quantised before they are timed for forward passes, heads first, alone")
        head_dim = self._shape.head_dim
        if rounding.endswith(quantize.ROTATED) and not quantize.rotates(head_dim):
            raise Unsupported(f"rotating takes a head_dim that is a power of two, not {head_dim}")
        if rounding not in self._rounded:
            self._rounded[rounding] = Rounded(self, self._memory, rounding)
        return self._rounded[rounding]

    def in_e4m3(self, rounding: str, window: int = 0) -> tuple[Quantized, ...]:
        """A window of the values in place now, rounded to e4m3; nothing without a rounding. Raises as `rounded`."""
        if not rounding:
            return ()
        rounded = self.rounded(rounding)
        rounded.refresh()
        return rounded[window]

    def within(self, memory: Sequence[Tensor], window: int) -> Inputs:
        """A window of other memory that has something for each head and row of the inputs', in the same order."""
        further = (window + 1) // 2 * self._step
        queries, keys = (0, further) if window % 2 else (further * self._shared, 0)
        shape = self._shape
        elements = (shape.query_elements, shape.key_elements, shape.key_elements, shape.query_elements)
        counts = [size // own[0].numel() for size, own in zip(elements, self._memory, strict=False)]
        heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
        begins = (queries, keys, 0, 0)
        return tuple(map(self._view, memory, counts, heads, begins))

    def draw(self, seed: int, kind: str = "") -> None:
        """Overwrite all of it with the shape's values, with other values that aren't captured, or one of
        `schema.EXTREMES`."""
        self._kind = kind or self._shape.values
        generator = torch.Generator(self._memory[0].device).manual_seed(seed)
        for memory in self._memory:
            memory.normal_(generator=generator)
        queries, keys, *_ = self._memory
        if self._kind not in EXTREMES:
            drawn.make(self._kind, self._shape, self._described(generator))
            return
        queries *= LOGITS
        if self._kind == CONSTANT_ROWS:
            keys.copy_(self._constant(keys))

    @contextmanager
    def scrambled(self) -> Iterator[None]:
        """Inside, other values of the same kind; afterwards, bit for bit those of before.

        Each column of each head changes its sign, or not, at random: from what is seen inside, what will be there
        afterwards can't be told. The columns of Q and K in which a kind lies keep theirs, so that scores stay of their
        kind; of captured values, that is all of them. A column of V has one sign for all tokens, so that its mean stays
        as far from 0.
        """
        kept = 0 if self._kind in EXTREMES else drawn.structured(self._kind, self._shape.head_dim)
        queries, keys, values, *gradients = self._memory
        if self._by_token:
            values = values.view(-1, self._shape.kv_heads, self._shape.head_dim).transpose(0, 1)
        memories = [queries, keys, values, *gradients]
        each = zip(memories, self._signs, (kept, kept, 0, 0), strict=False)
        chosen = [_some_signs(memory, signs, columns) for memory, signs, columns in each]
        for memory, signs in zip(memories, chosen, strict=True):
            memory *= signs
        try:
            yield
        finally:
            for memory, signs in zip(memories, chosen, strict=True):
                memory *= signs

    def _sizes(self) -> list[tuple[int, int, int]]:
        """What the memory of each tensor holds: heads, rows of a head, columns. By token, a head has one row."""
        shape = self._shape
        queries = (shape.batch * shape.heads, shape.seq_len, shape.head_dim)
        values = (shape.batch * shape.kv_heads, shape.kv_len, shape.head_dim)
        if self._by_token:
            queries, values = (
                (elements // shape.head_dim, 1, shape.head_dim)
                for elements in (shape.query_elements, shape.key_elements)
            )
        further = tuple(windows * self._step for windows in ((self._count - 1) // 2 * self._shared, self._count // 2))
        windowed = [(size[0] + more, *size[1:]) for size, more in zip((queries, values), further, strict=True)]
        return [*windowed, values] + ([queries] if shape.direction == "training" else [])

    def _view(self, memory: Tensor, count: int, heads: int, begin: int) -> Tensor:
        shape = self._shape
        window = memory[begin : begin + count]
        if self._by_token:
            sequences = 1 if shape.lengths == "spread" else shape.batch
            return window.view(sequences, -1, heads, shape.head_dim).transpose(1, 2)
        return window.view(shape.batch, heads, *memory.shape[1:])

    def _constant(self, keys: Tensor) -> Tensor:
        """Keys that are equal within each head."""
        if self._by_token:
            return keys[torch.arange(len(keys), device=keys.device) % self._shape.kv_heads]
        return keys[:, :1].expand_as(keys).clone()

    @property
    def _by_token(self) -> bool:
        """Whether the heads of a token lie beside each other."""
        return self._shape.lengths == "spread" or self._shape.layout == "tokens first"

    def _described(self, generator: torch.Generator) -> Memory:
        shape, device = self._shape, self._memory[0].device
        heads, places = [], []
        queries = shape.heads, shape.seq_len, shape.kv_len - shape.seq_len
        keys = shape.kv_heads, shape.kv_len, 0
        for memory, (count, length, begin) in zip(self._memory, (queries, keys), strict=False):
            index = torch.arange(memory.shape[0], device=device)
            heads.append(index % count if self._by_token else index)
            within = (
                (index // count % length).unsqueeze(1) if self._by_token else torch.arange(length, device=device)[None]
            )
            places.append(begin + within)
        return Memory(self._memory[:3], (heads[0], heads[1]), (places[0], places[1]), generator)


def _some_signs(memory: Tensor, every: Tensor, kept: int) -> Tensor:
    """Of these signs one for each column of each head, from somewhere on; the first `kept` columns keep theirs."""
    heads, _, columns = memory.shape
    begin = random.SystemRandom().randrange(SIGNS)
    signs = every[begin : begin + heads * columns].view(heads, 1, columns)
    if kept:
        signs = signs.clone()
        signs[..., :kept] = 1
    return signs


class Rounded:
    """The windows of some inputs, rounded to e4m3 as they were when this was refreshed.

    All is rounded at once, so that neighbouring windows share memory here too. A head has the scale that it would have
    by itself; one scale is that of all windows.

    Args:
        rounding: as `quantize.rounded` takes it, by ``head`` or ``tensor``.
    """

    def __init__(self, windows: Windows, memory: Sequence[Tensor], rounding: str) -> None:
        self._windows, self._given, self._rounding = windows, [tensor.unsqueeze(0) for tensor in memory], rounding
        self._values = [torch.empty_like(tensor, dtype=torch.float8_e4m3fn) for tensor in memory]
        self._factors = [torch.empty(len(tensor), 1, 1, device=tensor.device) for tensor in memory]
        self._graph: torch.cuda.CUDAGraph | None = None

    def __getitem__(self, window: int) -> tuple[Quantized, ...]:
        """Q, K and V of a window."""
        values = self._windows.within(self._values, window)
        factors = self._windows.within(self._factors, window)
        if self._rounding.startswith("tensor"):
            factors = tuple(factor[:1, :1] for factor in factors)
        return tuple(Quantized(v, f[..., 0], v.shape[2]) for v, f in zip(values, factors, strict=True))

    def refresh(self) -> None:
        """Round the values that are in place now, on the current stream; on a GPU by a single launch of a graph."""
        if self._values[0].is_cuda and self._graph is None:
            self._quantize()  # what it does only once, it can't do while it is captured
            self._graph = torch.cuda.CUDAGraph()
            with devices.no_garbage_collected(), torch.cuda.graph(self._graph):
                self._quantize()
        if self._graph is None:
            self._quantize()
        else:
            self._graph.replay()

    def _quantize(self) -> None:
        q, k, v = self._given
        made = quantize.rounded(q, k, v, self._rounding)
        for one, values, factors in zip(made, self._values, self._factors, strict=True):
            values.copy_(one.values[0])
            factors.copy_(one.scales[0].unsqueeze(-1))


def draw(shape: Shape, seed: int, device: torch.device, kind: str = "") -> Inputs:
    """Q, K and V of the shape's values, or of another kind that `Windows.draw` takes.

    In training a standard normal gradient of O follows.
    Q is ``(batch, heads, seq_len, head_dim)``, K and V are ``(batch, kv_heads, kv_len, head_dim)``, contiguous or
    transposed as the shape's layout says. If lengths are spread, all are views ``(1, heads, tokens, head_dim)`` of
    memory in which the heads of a token are adjacent.

    Raises:
        Unsupported: what was captured doesn't do for this shape.
    """
    windows = Windows(shape, device)
    windows.draw(seed, kind)
    return windows[0]
