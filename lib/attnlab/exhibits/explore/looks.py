"""Colours and signs of the explorer: those of the figures, and what they become on a dark ground."""

from collections.abc import Iterable
from colorsys import hls_to_rgb, rgb_to_hls

from matplotlib.colors import to_hex, to_rgb

from attnlab.exhibits.style import look
from attnlab.exhibits.verdicts.every import LOOKS, NO_LATENCY

DARK_GROUND = "#17181a"
LEAST_CONTRAST = 3.0
"""The contrast that a line needs with its ground (WCAG 2.2, 1.4.11)."""
TEXT_CONTRAST = 4.5
"""The contrast that text needs with its ground (WCAG 2.2, 1.4.3)."""
DARK_FILLS = {
    "faster, claimable": ("#9ecae1", "#0b1c2c"),
    "faster": ("#1d4468", "#ffffff"),
    "equivalent": ("#3b3c3f", "#ffffff"),
    "inconclusive": (DARK_GROUND, "#dededa"),
    "slower": ("#7a3d0c", "#ffffff"),
    NO_LATENCY: (DARK_GROUND, "#a3a39e"),
}
"""Fill and ink of a cell on a dark ground, by its verdict."""


def of_implementations(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The colour of each implementation's lines on a light and on a dark ground."""
    colours = {name: to_hex(look(name)["color"]) for name in names}
    return {name: {"light": colour, "dark": on_dark(colour)} for name, colour in colours.items()}


def of_verdicts() -> dict[str, dict[str, list[str] | str]]:
    """Sign, fill and ink of each kind of verdict, as on the map of verdicts."""
    found: dict[str, dict[str, list[str] | str]] = {}
    for kind, (sign, fill, ink) in LOOKS.items():
        readable = ink if contrast(ink, fill) >= TEXT_CONTRAST else "#595959"
        found[kind] = {"sign": sign, "light": [fill, readable], "dark": list(DARK_FILLS[kind])}
    return found


def on_dark(colour: str) -> str:
    """The colour, made as much lighter as a line needs on a dark ground; black becomes white."""
    if contrast(colour, DARK_GROUND) >= LEAST_CONTRAST:
        return colour
    hue, lightness, saturation = rgb_to_hls(*to_rgb(colour))
    if saturation == 0:
        return to_hex(hls_to_rgb(hue, 1 - lightness, saturation))
    lighter = (to_hex(hls_to_rgb(hue, step / 100, saturation)) for step in range(int(100 * lightness), 101))
    return next(found for found in lighter if contrast(found, DARK_GROUND) >= LEAST_CONTRAST)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours (WCAG 2.2, definition of contrast ratio)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return float(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
