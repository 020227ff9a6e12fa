"""The arithmetic of a shape, against numbers worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.shapes import BYTES_PER_ELEMENT, Shape

sizes = st.integers(1, 4096)
shapes = st.builds(
    Shape, sizes, sizes, sizes, sizes, causal=st.booleans(), dtype=st.sampled_from(sorted(BYTES_PER_ELEMENT))
)


@pytest.mark.parametrize(
    ("shape", "scores", "flops", "traffic", "intensity"),
    [
        # 4·32·8·512²·64 = 2^34; 4 tensors of 32·8·512·64 elements of 2 bytes = 2^26
        (Shape(32, 8, 512, 64), 67_108_864, 17_179_869_184, 67_108_864, 256.0),
        # 2·32·8·512·513·64
        (Shape(32, 8, 512, 64, causal=True), 33_619_968, 8_606_711_808, 67_108_864, 128.25),
        (Shape(1, 1, 1, 1, dtype="float64"), 1, 4, 32, 0.125),
        # 1·2·(1+2+3) scores, two multiply-adds of D=5 each
        (Shape(1, 2, 3, 5, causal=True, dtype="float32"), 12, 240, 480, 0.5),
        (Shape(1, 2, 3, 5, causal=False, dtype="bfloat16"), 18, 360, 240, 1.5),
    ],
)
def test_hand_worked(shape, scores, flops, traffic, intensity):
    assert shape.scores == scores
    assert shape.exponentials == scores
    assert shape.flops == flops
    assert shape.bytes == traffic
    assert shape.intensity == intensity


def test_flash_attentions_causal_convention_is_s_over_s_plus_one_of_this():
    causal, full = Shape(32, 8, 512, 64, causal=True), Shape(32, 8, 512, 64)
    assert full.flops // 2 == 8_589_934_592
    assert causal.flops * 512 == full.flops // 2 * 513


@given(shapes)
def test_the_four_tensors_are_the_compulsory_traffic(shape):
    tensor = shape.batch * shape.heads * shape.seq_len * shape.head_dim
    assert shape.query_elements == shape.key_elements == tensor
    assert shape.bytes == 4 * tensor * BYTES_PER_ELEMENT[shape.dtype]
    assert shape.flops == 4 * shape.exponentials * shape.head_dim
    assert shape.intensity * shape.bytes == pytest.approx(shape.flops)


@given(sizes, sizes, sizes)
def test_a_causal_sequence_of_one_is_a_full_one(batch, heads, head_dim):
    causal, full = (Shape(batch, heads, 1, head_dim, causal=mask) for mask in (True, False))
    assert (causal.flops, causal.exponentials, causal.bytes) == (full.flops, full.exponentials, full.bytes)


@given(sizes, sizes, sizes, sizes, sizes, st.booleans())
def test_batches_add_up(one, other, heads, seq_len, head_dim, causal):
    a, b, both = (Shape(batch, heads, seq_len, head_dim, causal) for batch in (one, other, one + other))
    assert both.flops == a.flops + b.flops
    assert both.bytes == a.bytes + b.bytes
    assert both.exponentials == a.exponentials + b.exponentials
    assert both.intensity == a.intensity


@given(sizes, sizes, st.integers(1, 4095), sizes)
def test_a_causal_row_more_adds_its_own_scores(batch, heads, seq_len, head_dim):
    shorter, longer = (Shape(batch, heads, length, head_dim, causal=True) for length in (seq_len, seq_len + 1))
    assert longer.scores - shorter.scores == batch * heads * (seq_len + 1)


@pytest.mark.parametrize("axis", ["batch", "heads", "seq_len", "head_dim"])
@pytest.mark.parametrize("size", [0, -1, 1.0, "8", True, None, [8]])
def test_sizes_are_positive_integers(axis, size):
    axes = {"batch": 1, "heads": 1, "seq_len": 1, "head_dim": 1, axis: size}
    with pytest.raises(ValueError, match="must be a positive integer, not") as caught:
        Shape(**axes)
    assert str(caught.value) == f"{axis} must be a positive integer, not {size!r}"


@pytest.mark.parametrize("causal", [1, 0, "true", None])
def test_causal_is_a_truth_value(causal):
    with pytest.raises(ValueError, match=f"^causal must be true or false, not {causal!r}$"):
        Shape(1, 1, 1, 1, causal=causal)


@pytest.mark.parametrize("dtype", ["half", "torch.float16", "", None, ["float16"], {"float16": 1}])
def test_a_dtype_is_a_known_name(dtype):
    with pytest.raises(ValueError, match="unknown dtype") as caught:
        Shape(1, 1, 1, 1, dtype=dtype)
    assert str(caught.value) == f"unknown dtype {dtype!r}; known are float16, bfloat16, float32, float64"


def test_axes_are_those_of_the_tables_in_their_order():
    shape = Shape(2, 3, 5, 7, True, "float32")
    assert list(shape.axes.items()) == [
        ("batch", 2), ("heads", 3), ("seq_len", 5), ("head_dim", 7), ("causal", True), ("dtype", "float32"),
        ("kv_heads", 3), ("kv_len", 5), ("lengths", "equal"), ("direction", "forward"),
    ]  # fmt: skip
    assert tuple(shape.axes) == Shape.AXES
    assert Shape(**shape.axes) == shape


def test_a_shape_says_what_it_is():
    assert str(Shape(1, 8, 128, 64, causal=True)) == "B=1 H=8 S=128 D=64 causal float16"
    assert str(Shape(1, 8, 128, 64, dtype="float32")) == "B=1 H=8 S=128 D=64 full float32"
