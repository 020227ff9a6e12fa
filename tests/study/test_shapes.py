"""The arithmetic of a shape, against numbers computed by hand."""

import math
import random
import re
from itertools import product
from statistics import median, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.study.shapes import LAWS, Shape

KNOWN_LENGTHS = f"known are {', '.join(['equal', 'spread', *LAWS])}"
sizes = st.integers(1, 4096)


# Grouped heads, unequal numbers of queries and keys, varlen, training

# 8 query heads, 4 to each KV head; one query over 7 keys; lengths 2, 4, 6 and 7.
GROUPED = Shape(2, 8, 16, 4, kv_heads=2)
DECODE = Shape(3, 4, 1, 8, dtype="bfloat16", kv_heads=2, kv_len=7)
CACHED = DECODE.resized(seq_len=3, causal=True)
SPREAD = Shape(4, 3, 7, 2, lengths="spread", dtype="float32")
TRAINING = Shape(2, 3, 5, 4, direction="training")


@pytest.mark.parametrize(
    ("shape", "scores", "flops", "exponentials", "queries", "keys", "traffic"),
    [
        # 4·32·8·512²·64 = 2^34; 4 tensors of 32·8·512·64 elements of 2 bytes = 2^26
        (Shape(32, 8, 512, 64), 67_108_864, 17_179_869_184, 67_108_864, 2**23, 2**23, 67_108_864),
        # 2·32·8·512·513·64
        (Shape(32, 8, 512, 64, causal=True), 33_619_968, 8_606_711_808, 33_619_968, 2**23, 2**23, 67_108_864),
        # 1·2·(1+2+3) scores, 2 FMAs with D = 5 each
        (Shape(1, 2, 3, 5, causal=True, dtype="float32"), 12, 240, 12, 30, 30, 480),
        # Each query head has separate scores, 2·8·16²; Q and O have 2·8·16·4 elements, K and V a quarter of that
        (GROUPED, 4096, 65_536, 4096, 1024, 256, 2 * (1024 + 256) * 2),
        # 3·4·1·7 scores; Q and O of 3·4·1·8, K and V of 3·2·7·8
        (DECODE, 84, 4 * 84 * 8, 84, 96, 336, 2 * (96 + 336) * 2),
        # Queries that see 5, 6 and 7 of the keys: 18 scores a head
        (CACHED, 216, 4 * 216 * 8, 216, 288, 336, 2 * (288 + 336) * 2),
        # Lengths ⌈7·i/4⌉ = 2, 4, 6, 7: 4 + 16 + 36 + 49 = 105 scores a head, 19 tokens
        (SPREAD, 315, 4 * 315 * 2, 315, 114, 114, 2 * (114 + 114) * 4),
        # 3 + 10 + 21 + 28 = 62 scores a head with the mask
        (SPREAD.resized(causal=True), 186, 4 * 186 * 2, 186, 114, 114, 2 * (114 + 114) * 4),
        # 7 products of 2·150·4 FLOPs; 2 exponentials a score; Q, K, V, O and the gradients of all 4
        (TRAINING, 150, 7 * 2 * 150 * 4, 300, 120, 120, 8 * 120 * 2),
        (TRAINING.resized(causal=True), 90, 14 * 90 * 4, 180, 120, 120, 8 * 120 * 2),
        # 5 of the products, and no exponential of a forward pass; O is read
        (TRAINING.resized(direction="backward"), 150, 10 * 150 * 4, 150, 120, 120, 8 * 120 * 2),
        # The same 2·3·5² scores; K, V, dK and dV are a third as large
        (TRAINING.resized(kv_heads=1), 150, 14 * 150 * 4, 300, 120, 40, 4 * (120 + 40) * 2),
    ],
    ids=str,
)
def test_hand_worked(shape, scores, flops, exponentials, queries, keys, traffic):
    assert (shape.scores, shape.flops, shape.exponentials) == (scores, flops, exponentials)
    assert (shape.query_elements, shape.key_elements, shape.bytes) == (queries, keys, traffic)
    assert shape.intensity == flops / traffic


def test_the_tokens_of_each_sequence():
    assert (SPREAD.sequences, SPREAD.tokens) == ((2, 4, 6, 7), 19)
    long, short = Shape(16, 8, 512, 64, lengths="spread"), Shape(5, 1, 2, 8, lengths="spread")
    assert (long.sequences, long.tokens) == (tuple(range(32, 513, 32)), 4352)
    assert (short.sequences, short.tokens) == ((1, 1, 2, 2, 2), 8)  # 5 sequences of at most 2 tokens: none is empty


def test_drawn_lengths_are_those_of_a_seed_and_of_the_law():
    shape = Shape(32, 16, 1886, 128, dtype="bfloat16", lengths="uniform 73 1")
    random.seed(1)  # as tools/gpu/ragged.py draws the lengths
    assert sorted(shape.sequences) == sorted([73, 1886, *(random.randint(73, 1886) for _ in range(30))])
    many = Shape(4000, 1, 4096, 64, lengths="log-normal 512 3")
    logs = [math.log(tokens) for tokens in many.sequences]
    assert many.sequences == many.resized(causal=True).sequences != many.resized(lengths="log-normal 512 4").sequences
    assert many.sequences[-1] == max(many.sequences) == 4096
    assert sum(tokens == 4096 for tokens in many.sequences) == pytest.approx(0.019 * 4000, abs=30)
    assert (median(logs), quantiles(logs, n=100)[15]) == pytest.approx((math.log(512), math.log(512) - 1), abs=0.1)
    prompts = Shape(4000, 1, 4096, 64, lengths="conversations 1").sequences
    assert quantiles(prompts, n=20)[4::5] == pytest.approx([396, 1020, 1189], rel=0.1)
    for law, batch, longest in product(("uniform 73 1", "log-normal 512 1", "conversations 1"), (1, 2), (5, 100)):
        sequences = Shape(batch, 1, longest, 64, lengths=law).sequences
        assert (len(sequences), min(sequences) >= 1, max(sequences)) == (batch, True, longest)


@settings(deadline=None)
@given(sizes, st.integers(1, 64), sizes, st.booleans())
def test_spread_lengths_never_fall_none_is_empty_and_the_last_is_whole(seq_len, batch, head_dim, causal):
    spread = Shape(batch, 2, seq_len, head_dim, causal, lengths="spread")
    assert list(spread.sequences) == sorted(spread.sequences)
    assert spread.sequences[0] >= 1
    assert spread.sequences[-1] == seq_len
    apart = [Shape(1, 2, length, head_dim, causal) for length in spread.sequences]
    assert spread.flops == sum(shape.flops for shape in apart)
    assert spread.bytes == sum(shape.bytes for shape in apart)
    assert spread.exponentials == sum(shape.exponentials for shape in apart)


def test_what_is_left_out_is_as_many_as_there_are_of_queries():
    plain = Shape(2, 8, 64, 32)
    assert {plain, Shape(2, 8, 64, 32, kv_heads=8, kv_len=64), Shape(2, 8, 64, 32, kv_heads=0, kv_len=0)} == {plain}
    assert (plain.kv_heads, plain.kv_len, plain.lengths, plain.direction) == (8, 64, "equal", "forward")


@pytest.mark.parametrize(
    ("shape", "special"),
    [
        (Shape(2, 8, 16, 4), []),
        (GROUPED, ["2 KV heads"]),
        (DECODE, ["2 KV heads", "7 keys"]),
        (SPREAD, ["spread lengths"]),
        (TRAINING.resized(kv_heads=1), ["1 KV head", "training"]),
        (GROUPED.resized(layout="tokens first", scale=0.5), ["2 KV heads", "tokens first", "scale 0.5"]),
    ],
    ids=str,
)
def test_what_is_special_is_told(shape, special):
    assert shape.special == special
    plain = f"B={shape.batch} H={shape.heads} S={shape.seq_len} D={shape.head_dim} full {shape.dtype}"
    assert str(shape) == " ".join([plain, *special])
    assert Shape(**shape.axes) == shape
    assert tuple(shape.axes) == Shape.AXES


def test_a_shape_resized_keeps_what_it_shares():
    plain, cached = Shape(2, 8, 64, 32), Shape(2, 8, 1, 32, kv_len=128)
    assert plain.resized(seq_len=128) == Shape(2, 8, 128, 32)
    assert plain.resized(kv_len=128) == Shape(2, 8, 64, 32, kv_len=128)
    assert plain.resized(kv_heads=2).resized(heads=4) == Shape(2, 4, 64, 32, kv_heads=2)
    assert cached.resized(seq_len=2) == Shape(2, 8, 2, 32, kv_len=128)
    assert TRAINING.resized(causal=True, seq_len=6) == Shape(2, 3, 6, 4, True, direction="training")


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        *(
            ({axis: size}, f"{axis} must be a positive integer, not {size!r}")
            for axis in ("batch", "heads", "seq_len", "head_dim")
            for size in (0, -1, 1.0, "8", True, None, [8])
        ),
        *(({"causal": causal}, f"causal must be true or false, not {causal!r}") for causal in (1, "true", None)),
        *(
            ({"dtype": dtype}, f"unknown dtype {dtype!r}; known are float16, bfloat16, float32, float64")
            for dtype in ("half", "", None, ["float16"])
        ),
        ({"kv_heads": 3}, "kv_heads must divide heads, and 3 doesn't divide 8"),
        ({"kv_heads": -1}, "kv_heads must be a positive integer, not -1"),
        ({"kv_len": -1}, "kv_len must be a positive integer, not -1"),
        ({"kv_len": 8, "causal": True}, "causal: true needs no fewer keys than queries, not 8 for 16"),
        ({"kv_len": 32, "lengths": "spread"}, "lengths: spread needs as many keys as queries, not 32 for 16"),
        ({"kv_len": 8, "direction": "training"}, "direction: training needs as many keys as queries, not 8 for 16"),
        ({"lengths": "spread", "direction": "training"}, "lengths: spread is for direction: forward"),
        ({"lengths": "spread", "layout": "tokens first"}, "lengths: spread is for layout: heads first"),
        ({"lengths": "spread", "scale": 0.5}, "lengths: spread is for scale: 0.0"),
        ({"layout": "bshd"}, "unknown layout 'bshd'; known are heads first, tokens first"),
        *(
            ({"scale": scale}, f"scale must be a number above 0, or 0 for 1/√D, not {scale!r}")
            for scale in (-1, math.inf, math.nan, "1", True, None)
        ),
        (
            {"lengths": "uniform 73 1", "kv_len": 32},
            "lengths: uniform 73 1 needs as many keys as queries, not 32 for 16",
        ),
        *(
            ({"lengths": law}, f"unknown lengths '{law}'; {KNOWN_LENGTHS}")
            for law in (LAWS[0], "uniform 0 1", "normal 5 1", "conversations")
        ),
        ({"lengths": "ragged"}, f"unknown lengths 'ragged'; {KNOWN_LENGTHS}"),
        ({"direction": "sideways"}, "unknown direction 'sideways'; known are forward, training, backward"),
    ],
)
def test_axes_that_do_not_go_together_are_told(axes, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        Shape(**{"batch": 2, "heads": 8, "seq_len": 16, "head_dim": 4} | axes)
