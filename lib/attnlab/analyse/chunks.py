"""What attention over chunks of a sequence computes instead of attention over all of it."""

import numpy as np

SEED = 42
HEADS = 16
"""Over which the error is taken."""


def error(seq_len: int, chunk: int, head_dim: int) -> tuple[float, float]:
    """Root mean square of what attention within chunks differs by from attention over all, and of the latter.

    In float64, over `HEADS` heads of standard normal Q, K and V; `chunk` divides `seq_len`.
    """
    random = np.random.default_rng(SEED)
    heads = random.standard_normal((3, HEADS, seq_len, head_dim)).swapaxes(0, 1)
    # A chunk of queries at a time: all scores at once would not fit the memory at long lengths.
    pairs = [
        (_attention(q[own], k, v), _attention(q[own], k[own], v[own]))
        for q, k, v in heads
        for own in (slice(start, start + chunk) for start in range(0, seq_len, chunk))
    ]
    whole, parts = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return float(np.sqrt(np.mean((parts - whole) ** 2))), float(np.sqrt(np.mean(whole**2)))


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.T / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v
