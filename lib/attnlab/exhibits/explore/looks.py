"""Colours and signs of the explorer: those of the figures, and what they become on a dark ground."""

from collections.abc import Iterable

from matplotlib.colors import to_hex

from attnlab.exhibits.decisions import CLAIMABLE, EQUIVALENT, FASTER, INCONCLUSIVE, SIGNS, SLOWER
from attnlab.exhibits.drawing import inverted
from attnlab.exhibits.style import look

DARK_GROUND = "#17181a"
FILLS = {
    CLAIMABLE: (("#08519c", "white"), ("#9ecae1", "#0b1c2c")),
    FASTER: (("#c6dbef", "black"), ("#1d4468", "#ffffff")),
    EQUIVALENT: (("#e3e3e3", "black"), ("#3b3c3f", "#ffffff")),
    INCONCLUSIVE: (("#ffffff", "black"), (DARK_GROUND, "#dededa")),
    SLOWER: (("#fdd0a2", "black"), ("#7a3d0c", "#ffffff")),
    "no latency": (("#ffffff", "#595959"), (DARK_GROUND, "#a3a39e")),
}
"""Fill and ink of a cell on a light and on a dark ground, by its verdict."""


def of_implementations(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The colour of each implementation's lines on a light and on a dark ground."""
    colours = {name: to_hex(look(name)["color"]) for name in names}
    return {name: {"light": colour, "dark": inverted(colour.removeprefix("#"))} for name, colour in colours.items()}


def of_verdicts() -> dict[str, dict[str, list[str] | str]]:
    """Sign, fill and ink of each kind of verdict."""
    return {
        kind: {"sign": SIGNS.get(kind, "×"), "light": list(light), "dark": list(dark)}
        for kind, (light, dark) in FILLS.items()
    }
