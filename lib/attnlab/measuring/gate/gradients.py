"""The gate for gradients: O, dQ, dK and dV of any function, on any input distribution."""

from collections.abc import Iterable
from functools import partial

import torch

from attnlab.measuring.gate.check import Check
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.implementation import Attention, Unsupported, with_gradients
from attnlab.study import values
from attnlab.study.shapes import Shape


def check_gradients(
    attention: Attention,
    shape: Shape,
    kinds: Iterable[str] = values.STANDARD,
    seed: int = 0,
    device: torch.device | str = "cuda",
    repeats: bool = True,
) -> dict[str, Check]:
    """The check of the worst of O, dQ, dK and dV, on each of these input distributions that fits the shape.

    Each may have twice the error of `oracle.gradients` against float64. If one key has nearly all of the weight, the
    largest error of dK comes from 1 number of each head. With fewer than 8 heads of K the verdict is then random.

    Args:
        attention: ``(q, k, v, causal, scale) -> o``, which autograd differentiates; dO is standard normal.
        repeats: whether all 4 must have the same bits in each run.
    """
    device, scale, found = torch.device(device), shape.scale or None, {}
    for kind in kinds:
        try:
            drawn = inputs.draw(shape.resized(values=kind), seed, device)
        except Unsupported:
            continue
        noise = torch.randn(drawn[0].shape, generator=torch.Generator(device).manual_seed(seed), device=device)
        given = (*drawn, noise.to(drawn[0].dtype))
        call = partial(with_gradients, lambda *now: attention(*now, scale), given, shape.causal)
        found[kind] = Gate(given, shape.causal, kind, scale=scale).examine(call, repeats=repeats)
    return found
