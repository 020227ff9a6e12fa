"""Inputs: seeded, standard normal, the same for every implementation of a shape."""

import torch

from attnlab.shapes import Shape

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw(shape: Shape, seed: int, device: torch.device) -> Inputs:
    """Q, K and V of ``(batch, heads, seq_len, head_dim)``, contiguous, standard normal.

    Values matter for speed as well as for errors: zeros draw less power and can run faster.
    """
    generator = torch.Generator(device).manual_seed(seed)
    size = (shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    dtype = getattr(torch, shape.dtype)
    q, k, v = (torch.randn(size, generator=generator, device=device, dtype=torch.float32).to(dtype) for _ in range(3))
    return q, k, v


def redraw(inputs: Inputs, shape: Shape, seed: int) -> None:
    """Overwrite `inputs` in place, so that a captured graph reads values it has not seen."""
    for old, new in zip(inputs, draw(shape, seed, inputs[0].device), strict=True):
        old.copy_(new)
