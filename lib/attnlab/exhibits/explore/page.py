"""The explorer as one file that needs no server and fetches nothing."""

import base64
from html import escape
from pathlib import Path

from attnlab.base.files import write_atomically
from attnlab.base.version import VERSION
from attnlab.exhibits.explore import data
from attnlab.exhibits.explore.explorer import HOST, PAGE, WEB, code, style
from attnlab.infer.results import Results

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


def write(results: Results, folder: Path) -> Path:
    """Write the explorer of a run into a folder, whole or not at all, and return its page."""
    page = folder / PAGE
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(page, html(results.run.name, data.payload(results)).encode())
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
