"""Check and time `kernel.ragged` and `kernel.caches` on a GPU machine: minutes, and no run.

``PYTHONPATH=lib python3 tools/gpu/ragged.py`` runs all parts, each in its own process, which is ended after the seconds
of LIMITS; ``python3 tools/gpu/ragged.py times`` runs one. Each case is printed before its launch, to show which hangs.

- smoke: one call each, from one block of one head to sequences of all kinds.
- cases: random cases against float64, with NaN outside the sequences and guards around the output.
- graph: a graph replayed with other lengths, and sequences alone and in a batch, bit by bit.
- times: 32 sequences of 73 to 1,886 tokens, and equal lengths of the same work, next to other implementations, in µs.
- caches: 1 and 16 queries over 32 caches, against float64, and with pages bit by bit against without pages.
  Then times next to other implementations, and with other numbers of parts for each CTA (`problem.PARTS_HELD`), in µs.
- pages: 512 new tokens of 16 sequences over caches of 1,024 to 8,192 tokens, each tile bit by bit with and
  without pages. Then times next to flash-attn-4, in µs.
- equal: sequences of one length next to `kernel.best`, in µs.
"""

import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import attnlab
from attnlab.measuring.kernels import best, problem, rungs
from attnlab.measuring.peers import flash4
from attnlab.measuring.subjects import outputs
from attnlab.serving import ragged
from attnlab.study import ladder

GPU = torch.device("cuda")
LIMITS = {"smoke": 90, "cases": 170, "graph": 50, "times": 270, "caches": 150, "pages": 150, "equal": 90}
"""Seconds that each part may take."""
CASES = 300
SENTINEL = -77.0
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""The largest relative rounding error."""


@dataclass
class Batch:
    """Sequences with their numbers of queries and keys, packed or padded, as inputs of a call."""

    queries: list[int]
    keys: list[int]
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    causal: bool
    padded: bool
    spread: float = 1.0
    holes: frozenset[int] = frozenset()
    scale: float | None = None

    def __str__(self) -> str:
        kind = f"{'padded' if self.padded else 'packed'} {'causal' if self.causal else 'full'} D={self.head_dim}"
        sizes = f"{self.heads} on {self.kv_heads} {str(self.dtype)[6:]} sd {self.spread:g} holes {len(self.holes)}"
        some = list(zip(self.queries, self.keys, strict=True))
        return f"{kind} {sizes} {len(some)} sequences {some[:6]}"

    def draw(self, seed: int) -> None:
        """Make the tensors. Memory outside the sequences, and sequences that are holes, hold NaN."""
        torch.manual_seed(seed)
        some = random.Random(seed)
        self.parts = []
        for number, (queries, keys) in enumerate(zip(self.queries, self.keys, strict=True)):
            sizes = ((queries, self.heads), (keys, self.kv_heads), (keys, self.kv_heads))
            parts = [torch.randn(n, h, self.head_dim, device=GPU) for n, h in sizes]
            parts[0] *= self.spread
            if some.random() < 0.3:  # rising scores
                parts[1] += parts[0].mean() + torch.linspace(0, 2, max(keys, 1), device=GPU)[:keys, None, None]
            if number in self.holes:
                parts = [torch.full_like(part, torch.nan) for part in parts]
            self.parts.append([part.to(self.dtype) for part in parts])
        before, behind = (0, 0) if self.padded else (some.choice((0, 3)), some.choice((0, 130)))
        longer = some.choice((0, 1, 70)), some.choice((0, 1, 70))  # additional tokens of Q, and of K and V
        self.tensors = []
        for number, (lengths, heads) in enumerate(
            ((self.queries, self.heads), (self.keys, self.kv_heads), (self.keys, self.kv_heads))
        ):
            if self.padded:
                size = max(lengths) + longer[min(number, 1)]
                order = some.choice(((0, 1, 2, 3), (0, 2, 1, 3)))
                shape: tuple[int, ...] = (len(lengths), size, heads, self.head_dim)
                memory = torch.full([shape[i] for i in order], torch.nan, dtype=self.dtype, device=GPU)
                tensor = memory.permute(order)  # (sequences, tokens, heads, head_dim) with another order in memory
                places = [tensor[i, :n] for i, n in enumerate(lengths)]
                self.tensors.append(tensor.transpose(1, 2))
            else:
                wide = some.choice((1, 1, 2))  # 2: a view of memory twice as wide
                shape = (before + sum(lengths) + behind, heads * wide, self.head_dim)
                tensor = torch.full(shape, torch.nan, dtype=self.dtype, device=GPU)[:, :heads]
                places = list(tensor[before : before + sum(lengths)].split(lengths))
                self.tensors.append(tensor)
            for place, parts in zip(places, self.parts, strict=True):
                place.copy_(parts[number])
        if self.padded:
            self.lengths = [torch.tensor(lens, dtype=torch.int32, device=GPU) for lens in (self.queries, self.keys)]
        else:
            ends = ([before, *accumulate(lens, initial=None)] for lens in (self.queries, self.keys))
            self.lengths = [
                torch.tensor([before, *(before + end for end in own[1:])], dtype=torch.int32, device=GPU)
                for own in ends
            ]

    def call(self) -> Tensor:
        """O by `attend`; raises if the kernel doesn't serve the batch."""
        q, k, v = self.tensors
        if self.padded:
            return ragged.padded(q, k, v, self.causal, self.scale, *self.lengths)
        views = ragged.by_head(q, k, v)
        launch: Any = ragged.kernel().packed(*views, self.causal, self.scale).launch
        output: Tensor = launch.packed(*views, *self.lengths)
        return output.transpose(1, 2).squeeze(0)

    def outputs_of(self, output: Tensor) -> list[Tensor]:
        """The rows of each sequence, ``(tokens, heads, head_dim)``."""
        if self.padded:
            return [output[i, :, :n].transpose(0, 1) for i, n in enumerate(self.queries)]
        begin, *_, end = self.lengths[0].tolist()
        return list(output[begin:end].split(self.queries))

    def worst(self, output: Tensor) -> tuple[float, str]:
        """The largest error over the rounding error, and words about written rows that belong to no sequence."""
        found, words = 0.0, ""
        for number, (own, (q, k, v)) in enumerate(zip(self.outputs_of(output), self.parts, strict=True)):
            if number in self.holes or not len(q):
                continue
            right, bound = exact(q, k, v, self.causal, self.scale)
            error = (own.double() - right).abs()
            limit = 1.2 * UNIT[self.dtype] * (right.abs() + 2 * bound) + 1e-4
            ratio = float((error / limit).nan_to_num(torch.inf, torch.inf).max())
            if ratio > max(found, 1):
                at = (error / limit).nan_to_num(torch.inf, torch.inf).flatten().argmax().item()
                words = f"sequence {number} {len(q), len(k)} at {at // q[0].numel(), at % q[0].numel()}"
            found = max(found, ratio)
        for own in self.outputs_of(output):
            own.fill_(SENTINEL)
        outside = int((output != SENTINEL).sum())
        return found, words + (f" {outside} elements written outside" if outside else "")


def exact(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    """O of one sequence in float64, and O computed with the absolute values of V."""
    group = q.shape[1] // k.shape[1]
    queries, keys, values = (t.double().transpose(0, 1) for t in (q, k, v))
    if not len(k):
        return torch.zeros_like(q, dtype=torch.float64), torch.zeros_like(q, dtype=torch.float64)
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    scores = queries @ keys.mT * (scale or q.shape[2] ** -0.5)
    if causal:
        seen = torch.arange(len(k), device=GPU) <= torch.arange(len(q), device=GPU)[:, None] + len(k) - len(q)
        scores = scores.masked_fill(~seen, -torch.inf)
    p = torch.softmax(scores, -1).nan_to_num()
    return (p @ values).transpose(0, 1), (p @ values.abs()).transpose(0, 1)


def watched(call: Callable[[], Tensor]) -> Tensor:
    """The output of a call; its memory held only SENTINEL before."""
    like, outputs.like = outputs.like, lambda q, dtype=None: torch.empty_like(q, dtype=dtype).fill_(SENTINEL)
    try:
        return call()
    finally:
        outputs.like = like


def check(batch: Batch, seed: int) -> bool:
    if not sum(batch.queries) or not sum(batch.keys):
        return True  # the kernel doesn't serve empty batches
    batch.draw(seed)
    worst, words = batch.worst(watched(batch.call))
    torch.cuda.synchronize()
    if bad := worst > 1 or "outside" in words:
        print(f"WRONG {worst:.2f} {words}: {batch}", flush=True)
    return not bad


def smoke() -> None:
    lengths = [
        ("one block", [64], [64]),
        ("one row", [1], [1]),
        ("a part of a tile", [5], [70]),
        ("many tiles", [64], [1000]),
        ("a whole pass", [384], [384]),
        ("several passes", [1000], [1000]),
        ("two sequences", [100, 200], [100, 200]),
        ("no keys", [70, 10, 1], [0, 0, 1]),
        ("no queries", [0, 3, 0], [5, 3, 0]),
        ("more queries than keys", [500, 100], [70, 99]),
        ("single blocks", [64] * 700, [64] * 700),
        ("4,096 sequences", [i % 3 for i in range(4096)], [i % 90 for i in range(4096)]),
        ("one longer than all others", [3000, *range(40)], [3000, *range(40)]),
    ]
    for name, queries, keys in lengths:
        for head_dim, causal, padded in ((128, False, False), (128, True, False), (64, True, False), (64, False, True)):
            print(f"{name}, D={head_dim} causal={causal} padded={padded} ...", end=" ", flush=True)
            batch = Batch(queries, keys, 4, 2, head_dim, torch.bfloat16, causal, padded)
            began = time.perf_counter()
            print("right" if check(batch, 1) else "", f"{1e3 * (time.perf_counter() - began):.0f} ms", flush=True)


def drawn(seed: int) -> Batch:
    some = random.Random(seed)
    count, longest = some.choice(((1, 2500), (3, 1500), (8, 900), (20, 400), (60, 150), (150, 70)))
    queries = [some.choice((0, 1, some.randint(1, longest), some.randint(1, longest))) for _ in range(count)]
    keys = [some.choice((n, n, n, 0, 1, n + some.randint(0, longest), some.randint(0, longest))) for n in queries]
    kv_heads, group = some.choice((1, 2, 3)), some.choice((1, 1, 2, 4, 7))
    return Batch(
        queries,
        keys,
        kv_heads * group,
        kv_heads,
        some.choice((64, 128)),
        some.choice((torch.float16, torch.bfloat16)),
        some.random() < 0.6,
        some.random() < 0.4,
        some.choice((1.0, 1.0, 3.0, 12.0)),
        frozenset(i for i in range(count) if some.random() < 0.15),
        some.choice((None, None, 0.05)),
    )


def cases() -> None:
    wrong = 0
    for seed in range(CASES):
        batch = drawn(seed)
        if seed % 25 == 0:
            print(f"{seed}: {wrong} wrong so far; next {batch}", flush=True)
        wrong += not check(batch, seed)
    print(f"{CASES} cases, {wrong} wrong")
    others = 0
    for rung in (ladder.rung(rungs.RAGGED),):
        for tile in rung.tiles:
            vars(ragged)["kernel"] = partial(rungs.kernel, rung, tile)
            for seed in range(40):
                batch = drawn(1000 + seed)
                batch.head_dim, batch.causal = tile.head_dim, ladder.MASKS[True] in tile.masks and batch.causal
                if ladder.MASKS[batch.causal] not in tile.masks:
                    batch.causal = True
                others += not check(batch, seed)
            print(f"tile {tile.name} {tile.head_dim}: {others} wrong of its 40 and those before", flush=True)


def ends_of(*lengths: int) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=GPU)


def of_each(function: Callable[[Any], Tensor], each: Iterable[Any] = range(3)) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a function to each of 3 items; returns Q, K and V."""
    q, k, v = map(function, each)
    return q, k, v


def graph() -> None:
    some, room = random.Random(5), 6000
    q, k, v = (torch.randn(room, heads, 128, dtype=torch.bfloat16, device=GPU) for heads in (8, 2, 2))
    ends = (torch.zeros(13, dtype=torch.int32, device=GPU), torch.zeros(13, dtype=torch.int32, device=GPU))
    for causal in (False, True):
        attnlab.attend_ragged(q, k, v, *ends, causal)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            output = attnlab.attend_ragged(q, k, v, *ends, causal)
        equal = alone = 0
        for _ in range(20):
            lengths = [[some.choice((0, 1, some.randint(1, 450))) for _ in range(12)] for _ in range(2)]
            for own, lens in zip(ends, lengths, strict=True):
                own.copy_(ends_of(*lens))
            captured.replay()
            eager = attnlab.attend_ragged(q, k, v, *ends, causal)
            used = sum(lengths[0])
            equal += torch.equal(output[:used], eager[:used])
            parts = []
            for (first, end), (first_key, end_key) in zip(*(pairwise(own.tolist()) for own in ends), strict=True):
                mine = (q[first:end], k[first_key:end_key], v[first_key:end_key])
                both = ends_of(len(mine[0])), ends_of(len(mine[1]))
                parts.append(attnlab.attend_ragged(*mine, *both, causal) if len(mine[1]) else torch.zeros_like(mine[0]))
            alone += torch.equal(torch.cat(parts), eager[:used])
        print(f"causal={causal}: {equal} of 20 replays as eager, {alone} of 20 as each sequence alone", flush=True)


def captured_calls(call: Callable[[], Any], calls: int) -> torch.cuda.CUDAGraph:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(calls):
            call()
    return captured


def timed(named: Iterable[tuple[str, Callable[[], Any]]], title: str, calls: int = 10, rounds: int = 15) -> None:
    """Print the median µs of each call, by graphs in turns."""
    graphs = {}
    for name, call in named:
        try:
            graphs[name] = captured_calls(call, calls)
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error)[:150]}", flush=True)
            torch.cuda.synchronize()
    took: dict[str, list[float]] = {name: [] for name in graphs}
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        for name in random.sample(list(graphs), len(graphs)):
            graphs[name].replay()
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            took[name].append(1e3 * begin.elapsed_time(end) / calls)
    print(title, "  ".join(f"{name} {median(own):.1f}" for name, own in took.items()), flush=True)


def packed_calls(
    q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool
) -> Iterable[tuple[str, Callable[[], Any]]]:
    """A call of each implementation that takes packed sequences ``(tokens, heads, head_dim)``."""
    ends = ends_of(*lengths)
    views = ragged.by_head(q, k, v)
    rung = ladder.rung(rungs.RAGGED)
    for tile in rung.tiles:
        if tile.head_dim == q.shape[2] and ladder.MASKS[causal] in tile.masks:
            kernel = rungs.kernel(rung, tile)
            yield f"ragged:{tile.name}", partial(rungs._packed, kernel, *views, causal, tuple(lengths))
    yield "flash4", partial(flash4.flash4_ragged, *views, causal, tuple(lengths))
    with suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn

        window = (-1, 0) if causal else (-1, -1)
        yield "varlen", partial(varlen_attn, q, k, v, ends, ends, max(lengths), max(lengths), window_size=window)


def times() -> None:
    print(torch.cuda.get_device_name(), flush=True)
    random.seed(1)
    draw = partial(torch.randn, dtype=torch.bfloat16, device=GPU)
    lengths = [73, 1886, *(random.randint(73, 1886) for _ in range(30))]
    tokens = sum(lengths)
    for causal in (True, False):
        q, k, v = (draw(tokens, 16, 128) for _ in range(3))
        timed(packed_calls(q, k, v, lengths, causal), f"32 sequences, {tokens} tokens, causal={causal}:")
        equal = round((sum(n * n for n in lengths) / 32) ** 0.5)
        dense = of_each(lambda _: draw(32, equal, 16, 128))  # noqa: B023
        rows = of_each(lambda tensor: tensor.flatten(0, 1), dense)
        views = of_each(lambda tensor: tensor.transpose(1, 2), dense)
        lazy = partial(best.Best(), *views, causal)
        both: list[tuple[str, Callable[[], Any]]] = [("best", lazy), *packed_calls(*rows, [equal] * 32, causal)]
        timed(both, f"32 sequences of {equal} tokens, the same work, causal={causal}:")
    for batch, heads, seq_len, head_dim, causal in (
        (32, 8, 512, 64, False),
        (32, 8, 512, 64, True),
        (8, 16, 2048, 64, True),
        (4, 16, 4096, 128, False),
        (4, 16, 4096, 128, True),
        (1, 16, 16384, 128, True),
    ):
        dense = of_each(lambda _: draw(batch, seq_len, heads, head_dim))  # noqa: B023
        views = of_each(lambda tensor: tensor.transpose(1, 2), dense)
        rows = of_each(lambda tensor: tensor.flatten(0, 1), dense)
        named: list[tuple[str, Callable[[], Any]]] = [
            ("best", partial(best.Best(), *views, causal)),
            ("padded", partial(ragged.kernel(), *views, causal)),
        ]
        calls = [*named, *packed_calls(*rows, [seq_len] * batch, causal)]
        timed(calls, f"equal {batch, heads, seq_len, head_dim} causal={causal}:", calls=4)
    tiny = draw(64, 16, 128)
    timed(packed_calls(tiny, tiny, tiny, [64], True), "one sequence of 64 tokens (what listing costs):", calls=20)
    many = draw(4096 * 30, 8, 128)
    timed(packed_calls(many, many, many, [30] * 4096, True), "4,096 sequences of 30 tokens:", calls=4)
    # Padded prompts.
    most = max(lengths)
    q, k, v = (draw(32, 16, most, 128) for _ in range(3))
    lens = torch.tensor(lengths, dtype=torch.int32, device=GPU)
    for causal in (True, False):
        call = partial(attnlab.attend, q, k, v, causal, kv_lens=lens, q_lens=lens)
        timed([("attend", call)], f"the same padded to {most}, causal={causal}:")


def caches() -> None:
    some, held = random.Random(7), 16384
    drawn = [math.exp(some.uniform(math.log(549), math.log(16335))) for _ in range(32)]
    laws = {
        "log-uniform": [round(129_000 * x / sum(drawn)) for x in drawn],
        "uniform": [549, 16335, *(some.randint(549, 16335) for _ in range(30))],
    }
    draw = partial(torch.randn, dtype=torch.bfloat16, device=GPU)
    k, v = draw(32, 8, held, 128), draw(32, 8, held, 128)
    paged = {size: in_pages(k, v, size) for size in (16, 64, 256)}
    own, few = ladder.rung(rungs.CACHES), rungs.of(ladder.rung("kernel.few"))
    wrong = 0
    for law, lengths in laws.items():
        lens = torch.tensor(lengths, dtype=torch.int32, device=GPU)
        for queries in (1, 16):
            q = draw(32, 32, queries, 128)
            output = attnlab.attend(q, k, v, True, kv_lens=lens)
            for i, n in enumerate(lengths):
                own_q, own_k, own_v = (x[i].transpose(0, 1) for x in (q, k[:, :, :n], v[:, :, :n]))
                right, bound = exact(own_q, own_k, own_v, True, None)
                error = (output[i].transpose(0, 1).double() - right).abs()
                wrong += not bool((error <= 1.2 * UNIT[torch.bfloat16] * (right.abs() + 2 * bound) + 1e-4).all())
            wrong += not torch.equal(output, attnlab.attend(q, k, v, True, kv_lens=lens))
            named: list[tuple[str, Callable[[], Any]]] = [
                ("attend", partial(attnlab.attend, q, k, v, True, kv_lens=lens)),
                ("few", partial(few, q, k, v, True, None, lens)),
                ("sdpa", partial(ragged.masked, q, k, v, lens, True, None)),
            ]
            for parts in (1, 2, 4, 6):
                with patch.object(problem, "PARTS_HELD", parts):
                    kernel = rungs.Kernel(own)
                    kernel(q, k, v, True, None, lens)
                named.append((f"{parts} parts", partial(kernel, q, k, v, True, None, lens)))
            flash = partial(flash4._called, "flash_attn_varlen_func", causal=True, seqused_k=lens)
            named.append(("flash4", partial(flash, *(x.transpose(1, 2) for x in (q, k, v)))))
            for size, (pages_k, pages_v, table) in paged.items():
                call = partial(attnlab.attend, q, pages_k, pages_v, True, kv_lens=lens, block_table=table)
                wrong += not torch.equal(output, call())
                named.append((f"pages of {size}", call))
                views = (x.transpose(1, 2) for x in (q, pages_k, pages_v))
                named.append((f"flash4 {size}", partial(flash, *views, page_table=table)))
            print(f"{wrong} wrong so far", flush=True)
            floor = 4096 * sum(lengths) / 4.4e6
            timed(named, f"{law}, {sum(lengths)} keys ({floor:.0f} us at 4.4 TB/s), {queries} queries:", calls=4)
    raise SystemExit(wrong > 0)


def pages() -> None:
    some, held = random.Random(11), 8192
    draw = partial(torch.randn, dtype=torch.bfloat16, device=GPU)
    lengths = [1024, held, *(some.randint(1024, held) for _ in range(14))]
    lens = torch.tensor(lengths, dtype=torch.int32, device=GPU)
    q, k, v = (draw(16, rows, heads, 128).transpose(1, 2) for rows, heads in ((512, 32), (held, 8), (held, 8)))
    rung = ladder.rung(rungs.RAGGED)
    tiles = [tile for tile in rung.tiles if tile.head_dim == 128 and ladder.MASKS[True] in tile.masks]
    kernels = {tile.name: rungs.kernel(rung, tile) for tile in tiles}
    right = {name: kernel(q, k, v, True, None, lens) for name, kernel in kernels.items()}
    named: list[tuple[str, Callable[[], Any]]] = [
        (name, partial(kernel, q, k, v, True, None, lens)) for name, kernel in kernels.items()
    ]
    flash, wrong = partial(flash4._called, "flash_attn_varlen_func", causal=True, seqused_k=lens), 0
    named.append(("flash4", partial(flash, *(x.transpose(1, 2) for x in (q, k, v)))))
    for size in (16, 64, 256):
        print(f"pages of {size}", flush=True)
        pages_k, pages_v, table = in_pages(k, v, size)
        output = attnlab.attend(q, pages_k, pages_v, True, kv_lens=lens, block_table=table)
        wrong += not any(torch.equal(right[tile.name], output) for tile in tiles if tile.for_caches)
        for name, kernel in kernels.items():
            launch: Any = kernel.paged(q, pages_k, pages_v, table.shape[1], True, None).launch
            call = partial(launch.of_lengths, q, pages_k, pages_v, lens, None, table)
            wrong += not torch.equal(right[name], call())
            named.append((f"{name} {size}", call))
        views = (x.transpose(1, 2) for x in (q, pages_k, pages_v))
        named.append((f"flash4 {size}", partial(flash, *views, page_table=table)))
    print(f"{wrong} of {3 + 3 * len(kernels)} wrong", flush=True)
    timed(named, f"512 queries each over {sum(lengths)} keys:", calls=4)
    raise SystemExit(wrong > 0)


def equal() -> None:
    draw = partial(torch.randn, dtype=torch.bfloat16, device=GPU)
    for batch, heads, kv_heads, seq_len, head_dim in (
        *((4, 16, 16, 4096, 128), (4, 32, 8, 4096, 128), (8, 16, 16, 2048, 128), (32, 16, 16, 1024, 128)),
        *((1, 16, 16, 16384, 128), (8, 16, 16, 2048, 64)),
    ):
        q, k, v = (draw(1, batch * seq_len, n, head_dim).transpose(1, 2) for n in (heads, kv_heads, kv_heads))
        dense = of_each(lambda x: x.squeeze(0).unflatten(1, (batch, seq_len)).transpose(0, 1), (q, k, v))  # noqa: B023
        for causal in (False, True):
            packed = partial(rungs._packed, ragged.kernel(), q, k, v, causal, (seq_len,) * batch)
            named = [("best", partial(best.Best(), *dense, causal)), ("ragged", packed)]
            title = f"equal {batch, heads, kv_heads, seq_len, head_dim} causal={causal}:"
            timed(named, title, calls=4, rounds=31)


def in_pages(k: Tensor, v: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Paged caches in vLLM's layout, at random places, and their table."""
    batch, heads, keys, head_dim = k.shape
    table = torch.randperm(batch * keys // size, device=GPU).to(torch.int32)
    made = []
    for tensor in (k, v):
        pages = torch.empty(len(table), size, heads, head_dim, dtype=k.dtype, device=GPU)
        pages[table.long()] = tensor.transpose(1, 2).reshape(pages.shape)
        made.append(pages.transpose(1, 2))
    return made[0], made[1], table.view(batch, -1)


if __name__ == "__main__":
    if sys.argv[1:]:
        parts = {"smoke": smoke, "cases": cases, "graph": graph, "times": times}
        parts |= {"caches": caches, "pages": pages, "equal": equal}
        parts[sys.argv[1]]()
    else:
        for part, seconds in LIMITS.items():
            print(f"== {part}", flush=True)
            try:
                done = subprocess.run([sys.executable, __file__, part], timeout=seconds, check=False)
                print(f"== {part} ended with {done.returncode}", flush=True)
            except subprocess.TimeoutExpired:
                print(f"== {part} took more than {seconds} s", flush=True)
