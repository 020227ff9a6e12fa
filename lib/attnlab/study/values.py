"""Values: the kinds of numbers in Q, K and V that a case is timed on.

A kind is an axis of a shape, so that whatever keeps one shape apart from another (rounds, gates, families of tests,
figures) also keeps kinds apart, and a comparison never mixes them.

What an implementation takes may depend on the scores: on how large they are, and where a row's largest one lies. V
doesn't matter to the softmax, and is standard normal unless a kind says otherwise.
"""

import re
from dataclasses import dataclass

CAPTURED = "captured"
CAPTURED_FILE = "data/captured/small.safetensors"
"""The file, from the project's root, that captured values come from where a study names none; there, packed."""


@dataclass(frozen=True)
class Kind:
    """A kind of values.

    Attributes:
        about: what they are; `{}` stands for the amount or the name that a kind is stated with.
        source: who describes or uses them; may be empty.
        stated: the words, after the name, with which it is timed by default; "" for a kind that takes none.
        placed: whether a score depends on the places of its query and its key.
    """

    about: str
    source: str = ""
    stated: tuple[str, ...] = ("",)
    placed: bool = False


KINDS = {
    "normal": Kind("Q, K and V are standard normal, so that scores have a standard deviation of 1"),
    "sd": Kind("standard normal, and Q is multiplied by {}: scores have this standard deviation", "", ("2", "4", "6")),
    "sink": Kind(
        "the first key attracts every query by {} nats; else normal",
        "Xiao et al. 2024, Efficient streaming language models with attention sinks, section 3",
        ("8", "13"),
        placed=True,
    ),
    "positional": Kind(
        "like positions attract, by at most {} nats: D/8 frequencies, from 1 down to 1/10,000 per key; else normal",
        "the frequencies are those of rotary embeddings (Su et al. 2021, section 3.2.2)",
        ("25",),
        placed=True,
    ),
    "rising": Kind(
        "scores rise evenly over the keys, by {} nats from the first to the last; else normal", "", ("24",), True
    ),
    "falling": Kind("scores fall evenly over the keys, by {} nats; else normal", "", ("24",), True),
    "scales": Kind(
        "standard normal, and Q is multiplied by a factor for each head, from 1/4 to 8, evenly in its logarithm, and "
        "by one for each row, log-normal with a deviation of 0.5"
    ),
    "outliers": Kind(
        "each element of Q, K and V is N(0, 1) + N(0, 100) · Bernoulli(0.001)",
        "Shah et al. 2024 (FlashAttention-3), section 4.3",
    ),
    "offset": Kind(
        "{} is added to V, so that its columns have this mean and what an accumulator holds grows with the keys; else "
        "normal",
        "",
        ("1",),
    ),
    CAPTURED: Kind(
        "Q, K and V of the layer “{}” of a trained model, from a file; columns change their signs at random, those of "
        "Q and K alike",
        "tools/capture.py, or a file of one's own",
        ("early", "middle", "late"),
        placed=True,
    ),
    "zeros": Kind(
        "Q and K are zeros, and V holds one number a column: what power alone does",
        "He 2024, Strangely, matrix multiplications on GPUs run faster when given “predictable” data",
    ),
}
NORMAL, ZEROS = "normal", "zeros"
STANDARD = tuple(" ".join(filter(None, (name, word))) for name, kind in KINDS.items() for word in kind.stated)
"""The values that ``values: all`` in a study stands for."""
ALL = "all"
_AMOUNT = re.compile(r"[0-9]{1,4}(\.[0-9]+)?")
_LAYER = re.compile(r"[A-Za-z0-9_.-]+")


def split(values: str) -> tuple[str, str]:
    """The name of a kind, and the amount or layer that it is stated with: ``sink 8`` as ``("sink", "8")``.

    Raises:
        ValueError: no kind is stated so; the message says which are.
    """
    name, _, word = values.partition(" ")
    if name in KINDS:
        takes = KINDS[name].stated != ("",)
        pattern = _LAYER if name == CAPTURED else _AMOUNT
        if values == f"{name} {word}".strip() and bool(word) == takes and (not word or pattern.fullmatch(word)):
            return name, word
    raise ValueError(f"unknown values {values!r}; known are {', '.join(STANDARD)}, or other amounts")


def placed(values: str) -> bool:
    """Whether a score depends on the places of its query and its key."""
    return KINDS[split(values)[0]].placed


def about(values: str) -> str:
    """What they are, in words."""
    name, word = split(values)
    return KINDS[name].about.format(word)
