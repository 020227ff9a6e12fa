"""The backward pass without a GPU: its schedule, its host code, and the kernel on an emulated multiprocessor."""

import ctypes
import re
from dataclasses import replace

import pytest
import torch
from backward import Plan
from emulation import MEMORY, OF_CTA, printed, program

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.compile import nvrtc
from attnlab.measuring.kernels import backward
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.oracle import composed, gradients, masked, of_each_head
from attnlab.study import ladder

# Lengths that end within a tile, groups, keys before the first query, heads in 2 rounds, more CTAs than tiles.
PLANS = [
    Plan(heads, group, queries, keys, causal, paired, grid)
    for heads, group, queries, keys, grid in (
        *((1, 1, 1, 1, 1), (3, 1, 300, 700, 4), (5, 2, 130, 1000, 7), (2, 4, 700, 700, 3)),
        *((4, 1, 512, 2100, 13), (7, 1, 1024, 1024, 5), (2, 1, 64, 900, 16)),
    )
    for causal, paired in ((False, False), (True, False), (True, True))
]
# Text of the kernel, and what stands in its place where a test on a GPU spoils one gradient.
SPOILED = {
    "dV": ("store_one(dv_map, dv, 1,", "store_one(dv_map, dv, 0.97f,"),
    "dK": ("store_one(dk_map, dk, problem.scale,", "store_one(dk_map, dk, 0.97f * problem.scale,"),
    "dQ": ("const float scale = problem.scale;", "const float scale = 0.97f * problem.scale;"),
}


@pytest.mark.parametrize("causal", [False, True])
def test_the_formula_is_that_of_autograd(causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, s, 8, dtype=torch.float64, requires_grad=True) for n, s in ((4, 20), (2, 33), (2, 33)))
    output = composed(q, k, v, causal, 0.3)
    dout = torch.randn_like(output)
    *found, lse = gradients(q.detach(), k.detach(), v.detach(), dout, causal, 0.3)
    for got, expected in zip(found, torch.autograd.grad(output, (q, k, v), dout), strict=True):
        torch.testing.assert_close(got, expected)
    scores = 0.3 * q @ of_each_head(q, k, v)[1].transpose(2, 3)
    if causal:
        scores = scores.masked_fill(masked(20, 33, q.device), -torch.inf)
    torch.testing.assert_close(lse, scores.logsumexp(-1).detach())


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_problem_is_that_of_the_model(plan):
    q = torch.empty(1, plan.heads * plan.group, plan.queries, 128, device="meta")
    k = torch.empty(1, plan.heads, plan.keys, 128, device="meta")
    problem = backward.Gradients.of(q, k, plan.causal, 0.1, 64, plan.grid)
    assert problem.paired == (plan.causal and plan.heads * plan.blocks > plan.grid)
    if problem.paired == plan.paired:
        assert problem.in_a_row in (1, plan.tasks)
        if problem.in_a_row > 1:
            assert _most_steps(replace(plan, whole=True)) <= _most_steps(plan)
        assert (problem.tasks, problem.all_tasks) == (plan.tasks, plan.heads * plan.tasks)
        assert problem.steps == max(len(list(plan.steps(task))) for task in range(plan.tasks))


def _most_steps(plan):
    return max(sum(len(list(plan.steps(task))) for task in plan.of_cta(cta)) for cta in range(plan.grid))


def test_what_it_does_not_serve_is_said_in_a_line():
    q = torch.zeros(1, 2, 8, 64, dtype=torch.bfloat16)
    lse = torch.zeros(1, 2, 8)
    with pytest.raises(Unsupported, match="takes tensors on one NVIDIA GPU"):
        backward.backward(q, q, q, q, lse, q, True)
    with pytest.raises(Unsupported, match="no more queries than keys"):
        backward.backward(q, q[:, :, :4], q[:, :, :4], q, lse, q, True)


def test_what_a_test_on_a_gpu_spoils_is_in_the_source():
    text = nvrtc.of_files(ladder.files(backward.SOURCE))
    assert [text.count(right) for right, _ in SPOILED.values()] == [1, 1, 1]


@pytest.mark.parametrize("tiling", backward.INSTANCES.values(), ids=str)
def test_it_compiles_without_spills_or_products_one_after_the_other(tiling):
    names = [name for causal in (False, True) for name in tiling.expressions("bfloat16", causal)]
    assert tiling.shared_bytes <= 227 * 1024
    text = nvrtc.of_files(ladder.files(backward.SOURCE))
    try:
        said, instances = nvrtc.compiled(text, backward.SOURCE, backward.ARCHITECTURE, list(dict.fromkeys(names)))
    except UserError as error:
        pytest.skip(str(error))
    assert instances is not None, said
    assert not nvrtc.warnings(said)
    assert {instance.spill_bytes for instance in instances.values()} == {0}
    assert {instances[name].most_threads for name in names if name.startswith("backward")} == {tiling.threads}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulated")
    stage = re.search(r"^template.* struct Stage \{.*?^\};", (paths.kernels() / "hopper.cuh").read_text(), re.M | re.S)
    included = f'#include "emulated.h"\n{stage[0]}'
    header = (paths.kernels() / "backward.cuh").read_text().replace('#include "hopper.cuh"', included)
    (folder / "backward.cuh").write_text(header[: header.index("// wgmma ---")])
    source = (paths.kernels() / backward.SOURCE).read_text()
    assert MEMORY in source
    (folder / backward.SOURCE).write_text(source.replace(MEMORY, OF_CTA))
    return program(folder, "backward")


@pytest.mark.parametrize(
    ("head_dim", "causal", "batch", "heads", "kv_heads", "queries", "keys", "grid", "paired", "whole"),
    [
        (128, 0, 2, 1, 1, 150, 300, 4, 0, 0),
        (128, 0, 1, 2, 1, 64, 128, 1, 0, 0),
        (128, 1, 1, 2, 2, 200, 450, 3, 1, 0),
        (128, 0, 1, 4, 2, 257, 129, 3, 0, 0),
        (128, 1, 1, 4, 2, 300, 300, 3, 0, 1),
        (64, 0, 1, 3, 3, 70, 257, 2, 0, 0),
        (64, 1, 1, 4, 2, 300, 300, 3, 0, 0),
        (64, 1, 1, 2, 1, 260, 400, 2, 1, 0),
        (64, 0, 1, 3, 3, 150, 300, 2, 0, 1),
        (64, 1, 3, 2, 1, 300, 400, 2, 1, 1),
        (64, 0, 1, 2, 1, 64, 900, 16, 0, 0),  # more CTAs than tasks
    ],
    ids=str,
)
def test_the_kernel_on_an_emulated_multiprocessor(
    emulator, head_dim, causal, batch, heads, kv_heads, queries, keys, grid, paired, whole
):
    tiling = backward.INSTANCES[head_dim]
    sizes = (head_dim, causal, tiling.rows, batch, heads, kv_heads, queries, keys, grid, paired, whole)
    runs = [printed(emulator, *sizes, seed, tiling.stages) for seed in range(4)]
    assert all(run == runs[0] for run in runs)  # the same bits for any timing of threads and copies
    masks = (bool(causal), bool(paired))
    plan = Plan(batch * kv_heads, heads // kv_heads, queries, keys, *masks, grid, tiling.rows, bool(whole))
    turns = {}
    for task, step, in_batch, head, tile, turn in (map(int, line[1:]) for line in runs[0] if line[0] == "turn"):
        kv_head, of_group = divmod(head, plan.group)
        turns[task, step] = ((in_batch * kv_heads + kv_head, of_group, tile), turn)
    assert turns == plan.turns
    found = {line[0]: line[1] for line in runs[0] if line[0] != "turn"}
    assert int(found["shared_bytes"]) == tiling.shared_bytes
    assert int(found["problem_bytes"]) == ctypes.sizeof(backward.Gradients)
    assert all(float(found[name]) < 0.004 for name in ("dq", "dk", "dv"))
