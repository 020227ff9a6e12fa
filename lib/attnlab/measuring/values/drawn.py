"""The values of Q, K and V of each input distribution that `attnlab.study.values` declares.

A distribution replaces the first columns of standard normal Q and K. The products of these columns add its stated
amount to the scores, independent of the other columns.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.measuring.values import captured
from attnlab.study.shapes import Shape
from attnlab.study.values import CAPTURED, MIXED, TILE, placed, split

# The standard deviation of the log of a row's factor. The least exponent of 2 in a head's factor, and their range.
ROWS, HEADS = 0.5, (-2.0, 5.0)
OUTLIERS, OUTLIER = 1e-3, 10.0
MOST_CAPTURED = 4
"""The most heads of a captured layer that are drawn together."""
STAIR = 4
"""The difference in K between tiles. Its multiples are exact in 16 bits, in bfloat16 for up to 512 tiles."""
SLOWEST = 10_000
"""The frequencies of `positional` are above 1 over this, in radians per key."""


@dataclass(frozen=True)
class Memory:
    """Standard normal Q, K and V in memory order, each ``(heads, rows, head_dim)``, with their heads and positions.

    Attributes:
        tensors: Q, K and V.
        heads: for Q and K, the number of the head of each element of the first dimension.
        places: for Q and K, the position of each row among the keys of its sequence, ``(heads or 1, rows)``.
        lengths: the number of keys in the sequence of each row of K, likewise, or of all sequences.
        generator: draws the numbers.
    """

    tensors: list[Tensor]
    heads: tuple[Tensor, Tensor]
    places: tuple[Tensor, Tensor]
    lengths: Tensor | int
    generator: torch.Generator

    def impose(self, columns: int, queries: Tensor | float, keys: Tensor | float) -> None:
        """Set the first `columns` columns of Q and K."""
        for tensor, said in zip(self.tensors, (queries, keys), strict=False):
            tensor[..., :columns] = said


def structured(values: str, head_dim: int) -> int:
    """The number of first columns of Q and K that the distribution sets: their signs can't be changed independently."""
    name = split(values)[0]
    columns = dict.fromkeys(("sink", "late", "rising", "falling", "stairs", "mixture"), 1)
    return (columns | {"positional": head_dim // 8 * 2, CAPTURED: head_dim}).get(name, 0)


def step(shape: Shape, device: torch.device) -> int:
    """The offset between windows of the inputs, in heads of K and V; 0 if there is only 1 window.

    Q and K of a captured head belong together, and the same head comes again after this number of heads. The same holds
    for the distributions of a mixture. With tokens first, an offset by heads may also be one by tokens. If positions
    matter there, or in packed sequences, the step is 0.

    Raises:
        Unsupported: the captured values don't fit this shape.
    """
    name = split(shape.values)[0]
    together = _together(shape, device) if name == CAPTURED else len(MIXED) if name == "mixture" else 1
    return 0 if placed(shape.values) and shape.by_token else together


def _together(shape: Shape, device: torch.device) -> int:
    """The number of heads of a captured layer that are drawn together."""
    return min(MOST_CAPTURED, captured.layer(split(shape.values)[1], shape, device)[1].shape[0])


def make(values: str, shape: Shape, memory: Memory) -> None:
    """Turn standard normal numbers into the values of a distribution, in place."""
    name, word = split(values)
    (queries, keys, kept), device, places = memory.tensors, memory.tensors[0].device, memory.places[1].unsqueeze(-1)
    lengths = torch.as_tensor(memory.lengths, device=device).unsqueeze(-1)
    match name:
        case "sd":
            queries.mul_(float(word))
        case "sink" | "late":
            height = _height(shape, word)
            at = 0 if name == "sink" else lengths - 1 - lengths // 16
            memory.impose(1, height, height * (places == at))
        case "rising" | "falling":
            height = _height(shape, word)
            along = places / (lengths - 1).clamp(min=1) - 0.5
            memory.impose(1, height, (height if name == "rising" else -height) * along)
        case "stairs":  # centred on the middle key, where float32 sums have the most digits
            tiles = places // TILE - lengths // TILE // 2
            memory.impose(1, _height(shape, word) ** 2 / STAIR, STAIR * tiles)
        case "positional":
            count = shape.head_dim // 8
            frequencies = SLOWEST ** (-torch.arange(count, device=device) / count)
            height = _height(shape, word) / math.sqrt(count)
            angles = (place.unsqueeze(-1) * frequencies for place in memory.places)
            memory.impose(2 * count, *(height * torch.cat((angle.cos(), angle.sin()), -1) for angle in angles))
        case "scales":
            heads, (least, more) = memory.heads[0], HEADS
            found = torch.rand(int(heads.max()) + 1, generator=memory.generator, device=device)
            of_head = 2 ** (least + more * found)[heads]
            of_row = torch.randn(queries.shape[:2], generator=memory.generator, device=device).mul_(ROWS).exp_()
            queries.mul_((of_head[:, None] * of_row).unsqueeze(-1).to(queries.dtype))
        case "outliers":
            for tensor in memory.tensors:
                far = torch.empty_like(tensor).normal_(0, OUTLIER, generator=memory.generator)
                tensor.add_(far.mul_(torch.empty_like(tensor).bernoulli_(OUTLIERS, generator=memory.generator)))
        case "student":
            half = float(word) / 2
            for tensor in memory.tensors:
                chi2 = torch._standard_gamma(torch.full(tensor.shape, half, device=device), memory.generator)
                limits = torch.finfo(tensor.dtype)
                tensor.copy_((tensor / chi2.div_(half).sqrt_()).clamp_(limits.min, limits.max))
        case "mixture":
            _mix(shape, memory)
        case "offset":
            kept.add_(float(word))
        case "zeros":
            queries.zero_()
            keys.zero_()
            kept.copy_(kept[:1, :1].expand_as(kept).clone())
        case _ if name == CAPTURED:
            _make_captured(shape, memory, word)


def _mix(shape: Shape, memory: Memory) -> None:
    """Give heads of K and V, with the heads of Q that share them, the distributions of `MIXED` in turn."""
    of_queries, of_keys = memory.heads
    kv_heads = (of_queries // (shape.heads // shape.kv_heads), of_keys, of_keys[: len(memory.tensors[2])])
    for turn, kind in enumerate(MIXED):
        chosen = [of % len(MIXED) == turn for of in kv_heads]
        heads = of_queries[chosen[0]], of_keys[chosen[1]]
        queries, keys = (at if len(at) == 1 else at[its] for at, its in zip(memory.places, chosen, strict=False))
        lengths = memory.lengths if isinstance(memory.lengths, int) else memory.lengths[chosen[1]]
        parts = [tensor[its] for tensor, its in zip(memory.tensors, chosen, strict=True)]
        make(kind, shape, Memory(parts, heads, (queries, keys), lengths, memory.generator))
        for tensor, its, part in zip(memory.tensors, chosen, parts, strict=True):
            tensor[its] = part


def _make_captured(shape: Shape, memory: Memory, word: str) -> None:
    """Copy heads of a captured layer, drawn at random, with random columns' signs flipped."""
    (queries, keys, kept), device = memory.tensors, memory.tensors[0].device
    q, k, v = captured.layer(word, shape, device)
    repeats, shared, grouped = _together(shape, device), shape.heads // shape.kv_heads, q.shape[0] // k.shape[0]
    chosen = torch.randperm(k.shape[0], generator=memory.generator, device=device)[:repeats]
    of_queries, of_keys = memory.heads[0] // shared % repeats, memory.heads[1] % repeats
    signs = 1 - 2 * torch.randint(2, (repeats, shape.head_dim), generator=memory.generator, device=device)
    rows = [places - places.min() for places in memory.places]
    heads = chosen[of_queries] * grouped + memory.heads[0] % shared % grouped, chosen[of_keys]
    for tensor, source, head, row, of in zip((queries, keys), (q, k), heads, rows, (of_queries, of_keys), strict=True):
        tensor.copy_(source[head[:, None], row] * signs[of][:, None].to(source.dtype))
    number = memory.heads[1][: len(kept)]
    size = (int(number.max()) + 1, 1, shape.head_dim)
    flips = 1 - 2 * torch.randint(2, size, generator=memory.generator, device=device)
    kept.copy_(v[heads[1][: len(kept), None], rows[1][: len(kept)]] * flips[number].to(v.dtype))


def _height(shape: Shape, word: str) -> float:
    """The number that a column has to hold in Q and in K to add `word` nats to a score."""
    return math.sqrt(float(word) / (shape.scale or 1 / math.sqrt(shape.head_dim)))
