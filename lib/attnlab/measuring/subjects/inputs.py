"""Seeded inputs, the same for every implementation at a shape, and new for each sample.

They have the shape's input distribution (`attnlab.study.values`). In addition, each implementation is checked on

=============  =========================================================================================================
large logits   Q times 50: scores with a standard deviation of 50. In most rows some of them overflow exp in float32
               (beyond 88.7), and in nearly all rows in float16 (11.1); the softmax saturates, its running maximum jumps
constant rows  as above, with all keys of a head equal: each weight is 1 over the number of keys, whatever the scores.
               This reveals a missing or an extra key, and errors in rows whose scores are all far below 0
=============  =========================================================================================================
"""

import random
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.values import drawn
from attnlab.measuring.values.drawn import Memory
from attnlab.runs.schema import CONSTANT_ROWS, EXTREMES
from attnlab.study.shapes import Shape

Inputs = tuple[Tensor, ...]
"""Q, K and V, and in training the gradient of O."""
# Standard deviation of the scores where they are large.
LOGITS = 50.0
# How many ways there are to scramble inputs, in addition to those by their sizes.
SIGNS = 2**16


class Windows:
    """Inputs with memory for a few heads more than a call takes, so that each call of a graph has its own window.

    No 2 windows pair the same head of Q with the same head of K. So a call can't reuse the scores of an earlier call.
    Neighbouring windows share nearly all of their memory, so that all fit into a cache if one does. Windows after the
    first, 0, are shifted in Q or in K by a number of heads.

    Attributes:
        memory: Q, K and V of all windows, in training also the gradient of O, each ``(heads, rows, head_dim)``; if
            the shape is `by_token`, a head has one row.
        kept: objects that implementations made from the inputs.

    Raises Unsupported: the captured values don't fit this shape.
    """

    def __init__(self, shape: Shape, device: torch.device, count: int = 1) -> None:
        self.shape, self._count = shape, count
        self.kept: dict[Hashable, Any] = {}
        self._shared = shape.heads // shape.kv_heads
        self._step, self._kind = drawn.step(shape, device), shape.values
        dtype = getattr(torch, shape.dtype)
        self.memory = [torch.empty(size, dtype=dtype, device=device) for size in self._sizes()]
        longest = max(memory.shape[0] * memory.shape[2] for memory in self.memory)
        unknown = torch.Generator(device).manual_seed(random.SystemRandom().getrandbits(63))
        each = len(self.memory), longest + SIGNS  # were Q's signs those of K, scores would stay as they are
        self._signs = 1 - 2 * torch.randint(0, 2, each, generator=unknown, device=device).to(dtype)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, window: int) -> Inputs:
        """Q, K and V of a window, and in training the gradient of O."""
        if not 0 <= window < self._count:
            raise IndexError(window)
        return self.within(self.memory, window)

    def within(self, memory: Sequence[Tensor], window: int) -> Inputs:
        """A window of other memory that has the inputs' heads and rows in the same order, such as scales."""
        further = (window + 1) // 2 * self._step
        queries, keys = (0, further) if window % 2 else (further * self._shared, 0)
        shape = self.shape
        heads = (shape.heads, shape.kv_heads, shape.kv_heads, shape.heads)
        elements = (shape.query_elements, shape.key_elements, shape.key_elements, shape.query_elements)
        found = []
        for whole, own, count, size, begin in zip(
            memory, self.memory, heads, elements, (queries, keys, 0, 0), strict=False
        ):
            part = whole[begin : begin + size // own[0].numel()]
            if self.shape.by_token:
                sequences = 1 if shape.ragged else shape.batch
                found.append(part.view(sequences, -1, count, shape.head_dim).transpose(1, 2))
            else:
                found.append(part.view(shape.batch, count, *whole.shape[1:]))
        return tuple(found)

    def draw(self, seed: int, kind: str = "") -> None:
        """Overwrite all windows with values of the shape's input distribution, or of `kind`: another one that is
        neither captured nor a mixture, or one of `schema.EXTREMES`."""
        self._kind = kind or self.shape.values
        generator = torch.Generator(self.memory[0].device).manual_seed(seed)
        for memory in self.memory:
            memory.normal_(generator=generator)
        queries, keys, *_ = self.memory
        if self._kind not in EXTREMES:
            drawn.make(self._kind, self.shape, self._described(generator))
            return
        queries *= LOGITS
        if self._kind == CONSTANT_ROWS:  # the keys of each head are equal
            of_head = torch.arange(len(keys), device=keys.device) % self.shape.kv_heads
            keys.copy_(keys[of_head] if self.shape.by_token else keys[:, :1].clone())

    def bits(self) -> list[int]:
        """The sum of the words of each tensor's memory, in which a change shows."""
        word = torch.int16 if self.memory[0][0, 0].nbytes % 8 else torch.int64  # the longer one is faster
        return torch.stack([memory.view(word).sum() for memory in self.memory]).tolist()

    @contextmanager
    def scrambled(self) -> Iterator[None]:
        """A context with other values of the same input distribution; at its end, the old bits are restored.

        Each column of each head changes its sign at random, so that values inside don't reveal those afterwards.
        Columns of Q and K that the distribution sets keep their signs, so that the distribution of scores stays the
        same; captured values keep all. A column of V has one sign for all tokens, which keeps its mean as far from 0.
        """
        kept = 0 if self._kind in EXTREMES else drawn.structured(self._kind, self.shape.head_dim)
        queries, keys, values, *gradients = self.memory
        if self.shape.by_token:
            values = values.view(-1, self.shape.kv_heads, self.shape.head_dim).transpose(0, 1)
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
        """The size of each tensor's memory: heads, rows of a head, columns. If `by_token`, a head has one row."""
        shape = self.shape
        queries = (shape.batch * shape.heads, shape.seq_len, shape.head_dim)
        values = (shape.batch * shape.kv_heads, shape.kv_len, shape.head_dim)
        if self.shape.by_token:
            each = shape.query_elements, shape.key_elements
            queries, values = ((elements // shape.head_dim, 1, shape.head_dim) for elements in each)
        further = tuple(windows * self._step for windows in ((self._count - 1) // 2 * self._shared, self._count // 2))
        windowed = [(size[0] + more, *size[1:]) for size, more in zip((queries, values), further, strict=True)]
        return [*windowed, values] + ([queries] if shape.trains else [])

    def _described(self, generator: torch.Generator) -> Memory:
        shape, device = self.shape, self.memory[0].device
        heads, places = [], []
        lengths: Tensor | int = shape.kv_len
        queries = shape.heads, shape.seq_len, shape.kv_len - shape.seq_len
        for memory, (count, length, begin) in zip(
            self.memory, (queries, (shape.kv_heads, shape.kv_len, 0)), strict=False
        ):
            index = torch.arange(len(memory), device=device)
            heads.append(index % count if self.shape.by_token else index)
            if shape.ragged:
                of_token = index // count % shape.tokens
                each = torch.tensor(shape.sequences, device=device)
                lengths = each.repeat_interleave(each)[of_token, None]
                rows = torch.cat([torch.arange(one, device=device) for one in shape.sequences])[of_token, None]
            elif self.shape.by_token:
                rows = (index // count % length)[:, None]
            else:
                rows = torch.arange(length, device=device)[None]
            places.append(begin + rows)
        return Memory(self.memory[:3], (heads[0], heads[1]), (places[0], places[1]), lengths, generator)


def _some_signs(memory: Tensor, every: Tensor, kept: int) -> Tensor:
    """A random sign for each column of each head, taken from `every`; the first `kept` columns have sign 1."""
    heads, _, columns = memory.shape
    begin = random.SystemRandom().randrange(SIGNS)
    signs = every[begin : begin + heads * columns].view(heads, 1, columns).clone()
    signs[..., :kept] = 1
    return signs


def draw(shape: Shape, seed: int, device: torch.device, kind: str = "") -> Inputs:
    """Q, K and V of the shape's input distribution, or of another that `Windows.draw` takes.

    In training a standard normal gradient of O follows.
    Q is ``(batch, heads, seq_len, head_dim)``, K and V are ``(batch, kv_heads, kv_len, head_dim)``, contiguous or
    transposed as the shape's layout says. If lengths are unequal, all are views ``(1, heads, tokens, head_dim)`` of
    memory in which the heads of a token are adjacent.

    Raises Unsupported: the captured values don't fit this shape.
    """
    windows = Windows(shape, device)
    windows.draw(seed, kind)
    return windows[0]
