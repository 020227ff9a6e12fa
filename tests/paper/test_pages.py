"""Pages: numbered, referenced, self-contained, and nothing on them that a reader need not see."""

import hashlib
import json
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import synthetic
from bs4 import BeautifulSoup
from nbformat import v4

from attnlab import export
from attnlab.base import documents
from attnlab.base.errors import UserError
from attnlab.base.paths import ROOT
from attnlab.exhibits import catalogue, markdown
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.markdown import mathml
from attnlab.infer import results
from attnlab.infer.results import Results
from attnlab.paper import numbering, pages
from attnlab.runs import read, schema


def page(tmp_path: Path, *cells, name: str = "page", **options) -> BeautifulSoup:
    notebook, rendered = tmp_path / "notebook.ipynb", tmp_path / "out" / f"{name}.html"
    nbformat.write(v4.new_notebook(cells=list(cells)), notebook)
    pages.render(notebook, rendered, **{"title": "A page", **options})
    return BeautifulSoup(rendered.read_text(encoding="utf-8"), "html.parser")


def code(source: str, *outputs, tags=()):
    return v4.new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


def html(text: str):
    return v4.new_output("display_data", {"text/html": text, "text/plain": "fallback"})


def numbered(text: str, **options) -> BeautifulSoup:
    """Markdown numbered; a paragraph that begins with a tag is an output between its cells."""
    parts = [part if part.startswith("<") else markdown.block(part) for part in text.split("\n\n")]
    soup = BeautifulSoup("".join(parts), "html.parser")
    numbering.number(soup, **options)
    return soup


PLOT = '<figure id="fig-{0}" class="plot"><img alt="a" src="data:,"><figcaption>About {0}</figcaption></figure>'
TABLE = '<figure id="tab-{0}" class="table"><figcaption>About {0}</figcaption></figure>'


@pytest.mark.parametrize(
    ("tex", "part"),
    [
        ("x^2", "<msup><mi>x</mi><mn>2</mn></msup>"),
        (r"\frac{a}{b}", "<mfrac><mi>a</mi><mi>b</mi></mfrac>"),
        (r"\sqrt{D}", "<msqrt><mi>D</mi></msqrt>"),
    ],
)
def test_tex_becomes_mathml(tex, part):
    assert mathml(tex) == f"<math>{part}</math>"
    assert mathml(tex, display=True).startswith('<math display="block">')


def test_equations_do_not_each_count_from_one():
    assert "(1)" not in mathml(r"\begin{align} a &= b \\ c &= d \end{align}", display=True)


def test_a_formula_that_cannot_be_read_is_named_in_one_line():
    with pytest.raises(UserError, match=r"cannot read the formula '\\\\frac\{a': .*reached end of input") as caught:
        mathml("\\frac{a")
    assert "\n" not in str(caught.value)


def test_every_kind_of_mathematics_in_markdown_is_converted():
    soup = BeautifulSoup(
        markdown.block("$a$ costs \\$3\n\n$$\nb_1\n$$\n\n\\begin{align}\nc &= d\n\\end{align}\n\n`$x$`"), "html.parser"
    )
    assert [formula.get("display") for formula in soup.select("math")] == [None, "block", "block"]
    assert "costs $3" in soup.get_text()
    assert soup.code.get_text() == "$x$"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- $a$\n- b", "<li><math><mi>a</mi></math></li>"),
        ("by \\begin{align}a\\end{align}", '<p>by <math display="block">'),
        ("$$\na\n\n- b\n$$", "<mi>a</mi>"),
        ("from $3 to $4", "<p>from $3 to $4</p>"),
        ("```python\nimport x\n```", '<span class="kn">import</span>'),
        ("```\n$x$\n```", "<pre><code>$x$\n</code></pre>"),
        ("```no-language\n$x$\n```", '<pre><code class="language-no-language">$x$\n</code></pre>'),
    ],
)
def test_mathematics_prices_and_code_in_markdown(text, shown):
    assert shown in markdown.block(text)


def test_sections_are_numbered():
    soup = numbered(
        "# T\n\n## Abstract\n\na\n\n## Method\n\n### One\n\n### Two\n\n## Results\n\n### Three\n\n## References\n\n"
        "## Appendix: The machine\n\n### Clocks\n\n## Appendix: `raw` data\n"
    )
    assert [heading.get_text() for heading in soup.select("h1, h2, h3")] == [
        "T",
        "Abstract",
        "1 Method",
        "1.1 One",
        "1.2 Two",
        "2 Results",
        "2.1 Three",
        "References",
        "Appendix A. The machine",
        "A.1 Clocks",
        "Appendix B. raw data",
    ]


def test_links_without_text_are_named():
    soup = numbered(
        "## Method\n\n### Fine print\n\n## Appendix: More\n\n### Of it\n\n"
        "[](#fig-b) [](#tab-t) [](#sec-fine-print) [](#sec-appendix-more) [](#sec-of-it) [](#ref-holm1979) "
        "[](#sec-references) [own words](#fig-a)\n\n"
        f"{PLOT.format('a')}\n\n{PLOT.format('b')}\n\n{TABLE.format('t')}\n\n"
        "## References\n"
    )
    assert [link.get_text() for link in soup.select("p a")] == [
        "Figure 2",
        "Table 1",
        "Section 1.1",
        "Appendix A",
        "Appendix A.1",
        "[1]",
        "References",
        "own words",
    ]
    captions = [caption.get_text() for caption in soup.select("figcaption")]
    assert captions == ["Figure 1. About a", "Figure 2. About b", "Table 1. About t"]
    assert soup.figcaption.span["class"] == ["label"]


def test_links_to_other_pages_lead_there_and_keep_their_words():
    pages_of = {"baseline.checks": "02_baseline", "fig-a": "03_elsewhere"}
    in_the_lab = "[every check](02_baseline.ipynb#baseline.checks)"
    soup = numbered(
        f"[](#baseline.checks) {in_the_lab} [](#fig-a)\n\n{PLOT.format('a')}",
        elsewhere=lambda anchor: pages_of.get(anchor, ""),
    )
    assert [(link["href"], link.get_text()) for link in soup.select("p a")] == [
        ("02_baseline.html#baseline.checks", "02_baseline"),
        ("02_baseline.html#baseline.checks", "every check"),
        ("#fig-a", "Figure 1"),
    ]


def test_a_link_to_an_exhibit_leads_to_the_page_of_its_cell(tmp_path):
    text = v4.new_markdown_cell("## A\n\n[](#baseline.checks) [](#kernels.ladder) [the lead](#kernels.lead)")
    ladder = code("show()", html(TABLE.replace("tab-{0}", "kernels.ladder").format("it")))
    soup = page(tmp_path, text, ladder, name="report")
    assert [(link["href"], link.get_text()) for link in soup.main.select("p a")] == [
        ("02_baseline.html#baseline.checks", "02_baseline"),
        ("#kernels.ladder", "Table 1"),
        ("05_kernels.html#kernels.lead", "the lead"),
    ]


@pytest.mark.parametrize("link", ["#kernels.lader", "#kernels.ladder", "02_baseline.ipynb#kernels.ladder"])
def test_a_link_to_no_exhibit_or_to_one_that_its_page_lacks_is_named(tmp_path, link):
    with pytest.raises(UserError, match=f"the page refers to '{link}', which (it|that notebook) does not have"):
        page(tmp_path, v4.new_markdown_cell(f"[]({link})"), name="05_kernels")


CITING = "## One\n\n[](#ref-holm1979) [](#ref-dao2023) [](#ref-holm1979)\n"


@pytest.mark.parametrize(
    ("text", "headings"),
    [
        (CITING, ["1 One", "References"]),
        (f"{CITING}\n## Two\n", ["1 One", "2 Two", "References"]),
        (f"{CITING}\n## References\n\n## Appendix: More\n", ["1 One", "References", "Appendix A. More"]),
    ],
)
def test_a_page_that_cites_ends_with_its_references_or_has_them_below_their_heading(text, headings):
    soup = numbered(text)
    assert [heading.get_text() for heading in soup.select("h2")] == headings
    (listing,) = soup.select("ol")
    assert listing.find_previous("h2").get_text() == "References"
    assert [item["id"] for item in listing.select("li")] == ["ref-holm1979", "ref-dao2023"]
    assert [link.get_text() for link in soup.select('a[href^="#ref-"]')] == ["[1]", "[2]", "[1]"]
    assert "Sture Holm" in listing.li.get_text()
    assert listing.select("li")[1].a["href"] == "https://arxiv.org/abs/2307.08691"


def test_a_page_that_cites_nothing_has_no_references(tmp_path):
    assert not numbered("## One\n\ntext\n").select("ol")
    soup = page(tmp_path, v4.new_markdown_cell("# T\n\n[](#ref-holm1979)"))
    assert soup.main.select("h2, ol")[-1].name == "ol"
    assert soup.main.ol.li["id"] == "ref-holm1979"


@pytest.mark.parametrize("link", ["[](#fig-rofline)", "[see](#fig-rofline)"])
def test_a_reference_to_nothing_is_named(link):
    with pytest.raises(UserError, match=r"'#fig-rofline', which it does not have; did you mean 'fig-roofline'\?"):
        numbered(f"{link}\n\n{PLOT.format('roofline')}")


def test_two_elements_of_one_name_are_refused():
    with pytest.raises(ValueError, match="#fig-a"):
        numbered(f"{PLOT.format('a')}\n\n{PLOT.format('a')}")


def test_abstract_and_contents_come_before_the_sections():
    soup = numbered("# T\n\n## Abstract\n\nShort.\n\nStill.\n\n## One & two\n\ntext\n\n## References\n")
    assert [child.name for child in soup.find_all(recursive=False)] == ["h1", "section", "nav", "h2", "p", "h2"]
    assert soup.section["class"] == ["abstract"]
    assert [paragraph.get_text() for paragraph in soup.section.select("p")] == ["Short.", "Still."]
    assert [(link["href"], link.get_text()) for link in soup.select("nav a")] == [
        ("#sec-one-two", "1 One & two"),
        ("#sec-references", "References"),
    ]


def test_references_reach_from_prose_to_outputs(tmp_path):
    prose = v4.new_output("execute_result", {"text/markdown": "**2** as in [](#fig-a), $x$", "text/plain": ""})
    soup = page(tmp_path, v4.new_markdown_cell("## Results"), code("show()", html(PLOT.format("a"))), code("1", prose))
    assert soup.main.find("p").get_text() == "2 as in Figure 1, x"
    assert soup.main.find("p").math is not None


def test_nothing_on_a_page_is_fetched(tmp_path):
    cells = [v4.new_markdown_cell("# T\n\n[out](https://example.org) $x$"), code("f()", html(PLOT.format("a")))]
    soup = page(tmp_path, *cells, links={"Data & code": "data.html?a=1&b=2"})
    policy = soup.select_one('meta[http-equiv="Content-Security-Policy"]')["content"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert not soup.select("script, link, iframe, object, embed")
    assert all(element["src"].startswith("data:") for element in soup.select("[src]"))
    assert not re.search(r"url\(|@import", "".join(style.get_text() for style in soup.select("style")))
    assert soup.select_one("nav.links a")["href"] == "data.html?a=1&b=2"
    assert soup.title.get_text() == "A page"
    assert soup.html["lang"] == "en"
    assert soup.select_one('meta[name="generator"]')["content"].startswith("attnlab ")


TAG = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def resealed() -> Results:
    """A run whose texts hold a tag, in its manifest and in its tables."""
    with synthetic.folders():
        synthetic.write("resealed", synthetic.LONELY)
        path = schema.folder("resealed") / "manifest.json"
        stated = json.loads(path.read_text())
        stated |= {"telemetry": TAG, "command": TAG}
        stated["profile"]["why"] = stated["study"]["title"] = TAG
        stated["ceilings"]["l2"]["how"] = TAG
        table = path.with_name("cases.parquet")
        pd.read_parquet(table).assign(kernels=TAG).to_parquet(table)
        stated["files"][table.name] = hashlib.sha256(table.read_bytes()).hexdigest()
        stated["seal"] = documents.digest({key: value for key, value in stated.items() if key != "seal"})
        path.write_text(json.dumps(stated))
        return results.of(read.load("resealed"))


def test_a_text_of_a_run_is_no_tag_on_a_page(tmp_path, resealed):
    show = Show(resealed)
    ids = [id for id in catalogue.every() if id.startswith("environment.")]
    ids += ["verdicts.abstract", "verdicts.statement", "baseline.implementations", "profile.how"]
    bundles = [exhibit._repr_mimebundle_()[0] for exhibit in (show, *map(show, ids))]
    soup = page(tmp_path, *(code("show", v4.new_output("display_data", bundle)) for bundle in bundles))
    assert not soup.select("script")
    assert soup.main.get_text().count(TAG) >= 5
    assert r"\textless{}script" in "".join(bundle["text/latex"] for bundle in bundles)


def test_a_text_of_a_run_is_no_tag_in_its_export(resealed):
    files = export.contents(resealed)
    assert b"&lt;script>" in files["comparison.md"]
    assert not any(b"<script" in files[name] for name in ("comparison.md", "README.md"))


def test_every_picture_has_a_description(tmp_path):
    described = v4.new_output("display_data", {"image/png": "AAAA"}, metadata={"image/png": {"alt": 'one "dot"'}})
    soup = page(tmp_path, code("a", described), code("b", html(PLOT.format("a"))))
    assert [image["alt"] for image in soup.select("img")] == ['one "dot"', "a"]


def test_code_is_folded_and_parameters_are_gone(tmp_path):
    soup = page(
        tmp_path,
        code("run = 'h200'", tags=["parameters"]),
        code("run = 'l4'", tags=["injected-parameters"]),
        code("kept = 1"),
        code("secret = 2", html("<p>seen</p>"), tags=["hide"]),
        code(""),
    )
    assert [fold.pre.get_text().strip() for fold in soup.select("details.code")] == ["kept = 1"]
    assert soup.select_one("details.code").get("open") is None
    assert soup.select("details.code .highlight span.n")
    text = soup.main.get_text()
    assert "seen" in text
    assert not re.search("h200|l4|secret|In\\s?\\[", text)


def test_noise_is_left_out_and_errors_are_plain(tmp_path):
    soup = page(
        tmp_path,
        code(
            "f()",
            v4.new_output("stream", name="stderr", text="a warning"),
            v4.new_output("stream", name="stdout", text=f"\x1b[31mread\x1b[0m <{ROOT}/data/run> and {Path.home()}/x"),
            v4.new_output("error", ename="ValueError", evalue="no <run>", traceback=[f"File {ROOT}/lib"]),
        ),
    )
    home = "./x" if Path.home() == ROOT else "~/x"
    assert soup.select_one("pre.output").get_text() == f"read <./data/run> and {home}"
    assert soup.select_one("pre.error").get_text() == "ValueError: no <run>"
    assert "a warning" not in soup.get_text()
    assert str(ROOT) not in str(soup)


def test_a_page_that_fails_leaves_the_old_one(tmp_path):
    page(tmp_path, v4.new_markdown_cell("# Old"))
    with pytest.raises(UserError):
        page(tmp_path, v4.new_markdown_cell("[](#fig-none)"))
    assert "Old" in (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["page.html"]


def test_a_page_is_the_same_each_time(tmp_path):
    cells = [v4.new_markdown_cell("# T\n\n## A\n\n$x$"), code("f()", html(PLOT.format("a")))]
    assert str(page(tmp_path, *cells)) == str(page(tmp_path, *cells))


def test_a_page_lists_its_sections_other_formats_and_other_pages_beside_the_text(tmp_path):
    cells = [v4.new_markdown_cell("# T\n\n## Abstract\n\na\n\n## One\n\ntext")]
    soup = page(tmp_path, *cells, links={"02": "02.html"}, formats={"PDF": "report.pdf"})
    listed = {nav["aria-label"]: [link["href"] for link in nav.select("a")] for nav in soup.select("aside.side nav")}
    assert listed == {"Contents": ["#sec-one"], "Other formats": ["report.pdf"], "Pages": ["02.html"]}


def test_a_page_may_leave_its_code_out(tmp_path):
    assert page(tmp_path, code("f()", html("<p>seen</p>")), has_code=False).select("details") == []


def test_drawings_stay_as_they_are_and_the_dark_theme_has_their_colours(tmp_path):
    drawn = '<svg viewBox="0 0 1 1"><path style="fill: var(--cd55e00, #d55e00)"/></svg>'
    page(tmp_path, code("f()", html(drawn)))
    text = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert drawn in text
    assert re.search(r"prefers-color-scheme: dark\) \{ :root \{ --cd55e00: #\w{6}; \} \}", text)
