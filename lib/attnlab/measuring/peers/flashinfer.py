"""FlashInfer's attention, by the fastest of its kernels and of the ways to hand it tensors of a layout.

Its tensors are ``(tokens, heads, head_dim)``, several sequences one after the other; or K and V are pages of some keys
each, and where keys are split, then between pages. It has kernels for every NVIDIA GPU (``fa2``) and for Hopper
(``fa3``, FlashAttention-3's algorithm), and compiles them with nvcc where they are called for the first time. What it
plans on the host, once for all layers of a step, is done at the first call of a layout, and not timed.
"""

import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.kernels import launch
from attnlab.measuring.peers import packages, plans
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.sdpa import offsets

DTYPES = (torch.float16, torch.bfloat16)
GENERAL, HOPPER = "fa2", "fa3"
PAGES = (1, 16, 64)
"""Keys of a page, as servers have them; those that divide the number of keys are tried."""
# Of partial results where keys are split, as the package advises.
WORKSPACE_BYTES = 128 * 2**20
REFUSALS = (Unsupported, OSError, RuntimeError, ValueError, NotImplementedError, AssertionError)
COPIED = "FlashInfer takes the heads of a token beside each other, and would have to copy these tensors"


@dataclass(frozen=True, eq=False)
class FlashInferPlan:
    """What FlashInfer planned for a layout, and how it is handed tensors: calls run one after the other on one stream.

    Attributes:
        wrapper: FlashInfer's own plan.
        rows: Q as a view of ``(tokens, heads, head_dim)``, and `back` undoes it for an output like Q.
        given: K and V as FlashInfer takes them: two tensors, or one pair of pages.
    """

    wrapper: Any
    rows: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor], Tensor]
    given: Callable[[Tensor, Tensor], tuple[Any, ...]]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """O, like Q."""
        rows = self.rows(q)
        output = torch.empty(rows.shape, dtype=q.dtype, device=q.device)
        return self.back(self.wrapper.run(rows, *self.given(k, v), out=output), q)


@dataclass(frozen=True, eq=False)
class Pages:
    """K or V as pages of so many keys of all heads, without a copy.

    Attributes:
        shape, strides: of ``(pages, kv_heads, keys, head_dim)``; pages overlap, and of each sequence those are used
            that `numbers` names.
        begins: where the pages of each sequence begin in `numbers`.
        filled: the keys in the last page of each sequence.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begins: Tensor
    numbers: Tensor
    filled: Tensor

    @classmethod
    def of(cls, keys: Tensor, size: int) -> "Pages":
        """Those of a tensor ``(batch, kv_heads, kv_len, head_dim)``, whose keys pages of this size divide.

        Raises:
            Unsupported: sequences lie at distances that no number of pages has.
        """
        batch, heads, length, head_dim = keys.shape
        between, of_head, of_key, of_element = keys.stride()
        each, between_pages = length // size, size * of_key
        if batch > 1 and between % between_pages:
            raise Unsupported(COPIED)
        firsts = torch.arange(batch, dtype=torch.int32, device=keys.device) * (between // between_pages)
        numbers = (firsts[:, None] + torch.arange(each, dtype=torch.int32, device=keys.device)).flatten()
        begins = offsets((each,) * batch, keys.device, torch.int32)
        shape = ((batch - 1) * (between // between_pages) + each, heads, size, head_dim)
        return cls(shape, (between_pages, of_head, of_key, of_element), begins, numbers, torch.full_like(firsts, size))

    def __call__(self, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, Tensor]]:
        """The pages of K and of V, as one argument."""
        return ((k.as_strided(self.shape, self.strides), v.as_strided(self.shape, self.strides)),)


@dataclass(frozen=True, eq=False)
class Ways:
    """The ways to hand FlashInfer tensors of one layout without a copy; each raises what it refuses them with."""

    package: Any
    tensors: tuple[Tensor, Tensor, Tensor]
    causal: bool
    scale: float | None
    sequences: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Callable[[], FlashInferPlan]]:
        q, k, v = self.tensors
        hopper = torch.cuda.get_device_capability(q.device)[0] == 9
        has_pages = k.stride() == v.stride() and not self.sequences
        sizes = [size for size in (*PAGES, k.shape[2]) if k.shape[2] % size == 0] if has_pages else []
        for kernels in (HOPPER, GENERAL) if hopper else (GENERAL,):
            yield partial(self.ragged, kernels, tokens, by_tokens)
            if q.shape[1] == k.shape[1] and not self.sequences:
                yield partial(self.ragged, kernels, heads_apart, by_heads)
            yield from (partial(self.paged, kernels, size) for size in sizes)
        if q.shape[2] == 1:
            yield from (partial(self.single, size) for size in sizes)

    def ragged(
        self, kernels: str, rows: Callable[[Tensor], Tensor], back: Callable[[Tensor, Tensor], Tensor]
    ) -> FlashInferPlan:
        """All sequences one after the other, or all heads of each, as sequences of one head."""
        q, k, _ = self.tensors
        queries, keys = rows(q), rows(k)
        wrapper = self.package.BatchPrefillWithRaggedKVCacheWrapper(workspace(q.device), "NHD", backend=kernels)
        begins = (
            offsets(self.sequences or (each.shape[2],) * (len(flat) // each.shape[2]), q.device, torch.int32)
            for each, flat in ((q, queries), (k, keys))
        )
        wrapper.plan(*begins, queries.shape[1], keys.shape[1], q.shape[3], causal=self.causal, **self._options)
        return FlashInferPlan(wrapper, rows, back, lambda k, v: (rows(k), rows(v)))

    def paged(self, kernels: str, size: int) -> FlashInferPlan:
        """K and V as pages of so many keys."""
        q, _, _ = self.tensors
        begins = offsets((q.shape[2],) * len(q), q.device, torch.int32)
        wrapper = partial(self.package.BatchPrefillWithPagedKVCacheWrapper, backend=kernels)
        return self._over_pages(wrapper, size, begins, causal=self.causal)

    def single(self, size: int) -> FlashInferPlan:
        """The same for one query of each sequence, by the kernel for it, which multiplies without tensor cores."""
        return self._over_pages(self.package.BatchDecodeWithPagedKVCacheWrapper, size)

    def _over_pages(self, make: Callable[..., Any], size: int, *begins: Tensor, **options: Any) -> FlashInferPlan:
        """A plan of a wrapper that takes pages, with where the queries of each sequence begin if it asks for that."""
        q, k, _ = self.tensors
        queries, pages = tokens(q), Pages.of(k, size)
        wrapper, listed = make(workspace(q.device), "HND"), (pages.begins, pages.numbers, pages.filled)
        wrapper.plan(*begins, *listed, queries.shape[1], k.shape[1], q.shape[3], size, **options, **self._options)
        return FlashInferPlan(wrapper, tokens, by_tokens, pages)

    @property
    def _options(self) -> dict[str, Any]:
        q = self.tensors[0]
        return {"sm_scale": self.scale, "q_data_type": q.dtype, "kv_data_type": q.dtype}


def flashinfer(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None, sequences: tuple[int, ...] = ()
) -> Tensor:
    """FlashInfer's attention by the fastest plan for a layout; all are timed when such tensors come for the first time.

    Args:
        sequences: the lengths of sequences that lie end to end in tensors of ``(1, heads, tokens, head_dim)``.

    Raises:
        Unsupported: the package is not installed, the device is no NVIDIA GPU, no kernel of it serves such tensors as
            they lie in memory, or tensors of this layout come for the first time while a graph is captured.
    """
    key = (launch.layout(q, k, v, causal, scale), sequences)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _plan(q, k, v, causal, scale, sequences)
    return plan(q, k, v)


def flashinfer_ragged(q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """`flashinfer` on sequences that lie end to end."""
    return flashinfer(q, k, v, causal, sequences=sequences)


# Never emptied: captured graphs launch what a plan holds.
_plans: dict[Hashable, FlashInferPlan] = {}


def _plan(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, sequences: tuple[int, ...]
) -> FlashInferPlan:
    if q.device.type != "cuda":
        raise Unsupported("FlashInfer needs an NVIDIA GPU")
    package = packages.installed("flashinfer", "FlashInfer")
    if q.dtype not in DTYPES:
        raise Unsupported(f"FlashInfer takes float16 and bfloat16, not {str(q.dtype).removeprefix('torch.')}")
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported("FlashInfer plans at the first call of a layout, which no graph can capture")
    logging.getLogger("flashinfer").setLevel(logging.ERROR)  # it tells of each kernel that it compiles
    reasons: list[str] = []
    with torch.cuda.device(q.device):
        ways = Ways(package, (q, k, v), causal and q.shape[2] > 1, scale, sequences)
        made = [plans.unless_refused(partial(_tried, way, q, k, v), REFUSALS, reasons) for way in ways]
        working = [plan for plan in made if plan]
        if not working:
            raise Unsupported(next((f"FlashInfer: {reason}" for reason in reasons if reason != COPIED), COPIED))
        return working[plans.fastest([partial(plan, q, k, v) for plan in working])]


def _tried(way: Callable[[], FlashInferPlan], q: Tensor, k: Tensor, v: Tensor) -> FlashInferPlan:
    plan = way()
    plan(q, k, v)
    torch.cuda.synchronize(q.device)
    return plan


@cache
def workspace(device: torch.device) -> Tensor:
    """Memory for partial results, shared by all plans: calls run one after the other."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def tokens(tensor: Tensor) -> Tensor:
    """A view of ``(batch * length, heads, head_dim)``; raises Unsupported where only a copy could be."""
    return _view(tensor.transpose(1, 2), tensor.shape[1])


def by_tokens(rows: Tensor, q: Tensor) -> Tensor:
    """Rows of `tokens` in the shape of Q."""
    return rows.view(len(q), q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)


def heads_apart(tensor: Tensor) -> Tensor:
    """A view of ``(batch * heads * length, 1, head_dim)``; raises Unsupported where only a copy could be."""
    return _view(tensor, 1)


def by_heads(rows: Tensor, q: Tensor) -> Tensor:
    """Rows of `heads_apart` in the shape of Q."""
    return rows.view(q.shape)


def _view(tensor: Tensor, heads: int) -> Tensor:
    try:
        return tensor.view(-1, heads, tensor.shape[-1])
    except RuntimeError:
        raise Unsupported(COPIED) from None
