"""Helpers of GPU kernel tests: inputs, the kernels that a device serves, and the gate's verdict on outputs."""

from collections.abc import Callable, Iterator

import pytest
import torch

import attnlab
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study.shapes import Shape

GPU = torch.device("cuda")


def drawn(shape: Shape, seed: int = 0) -> inputs.Inputs:
    return inputs.draw(shape, seed, GPU)


def served(kernel: Callable, shape: Shape) -> Callable:
    """The kernel, if it serves the shape on this device; else the test is skipped."""
    try:
        kernel(*drawn(shape), shape.causal)
    except Unsupported as error:
        pytest.skip(str(error))
    return kernel


def require_passed(kernel: Callable, given: inputs.Inputs, causal: bool, scale: float | None = None, at="") -> None:
    """Fail unless a kernel's outputs for these inputs pass the gate."""
    check = Gate(given, causal, scale=scale).examine(lambda: kernel(*given, causal, scale))
    assert check.passed, f"{at}: {check.reason}"


def while_copying(times: int = 2000) -> Iterator[int]:
    """Yield 0 to `times` - 1 while copies keep the device's memory busy."""
    source, side = torch.empty(2**28, dtype=torch.int8, device=GPU), torch.cuda.Stream()
    copied = torch.empty_like(source)
    for number in range(times):
        if number % 4 == 0:
            with torch.cuda.stream(side):
                copied.copy_(source)
        if number % 64 == 0:
            side.synchronize()
        yield number


def in_pages(lens: torch.Tensor, page: int, *keys: torch.Tensor) -> tuple[list, list, torch.Tensor]:
    """K and V with NaN beyond these lengths; their pages in random order; and the table, without unused pages."""
    batch, heads, length, head_dim = keys[0].shape
    places = torch.randperm(batch * length // page, device=GPU).view(batch, -1)
    behind = torch.arange(length, device=GPU) >= lens[:, None]
    given, pages = [tensor.masked_fill(behind[:, None, :, None], torch.nan) for tensor in keys], []
    for tensor in given:
        cache = torch.full((places.numel(), page, heads, head_dim), torch.nan, dtype=tensor.dtype, device=GPU)
        cache[places.flatten()] = tensor.transpose(1, 2).reshape(cache.shape)
        pages.append(cache.transpose(1, 2))
    return given, pages, places.to(torch.int32).masked_fill(behind[:, ::page], -(2**31))


def llama():
    """A small model of transformers that can compute attention by `attend`."""
    transformers = pytest.importorskip("transformers")
    attnlab.register()
    sizes = {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 256, "vocab_size": 512}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    network = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16).to(GPU)
    return network.eval().requires_grad_(False)
