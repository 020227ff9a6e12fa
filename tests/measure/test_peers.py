"""Peers whose plans are timed: the tensors that each gets, and the plan that is called, with mock packages."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import told
from torch import Tensor

from attnlab.measuring.fp8 import cudnn as in_fp8
from attnlab.measuring.fp8.quantize import E4M3, quantize
from attnlab.measuring.peers import cudnn, flashinfer, frontend, plans
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.sdpa import sdpa
from attnlab.study import implementations

STREAM = 7
REFUSES = "refuses to be built"
FAILS = "fails when it is called\nin two lines"
Q = torch.zeros(2, 8, 16, 64, dtype=torch.float16)


# cuDNN


class NotSupported(Exception):
    """The exception of cuDNN's frontend for a graph that it doesn't serve; it has no common base class."""


class Graph:
    """A graph of the mock frontend. Each plan that it offers is a latency in ms, or the reason why the plan fails.

    Plans are offered for each of cuDNN's implementations, or in FP8 for each type of O.
    """

    def __init__(self, package, options):
        self.package, self.options = package, options
        self.offer, self.stated, self.set, self.executed = "", {}, {}, []

    def tensor(self, **stated):
        return stated

    def sdpa(self, *given, implementation, **stated):
        assert [one["uid"] for one in given] == [1, 2, 3]
        self.offer, self.stated = implementation, stated
        return self, None

    def sdpa_fp8(self, *given, **stated):
        self.stated, largest = stated, [Graph(self.package, {}) for _ in range(2)]
        return self, None, *largest

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda value: self.set.__setitem__(name, value) or self

    def validate(self):
        self.offer = self.offer or self.set["set_data_type"]
        self.package.graphs[self.offer] = self
        if not self.package.offers[self.offer]:
            raise NotSupported("this implementation refuses")

    def build_operation_graph(self): ...

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]

    def get_execution_plan_count(self):
        return len(self.package.offers[self.offer])

    def build_plan_at_index(self, index):
        if self.package.offers[self.offer][index] == REFUSES:
            raise NotSupported(REFUSES)

    def get_workspace_size_plan_at_index(self, index):
        return 256 * index

    def execute_plan_at_index(self, tensors, workspace, index, handle, tensor_uids):
        took = self.package.offers[self.offer][index]
        if isinstance(took, str):
            raise RuntimeError(took)
        self.package.took = took
        self.executed.append((index, tensors, workspace.numel(), handle, tensor_uids))


@pytest.fixture
def pretended(monkeypatch):
    """A function that sets the plans of a mock of cuDNN's frontend, and returns the mock."""
    package = SimpleNamespace(
        cudnnGraphNotSupportedError=NotSupported,
        pygraph=lambda **options: Graph(package, options),
        data_type=SimpleNamespace(HALF="half", BFLOAT16="bf16", FLOAT="fp32", FP8_E4M3="e4m3"),
        cuda_graph_retention=SimpleNamespace(NONE="none"),
        heur_mode=SimpleNamespace(A="A", FALLBACK="FALLBACK"),
        attention_implementation=SimpleNamespace(UNIFIED="unified", COMPOSITE="composite"),
        set_stream=lambda handle, stream: package.streams.append((handle, stream)),
        backend_version=lambda: 92700,
        graphs={},
        streams=[],
    )

    def took(plan, tensors):
        plan(*tensors)
        return package.took

    def offer(**offers):
        package.offers = offers
        return package

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92700)
    monkeypatch.setattr(frontend, "handle_of", lambda device, thread: "handle")
    monkeypatch.setattr(plans, "installed", lambda module, title, device: package)
    monkeypatch.setattr(plans, "_calls_ms", took)
    monkeypatch.setattr(cudnn, "_plans", {})
    monkeypatch.setattr(in_fp8, "_plans", {})
    return offer


@pytest.mark.parametrize(
    ("composite", "unified", "graph", "index"),
    [
        ([3.0, 2.0, 4.0], [2.5], "composite", 1),
        ([3.0, 2.0], [9.0, 1.5], "unified", 1),
        ([REFUSES, 2.0, FAILS], [], "composite", 1),
        ([], [FAILS, 7.0], "unified", 1),
        ([5.0, 5.1], [], "composite", 0),
    ],
)
def test_of_the_plans_that_work_the_fastest_is_called_on_the_stream_of_torch(
    pretended, composite, unified, graph, index
):
    package = pretended(composite=composite, unified=unified)
    cudnn.cudnn(Q, Q, Q, True, 0.5)
    for made in package.graphs.values():
        made.executed.clear()
    output = cudnn.cudnn(Q, Q, Q, True, 0.5)
    ((ran, (*given, written), workspace, handle, uids),) = package.graphs[graph].executed
    assert (ran, workspace, handle, uids) == (index, max(1, 256 * index), "handle", (1, 2, 3, 4))
    assert all(one is Q for one in given)
    assert written is output
    assert sum(len(made.executed) for made in package.graphs.values()) == 1
    assert set(package.streams) == {("handle", STREAM)}
    stated = package.graphs[graph].stated
    assert (stated["attn_scale"], stated["use_causal_mask_bottom_right"]) == (0.5, True)


@pytest.mark.parametrize(
    ("composite", "reason"), [([FAILS, REFUSES], "fails when it is called"), ([], "this implementation refuses")]
)
def test_where_no_plan_works_the_first_reason_is_said_in_a_line(pretended, composite, reason):
    pretended(composite=composite, unified=[])
    with pytest.raises(Unsupported, match=f"^{reason}$"):
        cudnn.cudnn(Q, Q, Q, False)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_device_that_is_full_or_failed_is_no_refusal(pretended, monkeypatch, error):
    monkeypatch.setattr(Graph, "execute_plan_at_index", Mock(side_effect=error("of the device")))
    pretended(composite=[1.0, 2.0], unified=[])
    assert "of the device" in told(lambda: cudnn.cudnn(Q, Q, Q, False), error)


def test_what_cudnn_cannot_plan_or_read_is_refused(pretended, monkeypatch):
    pretended(composite=[1.0], unified=[])
    odd = torch.zeros(Q.numel() + 1, dtype=torch.float16)[1:].view(Q.shape)
    cudnn.cudnn(Q, Q, Q, False)
    assert told(lambda: cudnn.cudnn(Q, odd, Q, False), Unsupported).endswith("multiples of 16")
    assert "takes float16 and bfloat16, not float32" in told(lambda: cudnn.cudnn(*[Q.float()] * 3, False), Unsupported)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "no graph can capture" in told(lambda: cudnn.cudnn(Q, Q, Q, True), Unsupported)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    with pytest.raises(Unsupported, match=r"^nvidia-cudnn-frontend uses cuDNN 92700, and PyTorch 91900$"):
        cudnn.cudnn(Q, Q, Q, True)


@pytest.mark.parametrize(("half", "dtype"), [([REFUSES], E4M3), ([1.0], torch.float16)], ids=str)
def test_in_fp8_cudnn_writes_e4m3_where_no_plan_writes_16_bits(pretended, half, dtype):
    package = pretended(half=half, e4m3=[1.0])
    q, k, v = quantize(*torch.randn(3, 1, 2, 16, 64), "tensor")
    output = in_fp8.attention(q, k, v, True, torch.float16)
    assert (output.dtype, output.shape) == (dtype, q.values.shape)
    graph = package.graphs["half" if dtype == torch.float16 else "e4m3"]
    _, tensors, *_, uids = graph.executed[-1]
    assert uids == tuple(range(1, 13))
    assert [one.data_ptr() for one in tensors[:4]] == [one.data_ptr() for one in (q.values, k.values, v.values, output)]
    of_v = v.scales.item() if dtype == torch.float16 else 1.0
    scalars = [one.item() for one in tensors[4:]]
    assert scalars == [q.scales.item(), k.scales.item(), of_v, 2.0**-8, 2.0**8, 1.0, 0.0, 0.0]
    assert [graph.stated[name]["uid"] for name in in_fp8.SCALARS] == [*range(5, 11)]
    with pytest.raises(Unsupported, match="as many queries as keys under the causal mask"):
        in_fp8.attention(*quantize(*(torch.ones(1, 2, n, 64) for n in (8, 16, 16)), "tensor"), True, torch.float16)


# FlashInfer


def drawn(batch: int, heads: int, length: int, layout: str) -> Tensor:
    if layout == "tokens first":
        return torch.randn(batch, length, heads, 8, dtype=torch.float16).transpose(1, 2)
    return torch.randn(batch, heads, length, 8, dtype=torch.float16)


@pytest.mark.parametrize("layout", ["heads first", "tokens first"])
@pytest.mark.parametrize("size", [1, 16, 192])
def test_pages_are_views_that_hold_every_key_of_a_sequence(layout, size):
    keys = drawn(3, 2, 192, layout)
    view, (_, numbers, filled) = flashinfer.pages(keys, size)
    held = keys.as_strided(*view)
    assert filled.tolist() == [size] * 3
    for sequence, own in zip(keys, numbers.split(192 // size), strict=True):
        assert torch.equal(torch.cat([held[number] for number in own], dim=1), sequence)


def test_sequences_at_distances_that_no_number_of_pages_has_are_refused():
    keys = torch.empty(2, 3, 40, 8)[:, :, :32]
    assert "would have to copy these tensors" in told(lambda: flashinfer.pages(keys, 16), Unsupported)
    assert flashinfer.pages(keys, 1)[1][1].tolist() == [*range(32), *range(120, 152)]


class Wrapper:
    """A mock of FlashInfer's wrapper: it records the arguments of its plans, and computes by SDPA."""

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
def test_every_way_without_a_copy_gives_the_same(monkeypatch, q, k, tried):
    noted: list[tuple] = []
    kinds = {"ragged": "PrefillWithRagged", "paged": "PrefillWithPaged", "single": "DecodeWithPaged"}
    made = {f"Batch{name}KVCacheWrapper": partial(Wrapper, kind, noted) for kind, name in kinds.items()}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    heads, length = k
    layout = "heads first" if q.is_contiguous() else "tokens first"
    keys, values = drawn(len(q), heads, length, layout), drawn(len(q), heads, length, layout)
    causal, reasons = q.shape[2] == length, list[str]()
    for way in flashinfer.all_ways(SimpleNamespace(**made), q, keys, values, causal, None):
        with plans.refusing(flashinfer.REFUSALS, reasons):
            torch.testing.assert_close(way()(q, keys, values), sdpa(q, keys, values, causal))
    assert {(kind, shape) for kind, _, shape in noted} == tried
    assert {backend for kind, backend, _ in noted if kind != "single"} == {"fa2", "fa3"}
    assert set(reasons) <= {flashinfer.COPIED}


# What isn't there is said


def test_every_peer_is_found_by_its_name():
    assert [registry.find(name).name for name in implementations.PEERS] == list(implementations.PEERS)
    assert registry.find(implementations.control("peer.flex")).call is registry.find("peer.flex").call


def test_without_its_package_a_peer_is_not_installed(monkeypatch):
    monkeypatch.setattr(plans, "imported", lambda module: ModuleNotFoundError(f"No {module}", name=module))
    with pytest.raises(Unsupported, match=r"^nvidia-cudnn-frontend is not installed$"):
        frontend.installed(torch.device("cuda"))
    monkeypatch.setattr(plans, "imported", lambda module: ModuleNotFoundError("No nvcc", name="nvcc"))
    with pytest.raises(Unsupported, match=r"^FlashInfer lacks nvcc$"):
        plans.installed("flashinfer", "FlashInfer", torch.device("cuda"))
