"""Inputs: seeded, the same for every implementation of a shape.

=============  =========================================================================================================
kind           what it asks of an implementation
=============  =========================================================================================================
normal         standard normal Q, K and V: what is timed, and where errors are compared most strictly
large logits   Q times 50: scores with a standard deviation of 50, of which most rows hold some beyond what exp takes in
               float32 (88.7) and nearly all beyond float16 (11.1); the softmax is saturated, its running maximum jumps
constant rows  as above with all keys of a head equal: each weight is 1 over the number of keys, whatever the scores, so
               that a key too few or too many shows, and so does a row whose scores are all far below zero
=============  =========================================================================================================
"""

import torch

from attnlab.shapes import Shape

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

NORMAL, LARGE_LOGITS, CONSTANT_ROWS = KINDS = ("normal", "large logits", "constant rows")
# Standard deviation of the scores where they are large.
LOGITS = 50.0


def draw(shape: Shape, seed: int, device: torch.device, kind: str = NORMAL) -> Inputs:
    """Q, K and V of ``(batch, heads, seq_len, head_dim)``, contiguous, of one of `KINDS`.

    Values matter for speed as well as for errors: zeros draw less power and can run faster.
    """
    generator = torch.Generator(device).manual_seed(seed)
    size = (shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    dtype = getattr(torch, shape.dtype)
    q, k, v = (torch.randn(size, generator=generator, device=device, dtype=torch.float32) for _ in range(3))
    if kind != NORMAL:
        q *= LOGITS
    if kind == CONSTANT_ROWS:
        k = k[:, :, :1].expand(size)
    return q.to(dtype), k.to(dtype).contiguous(), v.to(dtype)


def redraw(inputs: Inputs, shape: Shape, seed: int, kind: str = NORMAL) -> None:
    """Overwrite `inputs` in place, so that a captured graph reads values it has not seen."""
    for old, new in zip(inputs, draw(shape, seed, inputs[0].device, kind), strict=True):
        old.copy_(new)
