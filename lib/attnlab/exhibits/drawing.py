"""A drawing for a page, whose colours follow the page's theme and whose text is text, and for a PDF."""

import colorsys
import re
from io import BytesIO

from matplotlib.figure import Figure

from attnlab.exhibits.style import LOOKS, OTHERS, styled

LEAST_PX = 9.5
"""No letter is smaller on a page; a narrow screen scrolls the drawing instead."""
LARGER = 1.35
"""How many times as large a drawing is on a page as on paper, where the page has room."""
_COLOUR = re.compile(r"#([0-9a-f]{6})\b")
_IMPLEMENTATIONS = {colour.lower().removeprefix("#") for colour, _ in (*LOOKS.values(), *OTHERS)}
_PLACED = re.compile(r' (?:d|x|y|points|transform)="[^"]*"')
_LONG = re.compile(r"\d+\.\d{3,}")
_STYLE = re.compile(r' style="([^"]*)"')
_REFERENCE = re.compile(r'(?<=href="#)[^"]+|(?<=url\(#)[^)]+')
_USED = re.compile(r"var\(--c([0-9a-f]{6}), #")


def svg(drawing: Figure) -> bytes:
    """The drawing as SVG; the same drawing gives the same bytes."""
    return _saved(drawing, "svg", {"Date": None})


def pdf(drawing: Figure) -> bytes:
    """The drawing as PDF; the same drawing gives the same bytes."""
    return _saved(drawing, "pdf", {"CreationDate": None, "Creator": None, "Producer": None})


def _saved(drawing: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    file = BytesIO()
    with styled(**{"svg.hashsalt": "attnlab", "svg.fonttype": "none", "pdf.fonttype": 3}):
        drawing.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()


def inline(svg: str, name: str, alt: str) -> str:
    """An SVG as a part of a page: its ids begin with `name`, its colours are variables of the page.

    Args:
        alt: its description, escaped.
    """
    body = svg[svg.index("<svg") :]
    start = body.index(">") + 1
    width, height = (float(size) for size in re.findall(r'(?:width|height)="([\d.]+)pt"', body[:start]))
    smallest = min((float(size) for size in re.findall(r"font(?:-size)?: (?:\w+ )*([\d.]+)px", body)), default=LEAST_PX)
    least = min(width * LEAST_PX / smallest, 2 * width)
    head = (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{alt}" style="width: {LARGER * width / 0.75:.0f}px; min-width: {least:.0f}px; fill: #000000">'
    )
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body[start:], flags=re.DOTALL)
    used = {id: f"{name}-{number}" for number, id in enumerate(dict.fromkeys(_REFERENCE.findall(body)))}
    body = re.sub(r' id="([^"]*)"', lambda found: f' id="{used[found[1]]}"' if found[1] in used else "", body)
    body = _REFERENCE.sub(lambda found: used[found[0]], body)
    body = _PLACED.sub(lambda found: _LONG.sub(lambda number: f"{float(number[0]):.2f}", found[0]), body)
    body = re.sub(r"\n\s*", "\n", _styled(_unwrapped(body), name))
    return _COLOUR.sub(r"var(--c\1, #\1)", head + body)


def _styled(body: str, name: str) -> str:
    """The same with each style once, as a class whose name begins with `name`."""
    styles = {style: f"{name}-s{number}" for number, style in enumerate(dict.fromkeys(_STYLE.findall(body)))}
    rules = "\n".join(f".{named} {{{style}}}" for style, named in styles.items())
    return f"<style>\n{rules}\n</style>" + _STYLE.sub(lambda found: f' class="{styles[found[1]]}"', body)


def _unwrapped(body: str) -> str:
    """The same without the groups that say nothing of what they hold."""
    kept, speaking = [], []
    for part in re.split(r"(<g\b[^>]*>\s*|</g>\s*)", body):
        if part.startswith("<g"):
            speaking.append(part.rstrip() != "<g>")
        if not part.startswith(("<g", "</g>")) or speaking[-1]:
            kept.append(part)
        if part.startswith("</g>"):
            speaking.pop()
    return "".join(kept)


def dark(page: str) -> str:
    """Declarations of the variables for all colours of the drawings on a page, as the dark theme has them."""
    return " ".join(f"--c{colour}: {inverted(colour)};" for colour in sorted(set(_USED.findall(page))))


def inverted(colour: str) -> str:
    """The same hue as light as it was dark, from the dark page's own black to its white.

    Lines of implementations stay in the lighter half: a pale one would vanish. Other colours get no more colourful: a
    tint that can hardly be told from white can hardly be told from black.
    """
    hue, lightness, saturation = colorsys.rgb_to_hls(*(int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)))
    is_line = colour in _IMPLEMENTATIONS
    turned = 0.9 - (0.45 if is_line else 0.805) * lightness
    if not is_line:
        saturation = min(saturation, saturation * (1 - abs(2 * lightness - 1)) / (1 - abs(2 * turned - 1)))
    red, green, blue = colorsys.hls_to_rgb(hue, turned, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))
