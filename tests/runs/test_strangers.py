"""A run of an untrusted author: its texts are shown as data, its names stay names, and no part of it is executed."""

import copy
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import small
import synthetic
from bs4 import BeautifulSoup
from conftest import refused, told
from IPython.core.formatters import DisplayFormatter

from attnlab import __main__, frames, report, roofline, tables
from attnlab.base import errors
from attnlab.runs import checks, manifest, read, stale
from attnlab.runs.tables import TABLES, frame_of
from attnlab.study import studies, tuning

RECIPE = synthetic.Recipe(
    control_pace=1.0,
    study=synthetic.AT_TARGET
    | {"implementations": ["sdpa.auto", "sdpa.flash", "sdpa.math", "kernel.naive", "kernel.tiled", "kernel.mma"]},
    fates={(name, synthetic.TARGET): ("skipped", "said") for name in ("sdpa.math", "kernel.mma")},
    ceilings=synthetic.CEILINGS | {"l2": (None, "GB/s")},
)
PLAIN = "nothing but words"
TEXTS = {
    "mathematics": r"costs $\frac{1$ and $x_{$ or $$\sqrt$$",
    "tags": '<script>alert(1)</script> <img src=x onerror="alert(1)"> </svg></td></table> <!-- -->',
    "links": "[a](javascript:alert(1)) ![b](https://evil.example) [c][d] <https://evil.example> <a@evil.example>",
    "addresses": "see https://evil.example/ or www.evil.example",
    "Markdown": "`code` **bold** *it* ~~gone~~ _under_ __score__ ``` | a | b |",
    "blocks": "# head\n\n- item\n\n> said\n\n| a | b |\n|---|---|\n| c | d |\n\n```\ncode",
    "LaTeX": r"\input{/etc/passwd} \end{document} \write18{ls} % # ~ ^ {}",
    "templates": "{{ 7 * 7 }} {% raw %} {0.__class__} %s &lt;b&gt; &#36;x&#36;",
}


def says(text: str) -> Any:
    """A change that replaces every sentence in a run by this text."""

    def change(tables: dict[str, pd.DataFrame], stated: dict[str, Any]) -> None:
        stated |= {"telemetry": text, "profile": dict.fromkeys(("tool", "why", "command"), text)}
        stated["command"] = " ".join(text.split())
        stated["study"]["title"] = " ".join(text.split())[:200]
        stated["ceilings"]["l2"]["how"] = text
        stated["ladder"] = [rung | {"title": text, "hypothesis": text} for rung in stated["ladder"]]
        tables["cases"]["reason"] = tables["cases"]["reason"].replace("said", text)
        tables["cases"]["kernels"] = text

    return change


@pytest.fixture(scope="module")
def verdict() -> pd.Series:
    """A comparison of the unchanged run."""
    return frames.compare(synthetic.infer(RECIPE).samples, "sdpa.auto").iloc[0]


def made(text: str, verdict: pd.Series) -> dict[str, str]:
    """The outputs for a run with this text: HTML, and LaTeX under names with that suffix."""
    run = synthetic.infer(RECIPE)
    changed, stated = {"cases": run.cases.copy()}, copy.deepcopy(run.manifest)
    says(text)(changed, stated)
    rungs = pd.DataFrame(stated["ladder"])[["name", "title", "hypothesis"]]
    shown = {"cases": changed["cases"][["status", "reason", "kernels"]], "ceilings": roofline.ceilings(stated)}
    plugins = [report.import_plugin(name) for name in ("math", "table")]  # the plugins of a page
    read_as = report.mistune.Markdown(report._Markdown(escape=True), plugins=plugins)
    said = tables.statement(verdict.replace(verdict["baseline"], text))._repr_markdown_()
    found = {"statement": read_as(said)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "display", lambda bundle, **_: found.update(holds=bundle["text/html"]))
        tables.holds(text, False)
    for name, frame in (shown | {"ladder": rungs}).items():
        forms, _ = DisplayFormatter().format(tables.table(frame, caption=text))
        found |= {name: forms["text/html"], f"{name} latex": forms["text/latex"]}
        found[f"{name} Markdown"] = read_as(tables.markdown(frame))
    return found


@pytest.fixture(scope="module")
def plain(verdict) -> dict[str, str]:
    return made(PLAIN, verdict)


def elements(page: str) -> Counter:
    """The number of elements by name and address, without those for coloured code and figures."""
    plain = ("wbr", "span", "g", "path", "use", "text")
    found = BeautifulSoup(page, "html.parser").find_all(lambda element: element.name not in plain)
    kept = ("href", "src", "onerror", "onload")
    return Counter((each.name, *(f"{name}={each[name]}" for name in kept if name in each.attrs)) for each in found)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_of_a_run_is_data_in_html_in_latex_and_in_markdown(verdict, plain, kind):
    odd = made(TEXTS[kind], verdict)
    assert all(PLAIN in form for name, form in plain.items() if "ceilings" not in name)
    for name in (name for name in odd if "latex" not in name):
        assert elements(odd[name]) - elements(plain[name]) == Counter(), name
    latex = " ".join(odd[name] for name in odd if "latex" in name)
    assert not re.search(r"\\(frac|sqrt|input|write|href|url|end\{document)", latex)


NAMES = {
    "device": lambda stated, text: stated["device"].update(name=text),
    "commit": lambda stated, text: stated.update(commit=text),
    "attnlab": lambda stated, text: stated.update(attnlab=text),
    "driver": lambda stated, text: stated["environment"].update(driver=text),
    "version": lambda stated, text: stated["environment"]["packages"].update(torch=text),
    "package": lambda stated, text: stated["environment"]["packages"].update({text: "1"}),
    "setting": lambda stated, text: stated["environment"]["settings"].update(seed=text),
    "source": lambda stated, text: stated["sources"].update({text: "5" * 64}),
    "kernel": lambda stated, text: stated["kernels"].update({text: "5" * 64}),
    "study": lambda stated, text: stated["study"].update(name=text),
    "sweep": lambda stated, text: stated["study"]["sweeps"].update({text: stated["study"]["target"]}),
    "implementation": lambda stated, text: stated["study"]["implementations"].append(text),
    "rung": lambda stated, text: stated["ladder"][0].update(name=text),
    "run": lambda stated, text: stated.update(name=text),
}
ODD = ("<b>x</b>", "$x$", "[a](b)", "https://evil.example", "a\x1b[31mb", "a`b", 100_000 * "<")


@pytest.fixture(scope="module")
def friend(tmp_path_factory) -> Path:
    """A data folder that includes an untrusted run. Its files are changed, and restored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", str(data := tmp_path_factory.mktemp("data")))
        synthetic.write("friend", RECIPE)
        synthetic.write("before", RECIPE)
    return data


@pytest.fixture
def data(friend, monkeypatch) -> Path:
    monkeypatch.setenv("ATTNLAB_DATA", str(friend))
    monkeypatch.setenv("ATTNLAB_EXPORTS", str(friend.parent / "exports"))
    before = {path: path.read_bytes() for path in friend.glob("*/*") if path.is_file()}
    yield friend
    for path, content in before.items():
        path.write_bytes(content)


@pytest.mark.parametrize("field", NAMES)
def test_a_name_of_a_run_is_a_name(data, field):
    stated = read.read_manifest("friend")
    for text in ODD:
        NAMES[field](changed := copy.deepcopy(stated), text)
        assert told(lambda changed=changed: manifest.require(changed, "manifest.json")).isprintable()


@pytest.mark.parametrize("column", ["process", "implementation", "values"])
def test_a_name_in_a_table_is_a_name(data, column):
    path = data / "friend" / "checks.parquet"
    for text in ODD:
        files = {path: pa.Table.from_pandas(small.table_of(path).assign(**{column: text}))}
        line = told(lambda files=files: checks.frame_of_files(files, TABLES["checks"]))
        assert line.isprintable()
        assert len(line) < 5_000


@pytest.mark.parametrize("name", ["../x.auto", "sdpa.a/b", "/etc/passwd", "sdpa"])
def test_the_name_of_an_implementation_names_no_other_file(data, name):
    stated = read.read_manifest("friend")
    stated["study"]["implementations"].append(name)
    said = told(lambda: manifest.require(stated, "manifest.json"))
    assert f"{name!r} can't be the name of an implementation" in said


def test_nothing_that_a_run_names_is_imported_or_read_from_it(data, monkeypatch, capsys):
    name = "python.friend.notes.x.attention"
    (data / "friend" / "notes").mkdir()
    for file in ("notes/__init__.py", "notes/x.py", "__init__.py"):
        (data / "friend" / file).write_text("open('ran.txt', 'w')")
    monkeypatch.syspath_prepend(data)
    monkeypatch.chdir(data)

    def rename(tables: dict[str, pd.DataFrame], stated: dict[str, Any]) -> None:
        stated["study"]["implementations"][1] = name
        stated["kernels"][name] = stated["kernels"]["python.friend.notes.y.attention"] = "0" * 64
        tables |= {table: frame.replace("sdpa.flash", name) for table, frame in tables.items()}

    small.rewrite("friend", rename)
    assert stale.stale(read.load("friend")).keys() <= {"kernel.naive", "kernel.tiled", "kernel.mma"}
    assert __main__.main(["export", "--run=friend"]) == 0
    assert capsys.readouterr().out.startswith("exported ")
    assert __main__.main(["compare", "before", "friend", "--markdown"]) == 0
    assert "cases of friend against before" in capsys.readouterr().out
    assert not (data / "ran.txt").exists()
    assert not any(module.startswith("friend") for module in sys.modules)


def test_a_device_names_no_file_of_another_folder(data):
    small.rewrite("friend", lambda tables, stated: stated["device"].update(name="../../data/friend/evil"))
    (data / "friend" / "evil.json").write_text("{")
    assert read.load("friend").complete
    assert frames.load("friend").manifest["device"]["name"] == "../../data/friend/evil"
    assert tuning.path("../../data/friend/evil").name == "..-..-data-friend-evil.json"


@pytest.mark.parametrize(
    "change",
    [
        lambda tables, stated: stated["study"].update(title="\ud800"),
        lambda tables, stated: stated.update(telemetry="\ud800"),
        lambda tables, stated: stated.update({"\ud800": 1}),
        lambda tables, stated: stated.update(complete=False),
    ],
)
def test_what_no_run_can_hold_is_one_line(data, capsys, change):
    small.rewrite("friend", change)
    assert refused(capsys, "export", "--run=friend").isascii()


def test_a_text_that_cannot_be_written_is_spelled_out():
    row = {"reason": "a\ud800\x1b[31mb\u202ec\n\td", "kernels": None}
    assert frame_of(TABLES["cases"], [row])["reason"].tolist() == ["a\\ud800\\x1b[31mb\\u202ec\n\td"]
    assert str(errors.UserError("\ud800 \x1b[31m")) == "\\ud800 \\x1b[31m"


def test_a_study_that_cannot_be_written_is_one_line(tmp_path):
    for text in ('title: "\\ud800"', 'title: "\\udc80x"\nname: "\\e[31m"', 'sweeps: {"\\ud800 seq_len": {}}'):
        (tmp_path / "odd.yaml").write_text(text)
        assert told(lambda: studies.load(tmp_path / "odd.yaml")).isprintable()


def test_a_run_whose_name_is_a_number_is_found_by_it(data):
    assert "there is no run '20261128'" in told(lambda: read.load(20261128))
