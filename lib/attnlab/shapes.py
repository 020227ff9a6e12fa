"""The shape of one attention problem, and the arithmetic that follows from it."""

from dataclasses import dataclass, fields
from typing import ClassVar

BYTES_PER_ELEMENT = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, order=True)
class Shape:
    """Self-attention over Q, K, V of ``(batch, heads, seq_len, head_dim)`` each.

    Raises:
        ValueError: a size that is not a positive integer, or a dtype that is not known.
    """

    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool = False
    dtype: str = "float16"

    AXES: ClassVar[tuple[str, ...]] = ("batch", "heads", "seq_len", "head_dim", "causal", "dtype")

    def __post_init__(self) -> None:
        for axis in ("batch", "heads", "seq_len", "head_dim"):
            size = getattr(self, axis)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{axis} must be a positive integer, not {size!r}")
        if not isinstance(self.causal, bool):
            raise ValueError(f"causal must be true or false, not {self.causal!r}")
        if not isinstance(self.dtype, str) or self.dtype not in BYTES_PER_ELEMENT:
            known = ", ".join(BYTES_PER_ELEMENT)
            raise ValueError(f"unknown dtype {self.dtype!r}; known are {known}")

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"B={self.batch} H={self.heads} S={self.seq_len} D={self.head_dim} {mask} {self.dtype}"

    @property
    def axes(self) -> dict[str, int | bool | str]:
        """The axes by name, in the order in which the run's tables hold them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def scores(self) -> int:
        """Entries of the score matrix that the mask lets through, over all heads."""
        pairs = self.seq_len * (self.seq_len + 1) // 2 if self.causal else self.seq_len**2
        return self.batch * self.heads * pairs

    @property
    def flops(self) -> int:
        """Floating-point operations of Q·Kᵀ and P·V, a multiply-add counted as two.

        ``4·B·H·S²·D``, causal ``2·B·H·S·(S+1)·D``: only scores under the mask count. FlashAttention-2 (arXiv
        2307.08691, section 4.1) halves the full count instead, which is ``S/(S+1)`` of this.
        """
        return 4 * self.scores * self.head_dim

    @property
    def bytes(self) -> int:
        """Compulsory traffic: Q, K and V read once and O written once."""
        return 4 * self.tensor_elements * BYTES_PER_ELEMENT[self.dtype]

    @property
    def tensor_elements(self) -> int:
        """Elements of one of Q, K, V, O."""
        return self.batch * self.heads * self.seq_len * self.head_dim

    @property
    def intensity(self) -> float:
        """Operational intensity in FLOP per byte (Williams, Waterman and Patterson 2009, section 3)."""
        return self.flops / self.bytes

    @property
    def exponentials(self) -> int:
        """Exponentials of the softmax, one per score."""
        return self.scores
