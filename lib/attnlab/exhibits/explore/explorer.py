"""The explorer: a widget where someone can use it, a link elsewhere, and its page, one file that fetches nothing."""

import base64
import os
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnlab.base.files import write_atomically
from attnlab.base.version import VERSION
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose
from attnlab.exhibits.explore import data
from attnlab.exhibits.explore.others import Told, others
from attnlab.infer.results import Results

WEB = Path(__file__).parent / "web"
PAGE = "explore.html"
HOST, LAST = "host.js", "explorer.js"
WATCHED = ("JPY_SESSION_NAME", "VSCODE_PID")
"""Set for a kernel whose notebook is open: by Jupyter's server and by VS Code, not by papermill."""


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="attnlab {version}">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body class="attnlab-page">
<main id="explorer"><noscript>The explorer needs JavaScript; 06_verdicts.html says the same.</noscript></main>
<script id="payload" type="application/octet-stream">{payload}</script>
<script type="module">
{code}
{host}
</script>
</body>
</html>
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'"


@dataclass(frozen=True)
class Explorer(Prose):
    """A sentence that leads to the explorer's page, and in JupyterLab the explorer itself."""

    results: Results

    def bundle(self, anchor: str = "") -> dict[str, str]:
        """The sentence, and the widget where a notebook is open and anywidget is installed."""
        watched = any(name in os.environ for name in WATCHED)
        if not watched or find_spec("anywidget") is None:
            return super().bundle(anchor)
        bundle: Any = widget(self.results)._repr_mimebundle_()
        return super().bundle(anchor) | (bundle[0] if isinstance(bundle, tuple) else bundle)


@exhibit("explore.explorer")
def explorer(results: Results) -> Explorer:
    """Every case and verdict of a run, and the runs beside it, to choose from."""
    words = (
        f"The explorer of the run `{results.run.name}` is a page of its own, [{PAGE}]({PAGE}), which needs neither a "
        "server nor a network; in JupyterLab it stands here. It infers nothing: its verdicts are those of "
        "06_verdicts, in the same words."
    )
    return Explorer(words, results)


def code() -> str:
    """The explorer as one module of JavaScript; what draws comes before what calls it."""
    parts = sorted(path for path in WEB.glob("*.js") if path.name not in (HOST, LAST))
    return "\n".join(path.read_text(encoding="utf-8") for path in [*parts, WEB / LAST])


def style() -> str:
    """The explorer's style sheet."""
    return (WEB / "explore.css").read_text(encoding="utf-8")


def widget(results: Results) -> Any:
    """The explorer of a run as a widget, whose `state` holds what is chosen; needs anywidget, of the extra `lab`."""
    # Imported here: a recorded run is rendered without them.
    import anywidget
    import traitlets

    class Widget(anywidget.AnyWidget):
        _esm = code()
        _css = style()
        payload = traitlets.Bytes().tag(sync=True)
        state = traitlets.Dict().tag(sync=True)

    return Widget(payload=data.payload(results, others(results.run.manifest)))


def write(results: Results, beside: Iterable[Told], folder: Path) -> Path:
    """Write the explorer of a run and of others into a folder, whole or not at all, and return its page."""
    page = folder / PAGE
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(page, html(results.run.name, data.payload(results, beside)).encode())
    return page


def html(name: str, payload: bytes) -> str:
    """The page of the run of this name; `payload` is what `data.payload` packed."""
    return _PAGE.format(
        policy=_POLICY,
        version=VERSION,
        title=escape(f"explore · {name}"),
        style=style(),
        payload=base64.b64encode(payload).decode(),
        code=code(),
        host=(WEB / HOST).read_text(encoding="utf-8"),
    )
