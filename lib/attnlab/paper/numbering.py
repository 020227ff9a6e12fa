"""Numbers sections, figures, tables and references, and writes the texts of links to them."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from html import escape
from itertools import count, takewhile
from string import ascii_uppercase

from bs4 import BeautifulSoup, Tag

from attnlab.base.errors import UserError, suggestion
from attnlab.exhibits.markdown import slug
from attnlab.literature import bibliography
from attnlab.paper import references

_FLOATS = {"plot": "Figure", "table": "Table"}
"""The word for a float, by the class of its element."""
_UNNUMBERED = {"Abstract", "References"}
_NOTEBOOK = re.compile(r"(\w+)\.ipynb#(.+)")


def number(soup: BeautifulSoup, elsewhere: Callable[[str], str] = lambda anchor: "") -> None:
    """Number a page in place, write the text of its empty links, and insert a table of contents after the abstract.

    Links to notebooks, which JupyterLab follows, lead to their pages.

    The references that the page cites are listed below its heading "References", or else at its end, in the order of
    first citation.

    Args:
        elsewhere: for an anchor that this page lacks, the page that has it, such as ``01_environment``; or "".

    Raises:
        ValueError: two elements have the same id.
        UserError: a link leads to something that neither the page nor another has.
    """
    _lead_to_pages(soup, elsewhere)
    cited = _list_references(soup)
    names = _number_sections(soup) | _number_floats(soup) | cited
    _require_unique_ids(soup)
    _name_links(soup, names, elsewhere)
    _frame_abstract(soup)
    _insert_contents(soup)


def _lead_to_pages(soup: BeautifulSoup, elsewhere: Callable[[str], str]) -> None:
    for link in soup.find_all("a", href=_NOTEBOOK):
        page, anchor = _NOTEBOOK.findall(str(link["href"]))[0]
        if elsewhere(anchor) != page:
            raise UserError(f"the page refers to '{page}.ipynb#{anchor}', which that notebook does not have")
        link["href"] = f"{page}.html#{anchor}"


def _number_sections(soup: BeautifulSoup) -> dict[str, str]:
    numbers, letters = count(1), iter(ascii_uppercase)
    names: dict[str, str] = {}
    word, chapter, below = "Section", "", 0
    for heading in soup.find_all(["h2", "h3"]):
        title = _title(heading)
        anchor = str(heading.attrs.setdefault("id", f"sec-{slug(title)}"))
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
    for kind, word in _FLOATS.items():
        for position, figure in enumerate(soup.find_all("figure", class_=kind), 1):
            if "id" in figure.attrs:
                names[str(figure["id"])] = f"{word} {position}"
            if caption := figure.find("figcaption", recursive=False):
                _prefix(soup, caption, "label", f"{word} {position}.")
    return names


def _require_unique_ids(soup: BeautifulSoup) -> None:
    uses = Counter(str(element["id"]) for element in soup.find_all(id=True))
    repeated = [f"#{anchor}" for anchor, times in uses.items() if times > 1]
    if repeated:
        raise ValueError(f"more than one element of the page is called {', '.join(repeated)}")


def _list_references(soup: BeautifulSoup) -> dict[str, str]:
    """Insert the references that the page cites, unless it cites none, and return their names by anchor."""
    cited = dict.fromkeys(str(link["href"]).removeprefix("#ref-") for link in _local_links(soup))
    keys = [key for key in cited if key in bibliography.load()]
    if keys:
        heading = _section(soup, "References")
        if heading is None:
            heading = soup.new_tag("h2")
            heading.string = "References"
            (soup.main or soup).append(heading)
        heading.insert_after(BeautifulSoup(references.listing(keys), "html.parser"))
    return {f"ref-{key}": f"[{position}]" for position, key in enumerate(keys, 1)}


def _name_links(soup: BeautifulSoup, names: dict[str, str], elsewhere: Callable[[str], str]) -> None:
    anchors = {str(element["id"]) for element in soup.find_all(id=True)}
    for link in _local_links(soup):
        anchor = str(link["href"])[1:]
        known = anchors if link.contents else names
        if anchor not in known and (page := elsewhere(anchor)):
            link["href"] = f"{page}.html#{anchor}"
            link.string = link.string or page
            continue
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
    """Fill the page's side bar with its sections; on a page without a side bar they come after the abstract."""
    headings = [heading for heading in soup.find_all("h2") if _title(heading) != "Abstract"]
    if not headings:
        return
    items = "".join(f'<li><a href="#{heading["id"]}">{escape(_title(heading))}</a></li>' for heading in headings)
    html = f'<nav class="contents" aria-label="Contents"><p>Contents</p><ul>{items}</ul></nav>'
    nav = BeautifulSoup(html, "html.parser")
    if side := soup.find("aside", class_="side"):
        side.insert(0, nav)
    else:
        headings[0].insert_before(nav)


def _local_links(soup: BeautifulSoup) -> list[Tag]:
    return [link for link in soup.find_all("a", href=True) if str(link["href"]).startswith("#")]


def _section(soup: BeautifulSoup, title: str) -> Tag | None:
    return next((heading for heading in soup.find_all("h2") if _title(heading) == title), None)


def _title(heading: Tag) -> str:
    return " ".join(heading.get_text().split())


def _prefix(soup: BeautifulSoup, element: Tag, kind: str, text: str) -> None:
    label = soup.new_tag("span", attrs={"class": kind})
    label.string = text
    element.insert(0, " ")
    element.insert(0, label)
