"""Input distributions in memory: each has its stated properties, in every window and on scrambled inputs."""

import hashlib
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from conftest import TINY, Quickly, tiny_study, told
from safetensors.torch import save_file

from attnlab.base.errors import Outdated
from attnlab.measuring.session import record
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.inputs import Inputs, Windows
from attnlab.measuring.subjects.oracle import of_each_head
from attnlab.measuring.values import captured
from attnlab.measuring.values.drawn import structured
from attnlab.runs import read
from attnlab.study import values
from attnlab.study.shapes import Shape
from attnlab.study.values import STANDARD, placed

CPU = torch.device("cpu")
PLAIN = Shape(2, 8, 48, 64, dtype="float32")
# 2 query heads to each KV head, and twice as many keys as queries.
GROUPED = Shape(2, 8, 48, 64, dtype="float32", kv_heads=4, kv_len=96)
SHAPES = [
    PLAIN,
    GROUPED,
    GROUPED.resized(layout="tokens first"),
    GROUPED.resized(scale=0.3, dtype="bfloat16"),
    PLAIN.resized(causal=True, dtype="float16", head_dim=128),
]
SPREAD = Shape(3, 8, 50, 32, dtype="float32", lengths="spread")
KINDS = [kind for kind in STANDARD if not kind.startswith("captured")]
EVERY = [shape.resized(values=kind) for shape in SHAPES[1:3] for kind in KINDS]
EVERY += [SPREAD.resized(values=kind) for kind in KINDS]
DECODE = PLAIN.resized(batch=3, seq_len=1, kv_len=129)
TRAINING = PLAIN.resized(direction="training")
EVERY += [*SHAPES, DECODE, TRAINING]
COUNT = 5


def drawn(shape: Shape, seed: int = 0) -> Windows:
    windows = Windows(shape, CPU, COUNT)
    windows.draw(seed)
    return windows


def everywhere(windows: Windows) -> Iterator[Inputs]:
    """Q, K and V of each window, first as drawn, then scrambled."""
    yield from windows
    with windows.scrambled():
        yield from windows


def logits(given: Inputs, shape: Shape) -> torch.Tensor:
    """The logits, with the scale: ``(batch, heads, seq_len, kv_len)``."""
    q, k, _ = of_each_head(*given[:3])
    return q.double() @ k.double().transpose(-1, -2) * (shape.scale or 1 / math.sqrt(shape.head_dim))


def all_logits(shape: Shape, kind: str) -> list[torch.Tensor]:
    shape = shape.resized(values=kind)
    found = [logits(given, shape) for given in everywhere(drawn(shape))]
    assert len(found) == 2 * COUNT
    return found


def deviation(shape: Shape) -> float:
    """The standard deviation of logits of normal values: 1, unless the scale differs from 1/√D."""
    return shape.scale * math.sqrt(shape.head_dim) if shape.scale else 1.0


def by_distance(scores: torch.Tensor, distance: int) -> float:
    """The mean logit of queries and the keys this many places before them; the last query is at the last key."""
    further = scores.shape[3] - scores.shape[2]
    return scores.diagonal(further - distance, dim1=2, dim2=3).mean().item()


# Properties of each distribution


@pytest.mark.parametrize("shape", [*SHAPES, SPREAD], ids=str)
@pytest.mark.parametrize("amount", [1, 6, 0.5])
def test_logits_have_the_deviation_that_is_stated(shape, amount):
    kind = "normal" if amount == 1 else f"sd {amount}"
    expected = amount * deviation(shape)
    for scores in all_logits(shape, kind):
        assert scores.std().item() == pytest.approx(expected, rel=0.05)
        assert abs(scores.mean().item()) < 0.05 * expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("amount", [8, 13])
def test_the_sink_attracts_every_query_by_so_many_nats(shape, amount):
    unit = deviation(shape)
    for scores in all_logits(shape, f"sink {amount}"):
        further = scores[..., 0] - scores[..., 1:].mean(-1)
        assert further.mean().item() == pytest.approx(amount, abs=0.3 * unit)
        assert further.mean((0, 1)).min() > amount - 2.5 * unit  # for each query, over the heads


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("kind", "amount"), [("rising 24", 24), ("falling 24", -24), ("rising 6", 6)])
def test_scores_rise_or_fall_evenly_from_the_first_key_to_the_last(shape, kind, amount):
    unit = deviation(shape)
    for scores in all_logits(shape, kind):
        means = scores.mean((0, 1, 2))
        assert (means[-1] - means[0]).item() == pytest.approx(amount, abs=0.5 * unit)
        assert (means[shape.kv_len // 2] - means[0]).item() == pytest.approx(amount / 2, abs=0.7 * unit)
        assert abs(means.mean().item()) < 0.1 * unit


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("keys", [512, 16384, 32768])
def test_each_tile_of_keys_rises_by_the_stated_amount_exact_to_a_hundredth_in_16_bits(dtype, head_dim, keys):
    given = drawn(Shape(1, 1, 1, head_dim, dtype=dtype, kv_len=keys, values="stairs 12"))[0]
    alone = [tensor.clone() for tensor in given]
    for tensor in alone[:2]:
        tensor[..., 1:] = 0
    tiles = logits(alone, PLAIN.resized(head_dim=head_dim))[0, 0, 0].view(-1, values.TILE)
    assert torch.equal(tiles, tiles[:, :1].expand_as(tiles))  # without the normal part, it is constant within a tile
    assert (tiles[1:, 0] - tiles[:-1, 0]).sub(12).abs().max() < 0.12
    whole = logits(given, PLAIN.resized(head_dim=head_dim))[0, 0, 0].view(-1, values.TILE).mean(1)
    assert whole.argsort().tolist() == list(range(len(whole)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_late_key_is_ahead_of_all_others_for_every_query(shape):
    late = shape.kv_len - 1 - shape.kv_len // 16
    for scores in all_logits(shape, "late 40"):
        others = torch.cat([scores[..., :late], scores[..., late + 1 :]], -1)
        assert (scores[..., late : late + 1] - others).mean().item() == pytest.approx(40, abs=0.6 * deviation(shape))
        assert bool((scores.argmax(-1) == late).all()) or shape.scale  # their standard deviation is 2.4


@pytest.mark.parametrize("shape", [Shape(2, 8, 256, 64), GROUPED.resized(seq_len=256), SPREAD], ids=str)
def test_elements_have_the_tails_of_students_distribution(shape):
    expected = {1: 0.391, 3: 0.0577, 10: 0.00213}  # two sides, with 3 degrees of freedom
    for tensor in drawn(shape.resized(values="student 3"))[0]:
        elements = tensor.double().abs()
        for reach, share in expected.items():
            assert (elements > reach).double().mean().item() == pytest.approx(
                share, abs=5 * (share / elements.numel()) ** 0.5
            )
        assert bool((drawn(shape.resized(values="student 0.1"))[0][0].isfinite()).all())


@pytest.mark.parametrize("shape", [Shape(1, 12, 256, 64), Shape(5, 8, 256, 64, dtype="bfloat16", kv_heads=4)], ids=str)
def test_in_a_mixture_each_window_has_every_kind_in_turn(shape):
    shape, count = shape.resized(values="mixture"), len(values.MIXED)
    for number, given in enumerate(everywhere(drawn(shape))):
        scores, tails = logits(given, shape).flatten(0, 1), of_each_head(*given)[2].double().flatten(0, 1).abs()
        kinds = torch.arange(len(scores)) // (shape.heads // shape.kv_heads) % count
        first, last = (scores[..., end].mean((1, 2)) for end in (slice(0, 64), slice(192, 256)))
        rise, spread = last - first, scores.unflatten(2, (4, 64)).std(3).mean((1, 2))
        assert torch.equal(rise.gt(30), kinds == values.MIXED.index("stairs 12"))
        assert torch.equal(rise.gt(9) & rise.lt(30), kinds == values.MIXED.index("rising 24"))
        assert torch.equal(spread.gt(18), kinds == values.MIXED.index("sd 24"))
        if not number:  # V has the same address in all windows
            assert torch.equal(tails.gt(6).sum((1, 2)) > 10, kinds == values.MIXED.index("student 3"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_like_positions_attract_and_those_further_apart_less(shape):
    unit = deviation(shape)
    for scores in all_logits(shape, "positional 25"):
        near, next_to, three, far = (by_distance(scores, distance) for distance in (0, 1, 3, 40))
        assert near == pytest.approx(25, abs=0.3 * unit)
        assert near > next_to > three > far
        assert far < 20


@pytest.mark.parametrize("kind", [kind for kind in KINDS if placed(kind) and kind != "mixture"])
def test_each_packed_sequence_has_the_positions_of_a_batch_of_its_length(kind):
    packed = SPREAD.resized(values=kind, head_dim=64)
    given, kept = [tensor.clone() for tensor in drawn(packed)[0]], structured(kind, 64)
    for tensor in given[:2]:
        tensor[..., kept:] = 0
    begin = 0
    for tokens in packed.sequences:
        alone = [tensor.clone() for tensor in drawn(Shape(1, 8, tokens, 64, dtype="float32", values=kind))[0]]
        for tensor in alone[:2]:
            tensor[..., kept:] = 0
        mine = [tensor[:, :, begin : begin + tokens] for tensor in given]
        assert torch.allclose(logits(mine, packed), logits(alone, packed))
        begin += tokens


def test_heads_of_packed_sequences_have_the_distributions_of_a_mixture_in_turn():
    shape = Shape(2, 12, 256, 64, lengths="spread", values="mixture")
    scores = logits([tensor[:, :, -256:] for tensor in drawn(shape)[0]], shape)[0]
    rise = scores[..., 192:].mean((1, 2)) - scores[..., :64].mean((1, 2))
    assert rise.gt(30).nonzero().flatten().tolist() == [3, 9]  # stairs 12
    assert (rise.gt(9) & rise.lt(30)).nonzero().flatten().tolist() == [5, 11]  # rising 24


@pytest.mark.parametrize("shape", [Shape(2, 8, 128, 64), GROUPED.resized(seq_len=128), SPREAD], ids=str)
def test_a_thousandth_of_the_elements_is_drawn_from_farther_off(shape):
    shape = shape.resized(values="outliers")
    for given in everywhere(drawn(shape)):
        elements = torch.cat([tensor.flatten() for tensor in given]).float()
        # 55 % of N(0, 101) is beyond 6; of N(0, 1), 2e-9.
        expected = 0.55e-3 * len(elements)
        assert (elements.abs() > 6).sum().item() == pytest.approx(expected, abs=4 * math.sqrt(expected))
        assert elements.abs().max() > 15
        assert elements.abs().median().item() == pytest.approx(0.674, rel=0.02)


@pytest.mark.parametrize("shape", [*SHAPES, SPREAD], ids=str)
@pytest.mark.parametrize("amount", [1, 4])
def test_an_offset_is_the_mean_of_each_column_of_each_head_whichever_its_sign(shape, amount):
    windows = drawn(shape.resized(values=f"offset {amount}"))
    for number, (_, _, v) in enumerate(everywhere(windows)):
        means = of_each_head(v, v, v)[0].double().mean(2)
        assert means.abs().mean().item() == pytest.approx(amount, abs=0.02)
        assert (means.abs() > amount - 5 / math.sqrt(v.shape[2])).all()
        assert bool((means > 0).all()) == (number < COUNT)  # scrambling changes the signs of columns


# Properties of all distributions


@pytest.mark.parametrize("shape", EVERY, ids=str)
def test_a_seed_says_what_is_drawn(shape):
    one, again, other = drawn(shape, 3), drawn(shape, 4), drawn(shape, 4)
    assert not torch.equal(one[0][2], again[0][2])
    assert torch.equal(one[0][0], again[0][0]) == (shape.values == "zeros")
    places = [[tensor.data_ptr() for tensor in given] for given in again]
    again.draw(3)
    assert places == [[tensor.data_ptr() for tensor in given] for given in again]  # new values at the same addresses
    for window in range(COUNT):
        assert all(tensor.isfinite().all() for tensor in one[window])
        assert all(map(torch.equal, one[window], again[window]))
    if not shape.by_token and shape.values != "mixture":
        tuned = drawn(shape.resized(values="normal"))
        tuned.draw(4, shape.values)  # other values than the shape's
        assert all(map(torch.equal, tuned[0], other[0]))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


@pytest.mark.parametrize(
    "shape", [*EVERY, *(PLAIN.resized(values=kind) for kind in KINDS), SPREAD.resized(kv_heads=2)], ids=str
)
def test_no_head_meets_the_same_keys_in_two_windows_unless_places_lie_in_the_way(shape):
    windows, met, shared = drawn(shape), set(), shape.heads // shape.kv_heads
    first = windows[0]
    for given in windows:
        assert [(x.shape, x.stride()) for x in given] == [(x.shape, x.stride()) for x in first]
        q, k = given[:2]
        met |= {(q[b, h].data_ptr(), k[b, h // shared].data_ptr()) for b in range(len(q)) for h in range(shape.heads)}
        assert given[2].data_ptr() == first[2].data_ptr()
    alone = placed(shape.values) and shape.by_token  # the next head may be the next token's
    assert len(met) == len(first[0]) * shape.heads * (1 if alone else COUNT)


# Captured values


LAYER = "early"
CAPTURED = Shape(2, 6, 40, 64, dtype="float32", kv_heads=2, kv_len=72, values=f"captured {LAYER}")
CAPTURED_SHAPES = [
    CAPTURED,
    CAPTURED.resized(layout="tokens first"),
    CAPTURED.resized(dtype="float16", scale=0.2),
    CAPTURED.resized(kv_heads=6),
    Shape(3, 5, 80, 64, causal=True, dtype="bfloat16", values=CAPTURED.values),
    Shape(1, 1, 1, 64, dtype="float32", kv_len=80, values=CAPTURED.values),
]


def layer(name: str, heads: int = 10, kv_heads: int = 5, tokens: int = 80, head_dim: int = 64) -> dict[str, Any]:
    """A layer as in a file: 2 query heads to each KV head, and numbers that differ between heads."""
    generator = torch.Generator().manual_seed(len(name) + heads)
    sizes = {"q": (heads, tokens, head_dim), "k": (kv_heads, tokens, head_dim), "v": (kv_heads, tokens, head_dim)}
    # In steps of 1/8, so that sums of products are exact in any order.
    return {
        f"{name}.{tensor}": (torch.randint(1, 40, size, generator=generator) / 8 + 1).half()
        for tensor, size in sizes.items()
    }


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A function that writes a file of captured tensors and makes it the one in use; returns its path."""
    monkeypatch.setenv(captured.FILE, "")

    def write(tensors: dict[str, Any]):
        path = tmp_path / f"model-{len(list(tmp_path.iterdir()))}.safetensors"
        save_file(tensors, path)
        captured.use(tiny_study(captured=str(path)))
        return path

    return write


def captured_heads(given: Inputs, shape: Shape, held: dict[str, Any]) -> list[int]:
    """The captured query head behind each query head, over all batches, found by its logits."""
    queries = held[f"{LAYER}.q"][:, shape.kv_len - shape.seq_len : shape.kv_len].double()
    keys = held[f"{LAYER}.k"][:, : shape.kv_len].double().repeat_interleave(2, 0)
    known = queries @ keys.transpose(1, 2) * (shape.scale or 1 / math.sqrt(shape.head_dim))
    found = []
    for scores in logits(given, shape).flatten(0, 1):
        (head,) = [number for number, one in enumerate(known) if torch.equal(scores, one)]
        found.append(head)
    return found


@pytest.mark.parametrize("shape", CAPTURED_SHAPES, ids=str)
def test_each_head_of_every_window_is_a_captured_one_with_the_keys_of_its_own(file, shape):
    held = layer(LAYER) | layer("late", heads=12, kv_heads=6)
    file(held)
    shared, kept = shape.heads // shape.kv_heads, held[f"{LAYER}.v"][:, : shape.kv_len]
    for number, given in enumerate(everywhere(drawn(shape))):
        heads = captured_heads(given, shape, held)
        # Query heads that share keys here also shared them in the file.
        groups = [{head // 2 for head in heads[first : first + shared]} for first in range(0, len(heads), shared)]
        assert [len(group) for group in groups] == [1] * shape.batch * shape.kv_heads
        each = of_each_head(*given)
        if number == 0:  # in the first window, V is that of the keys
            for head, own in zip(heads, each[2].flatten(0, 1), strict=True):
                assert torch.equal(own.abs().double(), kept[head // 2].double())
        # Captured values are positive: scrambling changes the sign of a column for all tokens, in Q and K alike.
        q, k, v = (tensor.sign() for tensor in each)
        assert torch.equal(q, k[:, :, :1].expand_as(q))
        for tensor in (k, v):
            assert torch.equal(tensor, tensor[:, :, :1].expand_as(tensor))
            assert 0.2 < (tensor < 0).double().mean() < 0.8


@pytest.mark.parametrize("shape", EVERY + CAPTURED_SHAPES, ids=str)
def test_scrambled_inputs_have_other_values_and_are_the_same_again_bit_for_bit(file, shape):
    file(layer(LAYER))
    windows = drawn(shape)
    before = [[bits(tensor).clone() for tensor in given] for given in windows]
    scores = [logits(given, shape) for given in windows]
    with windows.scrambled():
        for given, was, then in zip(windows, before, scores, strict=True):
            if shape.values == CAPTURED.values:
                assert all(torch.equal(bits(tensor), held) for tensor, held in zip(given[:2], was[:2], strict=True))
            else:
                changed = (logits(given, shape) - then).abs() > 1e-3
                assert changed.double().mean() > 0.5 or (shape.values == "zeros" and not changed.any())
            for tensor, held in zip(given[2:], was[2:], strict=True):
                assert 0.2 < (bits(tensor) != held).double().mean() < 0.8
    for given, was in zip(windows, before, strict=True):
        assert all(torch.equal(bits(tensor), held) for tensor, held in zip(given, was, strict=True))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (CAPTURED.resized(kv_len=81), "80 tokens were captured, and the shape has 81 keys"),
        (CAPTURED.resized(seq_len=72, kv_len=40), "captured queries are the last of 40 keys, and there are 72"),
        (CAPTURED.resized(head_dim=128), "the captured heads have 64 columns, not 128"),
    ],
)
def test_a_shape_that_what_was_captured_does_not_do_for_is_not_supported(file, shape, reason):
    file(layer(LAYER))
    assert told(lambda: Windows(shape, CPU, COUNT), Unsupported) == reason


# Runs


def study_of(path, **axes):
    """The tiny study with another sweep, of captured values from a file."""
    return tiny_study(
        captured=str(path), replicates=1, samples=2, implementations=["sdpa.auto"],
        sweeps={"target": TINY["target"], "values": TINY["target"] | {"values": f"captured {LAYER}"} | axes},
    )  # fmt: skip


def test_a_run_measures_what_was_captured_and_skips_with_a_reason_what_was_not(file, data, unlocked):
    path = file(layer(LAYER, tokens=40))
    study = study_of(path, seq_len=[32, 64], head_dim=[64, 32])
    run = read.load(record.record("one", study, "cpu", Quickly(ThreadPoolExecutor(1))))
    assert run.manifest["captured"] == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    assert captured.digests(tiny_study(captured="/no/such/file")) == {}
    cases = run.cases[run.cases["values"] == f"captured {LAYER}"]
    width = "the captured heads have 64 columns, not 32"
    assert {(case.seq_len, case.head_dim): (case.status, case.reason) for case in cases.itertuples()} == {
        (32, 64): ("measured", ""),
        (64, 64): ("skipped", "40 tokens were captured, and the shape has 64 keys"),
        (32, 32): ("skipped", width),
        (64, 32): ("skipped", width),
    }
    of_kind = run.checks[run.checks["values"] == f"captured {LAYER}"]
    assert set(of_kind["seq_len"]) == {32}
    assert {f"captured {LAYER}"} <= set(of_kind["inputs"]) <= {f"captured {LAYER}", "large logits", "constant rows"}


def test_a_run_of_another_file_is_not_gone_on_with(file, begin, one_thread, unlocked):
    path = file(layer(LAYER))
    name = begin(study_of(path), captured={path.name: 64 * "0"})
    said = f"what was captured ({path}) changed since the run 'begun' began: start a new run"
    assert told(lambda: record.record(name, study_of(path), "cpu", one_thread), Outdated) == said
    assert read.load(name).cases.empty


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"captured: {} can't be read \(No such file or directory.*\): name another"),
        (b"", r"captured: {} is no file of safetensors: .+"),
        (
            layer(LAYER) | {f"{LAYER}.v": torch.zeros(2, 80)},
            rf"captured: {{}} holds {LAYER}\.v as \(2, 80\), which has to be \(heads, tokens, head_dim\)",
        ),
        (
            layer(LAYER) | {f"{LAYER}.q": torch.zeros(3, 80, 64)},
            rf"captured: {{}} holds {LAYER}\.q as \(3, 80, 64\), {LAYER}\.k as .*: K and V have to be alike, .*",
        ),
        (layer("middle"), rf"captured: {{}} lacks {LAYER}\.q; it has middle\.k, middle\.q, middle\.v"),
    ],
    ids=["missing", "empty", "flat", "too few heads", "another layer"],
)
def test_a_file_that_does_not_do_is_told_in_one_line_before_a_run_begins(tmp_path, data, capsys, content, said):
    path = tmp_path / "held.safetensors"
    if isinstance(content, dict):
        save_file(content, path)
    elif content is not None:
        path.write_bytes(content)
    study = study_of(path)
    for begins in (captured.digests, lambda study: record.record("one", study, "cpu", Quickly(ThreadPoolExecutor(1)))):
        assert re.fullmatch(said.format(re.escape(str(path))), told(partial(begins, study)))
    assert not (data / "one").exists()
    assert "looking at the machine" not in capsys.readouterr().err
