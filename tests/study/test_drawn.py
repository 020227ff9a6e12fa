"""Shapes drawn at random."""

import small

from attnlab.study import drawn, studies
from attnlab.study.shapes import Shape


def test_a_seed_draws_the_same_shapes_each_time_and_more_of_them_begin_with_these():
    few, many = drawn.draw(20, 1), drawn.draw(300, 1)
    assert many[:20] == few == drawn.draw(20, 1) != drawn.draw(20, 2)
    assert len(set(many)) == 300
    assert all(shape.flops <= drawn.MOST_FLOPS and shape.bytes <= drawn.MOST_BYTES for shape in many)
    assert few[1].label == "(13, 48, 69, 64) bfloat16, causal, 12 KV heads, 756 keys"  # a run records only the seed


def test_the_sample_that_is_published_is_drawn_by_the_law_that_is_stated():
    shapes = studies.load("drawn").drawn_shapes
    assert len(shapes) == 200
    assert shapes[1].label == "(20, 5, 5448, 128) bfloat16, causal"
    assert 0.15 < sum(shape.seq_len < shape.kv_len for shape in shapes) / 200 < 0.35
    for trait in ("causal", "dtype", "head_dim"):
        assert 0.4 < sum(getattr(shape, trait) in (True, "float16", 64) for shape in shapes) / 200 < 0.6
    assert 0.05 < sum(shape.head_dim == 256 for shape in shapes) / 200 < 0.15
    for size, most in (("batch", 64), ("heads", 64)):  # half are below the middle of the range, in doublings
        assert 0.35 < sum(getattr(shape, size) <= most**0.5 for shape in shapes) / 200 < 0.65
    assert all(shape.heads / shape.kv_heads <= 16 and max(1, shape.kv_len // 2048) <= 16 for shape in shapes)


def test_a_study_has_them_after_those_of_its_sweeps_on_each_of_its_kinds_of_values():
    study = small.study(drawn={"shapes": 3, "seed": 5, "values": ["normal", "sd 4"]})
    swept = small.study().shapes
    assert study.shapes[: len(swept)] == swept
    assert study.drawn_shapes == study.shapes[len(swept) :]
    assert [shape.values for shape in study.drawn_shapes] == ["normal", "sd 4"] * 3
    assert list(dict.fromkeys(shape.plain for shape in study.drawn_shapes)) == drawn.draw(3, 5)


def test_the_study_by_which_attend_chooses_holds_no_drawn_shape_in_its_grid():
    study = studies.load("dispatch")
    swept = set(study.swept_shapes)
    assert len(study.drawn_shapes) == 400
    assert not swept & set(study.drawn_shapes)
    assert {shape.head_dim for shape in swept} == {64, 128, 256}
    assert isinstance(study.target_shape, Shape)
