"""cuDNN through its own frontend: which plans are tried and which is called, with a frontend that only pretends."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnlab.measure.fp8 import cudnn as in_fp8
from attnlab.measure.fp8.quantize import quantize
from attnlab.measure.peers import cudnn, packages, plans
from attnlab.measure.subjects.implementation import Unsupported

STREAM = 7
REFUSES = "refuses to be built"
FAILS = "fails when it is called\nin two lines"


class NotSupported(Exception):
    """What cuDNN's frontend raises for a graph that it doesn't serve: an error of no standard kind."""


@dataclass
class Graph:
    """A graph of a pretended frontend. Its plans are how long each takes, in ms, or why it doesn't work."""

    plans: list[float | str]
    options: dict[str, Any]
    tensors: list[dict[str, Any]] = field(default_factory=list)
    attention: dict[str, Any] = field(default_factory=dict)
    output: dict[str, Any] = field(default_factory=dict)
    executed: list[Any] = field(default_factory=list)

    def tensor(self, **stated):
        self.tensors.append(stated)
        return stated

    def sdpa(self, *tensors, **stated):
        assert list(tensors) == self.tensors
        self.attention = stated
        return self, None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda value: self.output.__setitem__(name.removeprefix("set_"), value) or self

    def validate(self):
        if not self.plans:
            raise NotSupported("this implementation refuses")

    def build_operation_graph(self): ...

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]

    def get_execution_plan_count(self):
        return len(self.plans)

    def build_plan_at_index(self, index):
        if self.plans[index] == REFUSES:
            raise NotSupported(REFUSES)

    def get_workspace_size_plan_at_index(self, index):
        return 256 * index

    def execute_plan_at_index(self, tensors, workspace, index, handle, tensor_uids):
        if isinstance(self.plans[index], str):
            raise RuntimeError(self.plans[index])
        self.executed.append((index, tensors, workspace, handle, tensor_uids))


@pytest.fixture
def pretended(monkeypatch):
    """A function that makes a frontend of plans by implementation; beside it lie its graphs."""
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(cudnn, "handle_of", lambda device, thread: "handle")
    monkeypatch.setattr(plans, "_calls_ms", lambda call: call.func.graph.plans[call.func.index])

    def make(**plans):
        graphs: dict[str, Graph] = {}

        def sdpa(graph, *tensors, implementation, **stated):
            graph.plans = plans[implementation]
            graphs[implementation] = graph
            return Graph.sdpa(graph, *tensors, **stated)

        graph = type("Named", (Graph,), {"sdpa": sdpa})
        names = SimpleNamespace(HALF="half", BFLOAT16="bf16", FLOAT="fp32", NONE="none", A="A", FALLBACK="FALLBACK")
        package = SimpleNamespace(
            cudnnGraphNotSupportedError=NotSupported,
            pygraph=lambda **options: graph([], options),
            data_type=names,
            cuda_graph_retention=names,
            heur_mode=names,
            attention_implementation=SimpleNamespace(UNIFIED="unified", COMPOSITE="composite"),
            set_stream=lambda handle, stream: streams.append((handle, stream)),
            graphs=graphs,
        )
        return package

    streams: list[Any] = []
    make.streams = streams
    return make


def attention(package, q=None, k=None, causal=False, scale=None):
    q = torch.zeros(2, 8, 16, 64, dtype=torch.float16) if q is None else q
    k = q if k is None else k
    return cudnn.Attention(package, (q, k, k, torch.empty_like(q)), causal, scale)


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
def test_of_the_plans_that_work_the_fastest_is_called(pretended, composite, unified, graph, index):
    package = pretended(composite=composite, unified=unified)
    plan = attention(package).fastest()
    assert (plan.graph, plan.index) == (package.graphs[graph], index)
    assert plan.workspace.numel() == max(1, 256 * index)


def test_a_plan_is_called_on_the_stream_of_torch_with_its_workspace(pretended):
    package = pretended(composite=[REFUSES, 1.0], unified=[])
    tried = attention(package)
    plan = tried.fastest()
    plan.graph.executed.clear()
    plan(*tried.tensors)
    assert plan.graph.executed == [(1, tried.tensors, plan.workspace, "handle", cudnn.TENSORS)]
    assert set(pretended.streams) == {("handle", STREAM)}


def test_where_no_plan_works_the_first_reason_is_said_in_a_line(pretended):
    with pytest.raises(Unsupported, match=r"^fails when it is called$"):
        attention(pretended(composite=[FAILS, REFUSES], unified=[])).fastest()
    with pytest.raises(Unsupported, match=r"^this implementation refuses$"):
        attention(pretended(composite=[], unified=[])).fastest()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
def test_a_device_that_is_full_or_failed_is_no_refusal(pretended, monkeypatch, error):
    def execute(*_, **__):
        raise error("of the device")

    monkeypatch.setattr(Graph, "execute_plan_at_index", execute)
    with pytest.raises(error, match="of the device"):
        attention(pretended(composite=[1.0, 2.0], unified=[])).fastest()


@pytest.mark.parametrize(("enough_cycles", "holds"), [(0, 1), (3 * plans.HOLD_CYCLES, 3), (math.inf, 7)])
def test_calls_are_timed_once_all_of_them_were_queued_before_the_gpu_began(monkeypatch, enough_cycles, holds):
    held: list[int] = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def query(self):
            return held[-1] < enough_cycles

        def elapsed_time(self, end):
            return 2.5

        record = synchronize = lambda self: None

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", held.append)
    assert plans._calls_ms(lambda: None) == 2.5
    assert held == [plans.HOLD_CYCLES * 2**more for more in range(holds)]


def test_plans_far_slower_than_the_fastest_are_timed_once(monkeypatch):
    took_ms = {"slow": 100.0, "late": 1.2, "steady": 1.1}
    timed: list[str] = []

    def calls_ms(name):
        timed.append(name)
        # In the first round alone the later winner is the slower one.
        return 1.3 if name == "steady" and timed.count(name) == 1 else took_ms[name]

    monkeypatch.setattr(plans, "_calls_ms", calls_ms)
    assert plans.fastest(list(took_ms)) == 2
    assert timed.count("slow") == 1
    assert timed.count("late") == timed.count("steady") == 1 + plans.ROUNDS


@pytest.mark.parametrize(
    ("queries", "causal", "scale", "masked", "factor"),
    [(16, False, None, False, 1 / 8), (16, True, 1, True, 1.0), (1, True, 0.5, False, 0.5)],
)
def test_a_graph_states_the_layout_the_mask_and_the_scale(pretended, queries, causal, scale, masked, factor):
    package = pretended(composite=[1.0], unified=[])
    q = torch.zeros(2, queries, 8, 64, dtype=torch.bfloat16).transpose(1, 2)
    k = torch.zeros(2, 4, 40, 64, dtype=torch.bfloat16)[:, :, :32]
    graph = attention(package, q, k, causal, scale).fastest().graph
    assert [(stated["dim"], stated["stride"]) for stated in graph.tensors[:2]] == [
        ([2, 8, queries, 64], [512 * queries, 64, 512, 1]),
        ([2, 4, 32, 64], [10240, 2560, 64, 1]),
    ]
    assert {stated["data_type"] for stated in graph.tensors} == {graph.options["io_data_type"]} == {"bf16"}
    assert graph.options["compute_data_type"] == graph.options["intermediate_data_type"] == "fp32"
    assert graph.attention["use_causal_mask_bottom_right"] is masked
    assert math.isclose(graph.attention["attn_scale"], factor)
    assert isinstance(graph.attention["attn_scale"], float)
    assert (graph.output["dim"], graph.output["stride"]) == ([2, 8, queries, 64], list(torch.empty_like(q).stride()))
    assert [stated["uid"] for stated in graph.tensors] + [graph.output["uid"]] == list(cudnn.TENSORS)


def test_addresses_that_cudnn_cannot_use_are_refused(pretended):
    odd = torch.zeros(2 * 8 * 16 * 64 + 1, dtype=torch.float16)[1:].view(2, 8, 16, 64)
    plan = attention(pretended(composite=[1.0], unified=[])).fastest()
    with pytest.raises(Unsupported, match=r"multiples of 16$"):
        plan(odd, odd, odd, odd)


class InE4M3(Graph):
    """One that has a plan for outputs in some types alone."""

    written: tuple[str, ...] = ()

    def sdpa_fp8(self, *tensors, **stated):
        self.attention = stated
        amax = [Graph([], {}) for _ in range(2)]
        return self, None, *amax

    def validate(self):
        self.plans = [1.0] if self.output["data_type"] in self.written else []
        super().validate()


@pytest.mark.parametrize(("written", "dtype"), [(("half", "e4m3"), torch.float16), (("e4m3",), torch.float8_e4m3fn)])
def test_fp8_is_written_in_16_bits_where_there_is_a_plan_and_else_as_it_is(pretended, monkeypatch, written, dtype):
    package, made = pretended(composite=[], unified=[]), []

    def pygraph(**options):
        graph = InE4M3([], options)
        graph.written = written
        made.append(graph)
        return graph

    package.pygraph, package.data_type.FP8_E4M3 = pygraph, "e4m3"
    monkeypatch.setattr(cudnn, "installed", lambda device: package)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(in_fp8, "_plans", {})
    given = quantize(*torch.randn(3, 1, 2, 16, 64).half(), scales="tensor")
    output = in_fp8.attention(*given, True, torch.float16)
    assert (output.shape, output.dtype) == ((1, 2, 16, 64), dtype)
    graph = made[-1]
    assert graph.options["io_data_type"] == "e4m3"
    assert graph.attention["use_causal_mask"] is True
    assert {name: graph.attention[name]["uid"] for name in in_fp8.SCALARS} == dict(
        zip(in_fp8.SCALARS, range(5, 11), strict=True)
    )
    _, tensors, _, _, uids = graph.executed[-1]
    assert uids == tuple(range(1, 13))
    assert [tensor.data_ptr() for tensor in tensors[:3]] == [one.values.data_ptr() for one in given]
    of_q, of_k, of_v = (one.scales.item() for one in given)
    of_output = of_v if dtype == torch.float16 else 1.0  # in e4m3 it is over the scale of V
    assert [tensor.item() for tensor in tensors[4:10]] == [of_q, of_k, of_output, 1 / 256, 256, 1.0]
    with pytest.raises(Unsupported, match="as many queries as keys"):
        in_fp8.attention(
            given[0], *quantize(*torch.randn(3, 1, 2, 20, 64).half(), scales="tensor")[1:], True, torch.float16
        )


# What isn't there is said


def test_without_its_frontend_cudnn_is_not_installed(monkeypatch):
    monkeypatch.setattr(packages, "imported", lambda module: ModuleNotFoundError(f"No {module}", name=module))
    with pytest.raises(Unsupported, match=r"^nvidia-cudnn-frontend is not installed$"):
        cudnn.installed(torch.device("cuda"))


def test_another_cudnn_than_the_one_that_a_run_records_is_refused(monkeypatch):
    package = SimpleNamespace(backend_version=lambda: 92700)
    monkeypatch.setattr(packages, "imported", lambda module: package)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    with pytest.raises(Unsupported, match=r"^nvidia-cudnn-frontend uses cuDNN 92700, and PyTorch 91900$"):
        cudnn.installed(torch.device("cuda"))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92700)
    assert cudnn.installed(torch.device("cuda")) is package


@pytest.mark.parametrize(
    ("dtype", "capturing", "reason"),
    [
        (torch.float32, False, "takes float16 and bfloat16, not float32$"),
        (torch.float16, True, "no graph can capture$"),
    ],
)
def test_what_cudnn_cannot_plan_is_refused(monkeypatch, dtype, capturing, reason):
    monkeypatch.setattr(cudnn, "installed", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    q = torch.zeros(1, 1, 16, 64, dtype=dtype)
    with pytest.raises(Unsupported, match=reason):
        cudnn.cudnn(q, q, q, False)
