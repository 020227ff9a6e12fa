"""The shape of one attention problem, and the arithmetic that follows from it."""

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, ClassVar

from attnlab.study import values as kinds

BYTES_PER_ELEMENT = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LENGTHS = ("equal", "spread")
LAWS = ("uniform <least> <seed>", "log-normal <median> <seed>", "conversations <seed>")
"""Distributions from which lengths are drawn."""
_LAW = re.compile(r"((uniform|log-normal) [1-9][0-9]{0,6}|conversations) [0-9]{1,6}")
PROMPTS = (2, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315, 1876, 2734, 4083)
"""The quantiles 0, 5 to 95 % of the tokens of 19,366 prompts, of which 2 % are longer than `LONGEST_PROMPT`.

Computed from Azure's LLM inference trace 2023, conversations (CC BY 4.0): Patel et al. 2024, Splitwise: efficient
generative LLM inference using phase splitting.
"""
LONGEST_PROMPT = 4098
DIRECTIONS = ("forward", "training", "backward")
LAYOUTS = ("heads first", "tokens first")


@dataclass(frozen=True, order=True)
class Shape:
    """Attention of queries of ``(batch, heads, seq_len, head_dim)`` over keys and values of ``(batch, kv_heads, kv_len,
    head_dim)``.

    Attributes:
        kv_heads: heads of keys and values, each shared by the same number of query heads; 0, the default, for as
            many as query heads.
        kv_len: number of keys; 0, the default, for as many as queries. A causal mask is aligned to the end: the last
            query sees all keys, as if the first keys came from a cache.
        lengths: ``equal``, or those of sequences packed without padding, the longest of `seq_len` tokens: ``spread``,
            ``uniform 73 1``, ``log-normal 512 1`` or ``conversations 1``, as docs/method.md defines them.
        direction: ``forward``; ``training``: the forward and the backward pass, with the gradients of Q, K and V; or
            ``backward``: these gradients alone, after a forward pass that is not timed.
        layout: ``heads first``, contiguous tensors; or ``tokens first``, transposed views of (B, S, H, D), as a model's
            projections leave them.
        scale: the factor of the scores; 0, the default, for 1/√D.
        values: the input distribution of Q, K and V (`attnlab.study.values`).

    Raises:
        ValueError: a size is not a positive integer, a word is unknown, or axes don't go together.
    """

    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool = False
    dtype: str = "float16"
    kv_heads: int = 0
    kv_len: int = 0
    lengths: str = "equal"
    direction: str = "forward"
    layout: str = "heads first"
    scale: float = 0.0
    values: str = kinds.NORMAL

    AXES: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        for axis, least in zip(self.AXES[:4] + self.AXES[6:8], (1, 1, 1, 1, 0, 0), strict=True):
            size = getattr(self, axis)
            if isinstance(size, bool) or not isinstance(size, int) or size < least:
                raise ValueError(f"{axis} must be a positive integer, not {size!r}")
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "kv_len", self.kv_len or self.seq_len)
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal must be true or false, not {self.causal!r}")
        known = {"dtype": tuple(BYTES_PER_ELEMENT), "direction": DIRECTIONS, "layout": LAYOUTS}
        if not _LAW.fullmatch(str(self.lengths)):
            known["lengths"] = (*LENGTHS, *LAWS)
        for axis, words in known.items():
            if (word := getattr(self, axis)) not in words or word in LAWS:
                raise ValueError(f"unknown {axis} {word!r}; known are {', '.join(words)}")
        if isinstance(self.scale, bool) or not isinstance(self.scale, int | float) or not 0 <= self.scale < math.inf:
            raise ValueError(f"scale must be a number above 0, or 0 for 1/√D, not {self.scale!r}")
        object.__setattr__(self, "scale", float(self.scale))
        if not isinstance(self.values, str):
            raise ValueError(f"values must be the name of a kind, not {self.values!r}")
        for said, is_wrong in self._axes_that_do_not_go_together().items():
            if is_wrong:
                raise ValueError(said)

    def _axes_that_do_not_go_together(self) -> dict[str, object]:
        kind, _ = kinds.split(self.values)
        ragged, other_keys, lengths = self.ragged, self.kv_len != self.seq_len, f"lengths: {self.lengths}"
        counts = f"{self.kv_len} for {self.seq_len}"
        return {
            f"kv_heads must divide heads, and {self.kv_heads} doesn't divide {self.heads}": self.heads % self.kv_heads,
            f"{lengths} is for direction: forward": ragged and self.trains,
            f"{lengths} is for layout: heads first": ragged and self.layout != LAYOUTS[0],
            f"{lengths} is for scale: 0.0": ragged and self.scale,
            f"values: {self.values} is for a head_dim of at least 8, not {self.head_dim}": self.head_dim < 8
            and kind == "positional",
            f"{lengths} needs as many keys as queries, not {counts}": ragged and other_keys,
            f"direction: {self.direction} needs as many keys as queries, not {counts}": self.trains and other_keys,
            f"causal: true needs no fewer keys than queries, not {counts}": self.causal and self.kv_len < self.seq_len,
        }

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        sizes = f"B={self.batch} H={self.heads} S={self.seq_len} D={self.head_dim}"
        return " ".join([sizes, mask, self.dtype, *self.special])

    @property
    def label(self) -> str:
        """``(32, 8, 512, 64) float16``, followed by the differences from plain causal or full self-attention."""
        words = ["causal"] * self.causal + self.special
        return ", ".join([f"({self.batch}, {self.heads}, {self.seq_len}, {self.head_dim}) {self.dtype}", *words])

    @property
    def special(self) -> list[str]:
        """The differences from a forward pass of plain self-attention, in words for a caption."""
        words = {
            f"{self.kv_heads} KV head{'s' * (self.kv_heads > 1)}": self.kv_heads != self.heads,
            f"{self.kv_len} key{'s' * (self.kv_len > 1)}": self.kv_len != self.seq_len,
            f"{self.lengths} lengths": self.lengths != "equal",
            self.direction: self.direction != "forward",
            self.layout: self.layout != "heads first",
            f"scale {self.scale:g}": self.scale != 0,
            f"{self.values} values": self.values != kinds.NORMAL,
        }
        return [word for word, there in words.items() if there]

    @property
    def axes(self) -> dict[str, int | bool | str | float]:
        """The axes by name, in the order of the columns of a run's tables."""
        return {axis: getattr(self, axis) for axis in self.AXES}

    @property
    def plain(self) -> "Shape":
        """The same shape with standard normal values, by which shapes that differ only in their values are grouped."""
        return replace(self, values=kinds.NORMAL)

    @property
    def trains(self) -> bool:
        """Whether gradients of Q, K and V are computed."""
        return self.direction != "forward"

    @property
    def ragged(self) -> bool:
        """Whether sequences of unequal lengths are packed end to end."""
        return self.lengths != "equal"

    @property
    def by_token(self) -> bool:
        """Whether the heads of a token are next to each other in memory."""
        return self.ragged or self.layout == LAYOUTS[1]

    @property
    def rows(self) -> int:
        """The queries of all heads that share a head of K and V."""
        return self.seq_len * self.heads // self.kv_heads

    def resized(self, **axes: int | bool | str | float) -> "Shape":
        """The shape with other axes. If the numbers of keys and queries were equal, they stay equal; so do heads."""
        for axis, like in (("kv_heads", "heads"), ("kv_len", "seq_len")):
            if getattr(self, axis) == getattr(self, like):
                axes.setdefault(axis, 0)
        return replace(self, **axes)  # type: ignore[arg-type]

    @property
    def sequences(self) -> tuple[int, ...]:
        """The number of queries in each sequence of the batch."""
        return _sequences(self.lengths, self.batch, self.seq_len)

    @property
    def tokens(self) -> int:
        """The number of queries over the whole batch."""
        return sum(self.sequences) if self.ragged else self.batch * self.seq_len

    @property
    def scores(self) -> int:
        """The number of scores that the mask leaves, over all heads."""
        if not self.ragged:
            hidden = self.seq_len * (self.seq_len - 1) // 2 if self.causal else 0
            pairs = self.seq_len * self.kv_len - hidden
            return self.batch * self.heads * pairs
        return self.heads * sum(n * (n + 1) // 2 if self.causal else n * n for n in self.sequences)

    @property
    def flops(self) -> int:
        """Floating-point operations of Q·Kᵀ and P·V, with a multiply-add counted as 2.

        ``4·B·H·S²·D``, causal ``2·B·H·S·(S+1)·D``: only scores that the mask leaves count. FlashAttention-2 (arXiv
        2307.08691, section 4.1) halves the full count instead, which gives ``S/(S+1)`` of this. Training takes 3.5x as
        many: the backward pass adds 5 products to these 2 (Q·Kᵀ again, dO·Vᵀ, dV, dQ and dK).
        """
        return {"forward": 4, "training": 14, "backward": 10}[self.direction] * self.scores * self.head_dim

    @property
    def bytes(self) -> int:
        """The least memory traffic: reads of Q, K and V, a write or read of O; with gradients also dO, dQ, dK, dV."""
        tensors = 4 if self.trains else 2
        return tensors * (self.query_elements + self.key_elements) * BYTES_PER_ELEMENT[self.dtype]

    @property
    def query_elements(self) -> int:
        """The number of elements of Q, and of O."""
        return self.tokens * self.heads * self.head_dim

    @property
    def key_elements(self) -> int:
        """The number of elements of K, and of V."""
        keys = self.tokens if self.ragged else self.batch * self.kv_len
        return keys * self.kv_heads * self.head_dim

    @property
    def intensity(self) -> float:
        """Operational intensity in FLOP per byte (Williams, Waterman and Patterson 2009, section 3)."""
        return self.flops / self.bytes

    @property
    def exponentials(self) -> int:
        """Exponentials of the softmax, one per score; in training 2, since the backward pass recomputes them."""
        return self.scores * (2 if self.direction == "training" else 1)


def shape_of(row: Mapping[Any, Any]) -> Shape:
    """The shape of a row of a table, which may have other columns too."""
    values = ((axis, row[axis]) for axis in Shape.AXES)
    return Shape(**{axis: value.item() if hasattr(value, "item") else value for axis, value in values})


@cache
def _sequences(lengths: str, batch: int, longest: int) -> tuple[int, ...]:
    """The number of tokens of each sequence; the last is the longest."""
    if lengths == "equal":
        return (longest,) * batch
    if lengths == "spread":
        return tuple(-(-longest * number // batch) for number in range(1, batch + 1))
    law, *number, seed = lengths.split()
    source = random.Random(int(seed))
    if law == "conversations":
        found = [min(_prompt(source), longest) for _ in range(batch - 1)]
    elif law == "uniform":
        stated = min(int(*number), longest)
        found = [stated, *(source.randint(stated, longest) for _ in range(batch - 2))]
    else:
        drawn = (round(source.lognormvariate(math.log(int(*number)), 1)) for _ in range(batch - 1))
        found = [min(max(1, tokens), longest) for tokens in drawn]
    return (*found[: batch - 1], longest)


def _prompt(source: random.Random) -> int:
    """The tokens of a random prompt: a random quantile, interpolated between those of `PROMPTS`."""
    place, between = divmod(source.random() * len(PROMPTS), 1)
    below, above = (*PROMPTS, LONGEST_PROMPT)[int(place) :][:2]
    return round(below + between * (above - below))


Shape.AXES = tuple(field.name for field in fields(Shape))
