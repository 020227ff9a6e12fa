"""FlashInfer: how it is handed tensors without a copy and which way is called, with a package that only pretends."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from attnlab.measuring.peers import flashinfer, plans
from attnlab.measuring.peers.flashinfer import Pages
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.sdpa import sdpa


def drawn(batch: int, heads: int, length: int, layout: str) -> Tensor:
    if layout == "tokens first":
        return torch.randn(batch, length, heads, 8, dtype=torch.float16).transpose(1, 2)
    return torch.randn(batch, heads, length, 8, dtype=torch.float16)


@pytest.mark.parametrize("layout", ["heads first", "tokens first"])
@pytest.mark.parametrize("size", [1, 16, 192])
def test_pages_are_views_that_hold_every_key_of_a_sequence(layout, size):
    keys = drawn(3, 2, 192, layout)
    pages = Pages.of(keys, size)
    ((held, _),) = pages(keys, keys)
    assert held.data_ptr() == keys.data_ptr()
    assert pages.filled.tolist() == [size] * 3
    for sequence, numbers in zip(keys, pages.numbers.split(192 // size), strict=True):
        assert torch.equal(torch.cat([held[number] for number in numbers], dim=1), sequence)


def test_sequences_at_distances_that_no_number_of_pages_has_are_refused():
    keys = torch.empty(2, 3, 40, 8)[:, :, :32]
    with pytest.raises(Unsupported, match="would have to copy these tensors"):
        Pages.of(keys, 16)
    assert Pages.of(keys, 1).numbers.tolist() == [*range(32), *range(120, 152)]


class Wrapper:
    """A pretended wrapper: it notes what it plans, and computes by SDPA what it is asked for."""

    def __init__(self, kind, noted, workspace, layout, backend="one query"):
        self.kind, self.noted, self.backend = kind, noted, backend

    def plan(self, *args, causal=False, **options):
        self.begins, self.causal = args[0], causal
        self.pages = args[-7:-4] if self.kind != "ragged" else ()

    def run(self, q, *given, out):
        if self.kind == "ragged":
            sequences = len(self.begins) - 1
            each = [tensor.unflatten(0, (sequences, -1)).transpose(1, 2) for tensor in (q, *given)]
        else:
            begins, numbers, _ = self.pages
            sequences = len(begins) - 1
            held = [torch.stack([page[n] for n in numbers]).unflatten(0, (sequences, -1)) for page in given[0]]
            keys = [tensor.transpose(1, 2).flatten(2, 3) for tensor in held]
            each = [q.unflatten(0, (sequences, -1)).transpose(1, 2), *keys]
        self.noted.append((self.kind, self.backend, tuple(q.shape)))
        return out.copy_(sdpa(*each, self.causal).transpose(1, 2).reshape(out.shape))


@pytest.fixture
def pretended(monkeypatch):
    """A pretended package on Hopper, and what its wrappers note of their calls."""
    noted: list[tuple] = []

    def wrapper(kind):
        return lambda *args, **options: Wrapper(kind, noted, *args, **options)

    package = SimpleNamespace(
        BatchPrefillWithRaggedKVCacheWrapper=wrapper("ragged"),
        BatchPrefillWithPagedKVCacheWrapper=wrapper("paged"),
        BatchDecodeWithPagedKVCacheWrapper=wrapper("single"),
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return package, noted


@pytest.mark.parametrize(
    ("q", "k", "tried"),
    [
        (drawn(2, 4, 32, "heads first"), (4, 32), {("ragged", (256, 1, 8))}),
        (drawn(2, 4, 32, "tokens first"), (2, 32), {("ragged", (64, 4, 8)), ("paged", (64, 4, 8))}),
        (drawn(2, 4, 1, "heads first"), (2, 48), {("paged", (2, 4, 8)), ("single", (2, 4, 8))}),
        (drawn(1, 4, 5, "heads first"), (2, 48), {("ragged", (5, 4, 8)), ("paged", (5, 4, 8))}),
    ],
    ids=["heads of their own", "shared, tokens first", "one query", "one sequence"],
)
def test_every_way_without_a_copy_gives_the_same(pretended, q, k, tried):
    package, noted = pretended
    heads, length = k
    layout = "heads first" if q.is_contiguous() else "tokens first"
    keys, values = drawn(len(q), heads, length, layout), drawn(len(q), heads, length, layout)
    causal = q.shape[2] == length
    ways = flashinfer.Ways(package, (q, keys, values), causal, None)
    reasons: list[str] = []
    made = [plans.unless_refused(way, flashinfer.REFUSALS, reasons) for way in ways]
    for plan in filter(None, made):
        torch.testing.assert_close(plan(q, keys, values), sdpa(q, keys, values, causal))
    assert {(kind, shape) for kind, _, shape in noted} == tried
    assert {backend for kind, backend, _ in noted if kind != "single"} == {"fa2", "fa3"}
    assert set(reasons) <= {flashinfer.COPIED}
