"""The numbers of sections, figures, tables, listings and references, and the links that name them."""

import re
from collections import Counter
from collections.abc import Iterator
from html import escape
from itertools import count, takewhile
from string import ascii_uppercase

from bs4 import BeautifulSoup, Tag

from attnlab.errors import UserError
from attnlab.suggestions import suggestion

_FLOATS = {"fig": "Figure", "tab": "Table", "lst": "Listing"}
_UNNUMBERED = {"Abstract", "References"}


def number(soup: BeautifulSoup) -> None:
    """Numbers a page in place, writes the text of its empty links, and sets a table of contents after the abstract.

    Of its list of references stays what it cites, in the order of first citation.

    Raises:
        ValueError: two elements have the same id.
        UserError: a link leads to something that the page does not have.
    """
    names = _number_sections(soup) | _number_floats(soup) | _number_references(soup)
    _require_unique_ids(soup)
    _name_links(soup, names)
    _frame_abstract(soup)
    _insert_contents(soup)


def _number_sections(soup: BeautifulSoup) -> dict[str, str]:
    numbers, letters = count(1), iter(ascii_uppercase)
    names: dict[str, str] = {}
    word, chapter, below = "Section", "", 0
    for heading in soup.select("h2, h3"):
        title = _title(heading)
        anchor = str(heading.attrs.setdefault("id", f"sec-{_slug(title)}"))
        if heading.name == "h3":
            below += 1
            position = f"{chapter}.{below}" if chapter else ""
        else:
            below = 0
            word = "Appendix" if title.startswith("Appendix") else "Section"
            chapter = position = _chapter(heading, numbers, letters)
        names[anchor] = f"{word} {position}" if position else title
        if position:
            _label_heading(soup, heading, position)
    return names


def _chapter(heading: Tag, numbers: Iterator[int], letters: Iterator[str]) -> str:
    title = _title(heading)
    if title in _UNNUMBERED or "unnumbered" in heading.get_attribute_list("class"):
        return ""
    return next(letters) if title.startswith("Appendix") else str(next(numbers))


def _label_heading(soup: BeautifulSoup, heading: Tag, position: str) -> None:
    if heading.name == "h2" and position in ascii_uppercase:
        text = next(iter(heading.find_all(string=True)))
        text.replace_with(re.sub(r"^\s*Appendix\W*", "", text))
        position = f"Appendix {position}."
    _prefix(soup, heading, "number", position)


def _number_floats(soup: BeautifulSoup) -> dict[str, str]:
    names: dict[str, str] = {}
    for prefix, word in _FLOATS.items():
        for position, figure in enumerate(soup.select(f'figure[id^="{prefix}-"]'), 1):
            names[str(figure["id"])] = f"{word} {position}"
            for caption in figure.select("figcaption"):
                _prefix(soup, caption, "label", f"{word} {position}.")
    return names


def _number_references(soup: BeautifulSoup) -> dict[str, str]:
    """Keeps of the list of references those that the page cites, in the order of their first citation."""
    heading = _section(soup, "References")
    listing = heading.find_next("ol") if heading else None
    if listing is None:
        return {}
    items = {str(item.get("id")): item.extract() for item in listing.find_all("li", recursive=False)}
    cited = [str(link["href"])[1:] for link in soup.select('a[href^="#"]')]
    kept = [anchor for anchor in dict.fromkeys(cited) if anchor in items]
    listing.clear()
    for anchor in kept:
        listing.extend([items[anchor], "\n"])
    return {anchor: f"[{position}]" for position, anchor in enumerate(kept, 1)}


def _require_unique_ids(soup: BeautifulSoup) -> None:
    uses = Counter(str(element["id"]) for element in soup.select("[id]"))
    repeated = [f"#{anchor}" for anchor, times in uses.items() if times > 1]
    if repeated:
        raise ValueError(f"more than one element of the page is called {', '.join(repeated)}")


def _name_links(soup: BeautifulSoup, names: dict[str, str]) -> None:
    anchors = {str(element["id"]) for element in soup.select("[id]")}
    for link in soup.select('a[href^="#"]'):
        anchor = str(link["href"])[1:]
        known = anchors if link.contents else names
        if anchor not in known:
            raise UserError(f"the page refers to '#{anchor}', which it does not have{suggestion(anchor, known)}")
        if not link.contents:
            link.string = names[anchor]


def _frame_abstract(soup: BeautifulSoup) -> None:
    heading = _section(soup, "Abstract")
    if heading is None or heading.find_parent("section"):
        return
    section = heading.wrap(soup.new_tag("section", attrs={"class": "abstract"}))
    for element in takewhile(lambda sibling: sibling.name != "h2", section.find_next_siblings(True)):
        section.append(element)


def _insert_contents(soup: BeautifulSoup) -> None:
    headings = [heading for heading in soup.select("h2") if _title(heading) != "Abstract"]
    if not headings:
        return
    items = "".join(f'<li><a href="#{heading["id"]}">{escape(_title(heading))}</a></li>' for heading in headings)
    nav = f'<nav class="contents"><details><summary>Contents</summary><ul>{items}</ul></details></nav>'
    headings[0].insert_before(BeautifulSoup(nav, "html.parser"))


def _section(soup: BeautifulSoup, title: str) -> Tag | None:
    return next((heading for heading in soup.select("h2") if _title(heading) == title), None)


def _title(heading: Tag) -> str:
    return " ".join(heading.get_text().split())


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _prefix(soup: BeautifulSoup, element: Tag, kind: str, text: str) -> None:
    label = soup.new_tag("span", attrs={"class": kind})
    label.string = text
    element.insert(0, " ")
    element.insert(0, label)
