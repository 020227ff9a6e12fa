"""Inputs: seeded, and the same for every implementation at a shape.

=============  =========================================================================================================
kind           what it is, and what it asks of an implementation
=============  =========================================================================================================
normal         standard normal Q, K and V: what is timed, and where errors are compared most strictly
large logits   Q times 50: scores with a standard deviation of 50. In most rows some of them overflow exp in float32
               (beyond 88.7), and in nearly all rows in float16 (11.1); the softmax saturates, its running maximum jumps
constant rows  as above, with all keys of a head equal: each weight is 1 over the number of keys, whatever the scores.
               This reveals a key too few or too many, and errors in rows whose scores are all far below zero
=============  =========================================================================================================
"""

import torch

from attnlab.runs.schema import CONSTANT_ROWS, NORMAL
from attnlab.study.shapes import Shape

Inputs = tuple[torch.Tensor, ...]
"""Q, K and V, in training also the gradient of O."""
# Standard deviation of the scores where they are large.
LOGITS = 50.0


def draw(shape: Shape, seed: int, device: torch.device, kind: str = NORMAL) -> Inputs:
    """Q, K and V of one of `schema.KINDS`, contiguous; in training also a standard normal gradient of O.

    Q is ``(batch, heads, seq_len, head_dim)``, K and V are ``(batch, kv_heads, kv_len, head_dim)``. If lengths are
    spread, all are views ``(1, heads, tokens, head_dim)`` of memory in which the heads of a token are adjacent. Values
    matter for speed as well as for errors: zeros draw less power and can run faster.
    """
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, shape.dtype)
    q, k, v, *gradient = (
        torch.randn(size, generator=generator, device=device, dtype=torch.float32) for size in _sizes(shape)
    )
    if kind != NORMAL:
        q *= LOGITS
    if kind == CONSTANT_ROWS:
        k = k[:, :, :1].expand_as(k)
    drawn = (tensor.to(dtype).contiguous() for tensor in (q, k, v, *gradient))
    if shape.lengths == "spread":
        return tuple(tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in drawn)
    return tuple(drawn)


def _sizes(shape: Shape) -> list[tuple[int, int, int, int]]:
    batch, length, keys = shape.batch, shape.seq_len, shape.kv_len
    if shape.lengths == "spread":
        batch, length, keys = 1, shape.tokens, shape.tokens
    queries = (batch, shape.heads, length, shape.head_dim)
    values = (batch, shape.kv_heads, keys, shape.head_dim)
    return [queries, values, values] + ([queries] if shape.direction == "training" else [])


def redraw(inputs: Inputs, shape: Shape, seed: int, kind: str = NORMAL) -> None:
    """Overwrite `inputs` in place, so that a captured graph reads values it has not seen."""
    for old, new in zip(inputs, draw(shape, seed, inputs[0].device, kind), strict=True):
        old.copy_(new)
