"""Shapes drawn at random."""

import small

from attnlab.study import drawn, studies
from attnlab.study.shapes import Shape


def test_a_seed_draws_the_same_shapes_each_time_and_more_of_them_begin_with_these():
    few, many = drawn.draw(20, 1), drawn.draw(300, 1)
    assert many[:20] == few == drawn.draw(20, 1) != drawn.draw(20, 2)
    assert len(set(many)) == 300
    assert all(shape.flops <= drawn.MOST_FLOPS and shape.bytes <= drawn.MOST_BYTES for shape in many)


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
    assert {shape.head_dim for shape in swept} == {64, 128}
    assert isinstance(study.target_shape, Shape)
