"""Whether an implementation gives a sequence the same bits alone and in a batch."""

import random

from attnlab.measuring.gate.gate import unlike
from attnlab.measuring.subjects.implementation import Broken, Implementation, OutOfMemory, Unsupported, attempt
from attnlab.measuring.subjects.inputs import Inputs
from attnlab.study.shapes import Shape


def differing(implementation: Implementation, given: Inputs, shape: Shape) -> int | None:
    """The number of elements whose bits differ between the outputs for a sequence alone and for the whole batch.

    The sequence is drawn at random. The call is that of a program: code that chooses by shape may choose differently.

    Returns:
        None if the test doesn't apply: a single sequence, packed sequences, a backward pass, or a call that the
        implementation doesn't serve.
    """
    if shape.batch == 1 or shape.ragged or shape.trains:
        return None
    sequence = random.SystemRandom().randrange(shape.batch)
    alone = tuple(tensor[sequence : sequence + 1] for tensor in given)
    try:
        with implementation.selected():
            together = attempt(lambda: implementation.bound(given, shape)())[sequence]
            by_itself = attempt(lambda: implementation.bound(alone, shape.resized(batch=1))())[0]
    except (Unsupported, OutOfMemory, Broken):
        return None
    return unlike((together,), (by_itself,))
