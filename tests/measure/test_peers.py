"""cuDNN through its own frontend: which plans are tried and which is called, with a frontend that only pretends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnlab.measuring.peers import cudnn, packages, plans
from attnlab.measuring.subjects.implementation import Unsupported

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


def test_addresses_that_cudnn_cannot_use_are_refused(pretended):
    odd = torch.zeros(2 * 8 * 16 * 64 + 1, dtype=torch.float16)[1:].view(2, 8, 16, 64)
    plan = attention(pretended(composite=[1.0], unified=[])).fastest()
    with pytest.raises(Unsupported, match=r"multiples of 16$"):
        plan(odd, odd, odd, odd)


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
