"""Digests of what JSON can hold."""

from attnlab.base.documents import digest


def test_a_digest_is_of_the_content_not_of_its_order():
    assert digest({"a": 1, "b": [1, {"c": 2, "d": 3}]}) == digest({"b": [1, {"d": 3, "c": 2}], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})
    assert digest([1, 2]) != digest([2, 1])
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
