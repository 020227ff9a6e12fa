"""Every exhibit, by its id.

An exhibit is a table, a figure, a listing or a paragraph, or a few of them that belong together. One function makes it
from a run, and `exhibit` registers that function under an id such as ``kernels.ladder``. An id begins with the name of
the page where the exhibit has its cell, ``show("kernels.ladder")`` on 05_kernels. The report, the export and the README
take exhibits by the same ids.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from html import escape
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ParamSpec, TypeVar

from attnlab.base import paths
from attnlab.base.errors import UserError, suggestion
from attnlab.exhibits import cells, tex
from attnlab.exhibits.display import FILES, Bundle, Content, Missing, Prose, files
from attnlab.exhibits.style import styled
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape

P = ParamSpec("P")
T = TypeVar("T", bound=Content | None)
STAMP = "attnlab"
"""The key in an output's metadata that holds which exhibit it is, of which run, with which arguments."""
FORMS = ("text/html", "text/plain", "text/latex")
RUN = "run"
"""The id in the stamp of the output that says which run is shown."""
SHOWN = re.compile(r'^show\("([\w.]+)"\)$', re.MULTILINE)
"""A line that shows an exhibit of the report."""
_EXHIBITS: dict[str, "Exhibit"] = {}
_MADE: set[Callable[..., Content | None]] = set()


@dataclass(frozen=True)
class Exhibit:
    """A function that makes an exhibit, as it was registered.

    Attributes:
        make: takes the `Results` of a run, if it shows a run at all, and the arguments.
        arguments: what `make` is called with; a function is called with the `Results` first.
        of: the companion of the run that is shown, such as ``choices``; empty for that run itself.
    """

    id: str
    make: Callable[..., Content | None]
    arguments: Mapping[str, Any]
    of: str = ""

    @property
    def shows_a_run(self) -> bool:
        """Whether it is made from a run; otherwise it is the same for every run."""
        return "results" in self._takes

    @property
    def beside(self) -> list[str]:
        """The companions that are shown beside the run: the optional arguments of `make` that take `Results`."""
        return [name for name, annotation in self._takes.items() if annotation == (Results | None)]

    @property
    def _takes(self) -> dict[str, Any]:
        """The annotations of the arguments of `make`, by name."""
        return {name: each.annotation for name, each in inspect.signature(self.make).parameters.items()}


@dataclass(frozen=True)
class Shown:
    """An exhibit made from one run; the metadata of its output in an executed notebook say which exhibit it is.

    Attributes:
        content: None where a run has nothing to show, such as the ladder of a run without kernels.
    """

    id: str
    run: str
    arguments: Mapping[str, str]
    content: Content | None

    @property
    def markdown(self) -> str:
        """The exhibit in Markdown; empty where there is nothing to show."""
        return self.content.markdown if self.content else ""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[Bundle, dict[str, Any]]:
        bundle = self.content.bundle(self.id) if self.content else dict.fromkeys(FORMS, "")
        if self.content and self.id in printed():
            bundle |= {FILES: files(self.content, self.id)}
        stamp = {"exhibit": self.id, "run": self.run, "arguments": dict(self.arguments)}
        is_missing = self.content is None or isinstance(self.content, Missing)
        return bundle, {STAMP: stamp | ({"missing": True} if is_missing else {})}


@dataclass(frozen=True)
class Show:
    """Makes exhibits of one run, by their ids.

    Attributes:
        results: the run; None where only exhibits that are the same for every run are asked for.
        companions: other runs on the same device, by the name that an exhibit asks for.
    """

    results: Results | None = None
    companions: Mapping[str, Callable[[], Results]] = field(default_factory=dict)

    def __call__(self, id: str, /, **given: Any) -> Shown:
        """Make an exhibit; arguments given here replace those that it was registered with.

        One that is of a companion says which run that is.

        Raises:
            UserError: there is no such exhibit, or it shows a run and there is none.
        """
        found = find(id)
        if not found.shows_a_run:
            return Shown(id, "", _words(given), found.make(**{**found.arguments, **given}))
        if self.results is None:
            raise UserError(f"the exhibit {id!r} shows a run: name one")
        results = self.companions[found.of]() if found.of in self.companions else self.results
        stated = {name: value(results) if callable(value) else value for name, value in found.arguments.items()}
        arguments = {**stated, **given}
        beside = {name: self.companions[name]() for name in found.beside if name in self.companions}
        made = found.make(results, **arguments, **beside)
        if made and results.run.name != self.results.run.name:
            made = made.followed(cells.by_run(results.run, results.study.implementations))
        return Shown(id, results.run.name, _words(arguments), made)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[Bundle, dict[str, Any]]:
        """The line that says which run is shown."""
        if self.results is None:
            return {"text/plain": "exhibits that are the same for every run"}, {}
        run, device = self.results.run, self.results.run.manifest["device"]["name"]
        line = f"run {run.name} · {device} · {run.manifest['created'][:10]} · attnlab {run.manifest['attnlab']}"
        bundle = {"text/html": f'<p class="meta">{escape(line)}</p>', "text/plain": line}
        bundle["text/latex"] = f"\\date{{{tex.escape(line)}}}\n"
        return bundle, {STAMP: {"exhibit": RUN, "run": run.name, "arguments": {}}}


def exhibit(
    id: str, /, *, of: str = "", where: Callable[[Results], object] | None = None, **arguments: Any
) -> Callable[[Callable[P, T]], Callable[P, T | Prose | None]]:
    """Register a function under an id. Several ids may share a function, each with its arguments.

    The function draws in the project's style. Where it raises NotMeasured, the exhibit is a sentence that says what is
    missing.

    Args:
        of: see `Exhibit`.
        where: whether a run holds anything that the exhibit could show; if not, nothing is shown.
        arguments: see `Exhibit`.
    """

    def register(make: Callable[P, T]) -> Callable[P, T | Prose | None]:
        if id in _EXHIBITS:
            raise ValueError(f"two exhibits are registered as {id!r}")
        shown: Any = make if make in _MADE else _telling_what_is_missing(make, where)
        _MADE.add(shown)
        _EXHIBITS[id] = Exhibit(id, shown, arguments, of)
        return shown

    return register


def find(id: str) -> Exhibit:
    """The exhibit of an id.

    Raises:
        UserError: there is none.
    """
    page = id.split(".")[0]
    if page in pages():
        _register(page)
    if id not in _EXHIBITS:
        raise UserError(f"there is no exhibit {id!r}{suggestion(id, _EXHIBITS)}")
    return _EXHIBITS[id]


def every() -> dict[str, Exhibit]:
    """All exhibits by id, in the order of the ids, whichever were imported first."""
    for page in pages():
        _register(page)
    return dict(sorted(_EXHIBITS.items()))


def _register(page: str) -> None:
    """Import the module of a page, or every module of its folder, which registers their exhibits."""
    module = import_module(f"attnlab.exhibits.{page}")
    for found in iter_modules(getattr(module, "__path__", [])):
        import_module(f"{module.__name__}.{found.name}")


def pages() -> dict[str, str]:
    """The notebooks that have exhibits, such as ``05_kernels``, by the first part of the exhibits' ids."""
    stems = (path.stem for path in sorted(paths.NOTEBOOKS.glob("[0-9]*_*.ipynb")))
    return {stem.split("_", 1)[1]: stem for stem in stems}


def printed() -> set[str]:
    """The ids that the report shows, whose figures are drawn as PDF too."""
    cells = json.loads((paths.NOTEBOOKS / "report.ipynb").read_text(encoding="utf-8"))["cells"]
    return {id for cell in cells for id in SHOWN.findall("".join(cell["source"]))}


def home(id: str) -> str:
    """The page on which an exhibit, or a part of it, has its cell; empty where there is no such exhibit."""
    page = pages().get(id.split(".")[0], "")
    return page if page and any(id == known or id.startswith(f"{known}.") for known in every()) else ""


def target(results: Results) -> Shape:
    """The target shape of a run's study."""
    return results.study.target_shape


def _telling_what_is_missing(
    make: Callable[P, T], where: Callable[[Results], object] | None
) -> Callable[P, T | Prose | None]:
    @wraps(make)
    def shown(*args: P.args, **kwargs: P.kwargs) -> T | Prose | None:
        if where is not None and not where(args[0]):  # type: ignore[arg-type]
            return None
        try:
            with styled():
                return make(*args, **kwargs)
        except NotMeasured as missing:
            return Missing(f"*{missing}.*")

    return shown


def _words(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {name: value.label if isinstance(value, Shape) else str(value) for name, value in arguments.items()}
