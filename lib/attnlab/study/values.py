"""Values: the input distributions of Q, K and V that a case is timed on.

An input distribution is an axis of a shape. So rounds, gates, families of tests and figures keep distributions apart
as they keep shapes apart, and a comparison never mixes distributions.

The latency of an implementation may depend on the scores: on their size, and on the position of a row's largest. V
doesn't matter to the softmax, and is standard normal unless a distribution says otherwise.
"""

import re
from typing import NamedTuple

CAPTURED = "captured"
CAPTURED_FILE = "data/captured/small.safetensors"
"""The default file of captured values, relative to the project's root, where it is compressed."""


class Kind(NamedTuple):
    """An input distribution.

    Attributes:
        stated: the words after the name with which it is timed by default; "" if it takes none.
        placed: whether a score depends on the positions of its query and its key.
    """

    stated: tuple[str, ...] = ("",)
    placed: bool = False


KINDS = {
    # Q, K and V are standard normal, so that scores have a standard deviation of 1.
    "normal": Kind(),
    # Q is multiplied, so that scores have this standard deviation.
    "sd": Kind(("2", "4", "6", "12", "24", "60")),
    # The first key attracts every query by N nats (Xiao et al. 2024, Efficient streaming language models with
    # attention sinks, section 3).
    "sink": Kind(("8", "13"), placed=True),
    # The key before the last 1/16 of the keys attracts every query that sees it by N nats, late in a kernel's sum.
    "late": Kind(("20",), placed=True),
    # Near positions attract, by at most N nats: D/8 frequencies, from 1 down to 1/10,000 per key, which are those
    # of rotary embeddings (Su et al. 2021, section 3.2.2).
    "positional": Kind(("25",), placed=True),
    # Scores rise or fall evenly over the keys, by N nats from the first to the last.
    "rising": Kind(("24",), placed=True),
    "falling": Kind(("24",), placed=True),
    # Scores rise by N nats from each `TILE` of keys to the next, so that each has a new maximum.
    "stairs": Kind(("12",), placed=True),
    # Q is multiplied by a factor for each head, log-uniform from 1/4 to 8, and by one for each row, log-normal with
    # a standard deviation of 0.5.
    "scales": Kind(),
    # Each element of Q, K and V is N(0, 1) + N(0, 100) · Bernoulli(0.001) (Shah et al. 2024, section 4.3).
    "outliers": Kind(),
    # Each element of Q, K and V is of Student's t distribution with N degrees of freedom.
    "student": Kind(("3",)),
    # N is added to V: its columns have this mean, and the sums over keys grow with the keys.
    "offset": Kind(("1",)),
    # Q, K and V of this layer of a trained model, from a file that tools/capture.py or a user wrote. Columns change
    # their signs at random, those of Q and K alike.
    CAPTURED: Kind(("early", "middle", "late"), placed=True),
    # Heads of K, with the heads of Q that share them, have the distributions of `MIXED` in turn, over all batches.
    "mixture": Kind(placed=True),
    # Q and K are zeros, and V has one number per column: shows the effect of power alone (He 2024, Strangely, matrix
    # multiplications on GPUs run faster when given “predictable” data).
    "zeros": Kind(),
}
NORMAL, ZEROS = "normal", "zeros"
TILE = 64
"""The keys of a step of `stairs`."""
MIXED = ("normal", "sd 6", "sd 24", "stairs 12", "student 3", "rising 24")
STANDARD = tuple(f"{name} {word}".strip() for name, kind in KINDS.items() for word in kind.stated)
"""The values that ``values: all`` in a study stands for."""
ALL = "all"
_AMOUNT = re.compile(r"[0-9]{1,4}(\.[0-9]+)?")
_LAYER = re.compile(r"[A-Za-z0-9_.-]+")


def split(values: str) -> tuple[str, str]:
    """The name of a distribution, and the amount or layer that it is stated with: ``sink 8`` as ``("sink", "8")``.

    Raises ValueError: no distribution is stated so; the message lists those that are.
    """
    name, blank, word = values.partition(" ")
    if name in KINDS:
        takes = KINDS[name].stated != ("",)
        fits = (_LAYER if name == CAPTURED else _AMOUNT).fullmatch(word) if takes else not blank
        if fits and not (name == "student" and not float(word)):  # there is no t distribution of 0 degrees
            return name, word
    raise ValueError(f"unknown values {values!r}; known are {', '.join(STANDARD)}, or other amounts")


def placed(values: str) -> bool:
    """Whether a score depends on the positions of its query and its key."""
    return KINDS[split(values)[0]].placed
