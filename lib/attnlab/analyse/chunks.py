"""What attention over chunks of a sequence computes instead of attention over all of it."""

import numpy as np

SEED = 42
HEADS = 16
"""Over which the error is taken."""


def error(seq_len: int, chunk: int, head_dim: int) -> tuple[float, float]:
    """Root mean square of what attention within chunks differs by from attention over all, and of the latter.

    In float64, over `HEADS` heads of standard normal Q, K and V.
    """
    random = np.random.default_rng(SEED)
    q, k, v = random.standard_normal((3, HEADS, seq_len, head_dim))
    whole = _attention(q, k, v)
    cut = (HEADS * (seq_len // chunk), chunk, head_dim)
    parts = _attention(*(x.reshape(cut) for x in (q, k, v))).reshape(whole.shape)
    return float(np.sqrt(np.mean((parts - whole) ** 2))), float(np.sqrt(np.mean(whole**2)))


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v
