"""The repository: one list of dependencies, a Makefile whose help is correct, and pages that agree with both."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from reading import PAGES, make, program
from sanitize import each_arriving
from tools import environment_yml

from attnlab.base import paths
from attnlab.runs.dispatch import Dispatch
from attnlab.study import ladder, shapes, studies

ROOT = paths.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)]
PINS = environment_yml.locked((ROOT / "requirements.lock").read_text())
PACKAGE = ROOT / "lib" / "attnlab"
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.search(r"^TARGETS := (.+)$", MAKEFILE, re.MULTILINE)[1].split()
RUN_LIMIT, TREE_LIMIT = 4e6, 25e6


def tracked() -> list[Path]:
    """The files that git tracks, or would track in a copy without git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    made = re.compile(
        r"\.(?!ci/|gitignore|pre-commit)|.*(__pycache__|\.egg-info|ipynb_checkpoints)"
        r"|(data|reports)/(?!h200-2026-11|reference)|reports/.*/notebooks/|exports/"
    )
    return [path for path in ROOT.rglob("*") if path.is_file() and not made.match(str(path.relative_to(ROOT)))]


def test_what_is_needed_is_locked_within_its_range():
    for requirement in map(Requirement, REQUIREMENTS):
        assert requirement.specifier.contains(PINS[environment_yml.name_of(str(requirement))], prereleases=True)


def test_environment_yml_follows_from_the_lock_and_is_one_that_conda_reads():
    text = (ROOT / "environment.yml").read_text()
    assert text == environment_yml.environment(ROOT), "run tools/environment_yml.py"
    stated = yaml.safe_load(text)
    assert (stated["name"], stated["channels"]) == ("attnlab", ["conda-forge"])
    *conda_packages, pip = stated["dependencies"]
    assert conda_packages == ["python=3.12", "pip"]
    constraint, checkout, *packages = pip["pip"]
    assert (constraint, checkout) == ("-c requirements.lock", "-e .")  # pip runs in the folder of the file
    needed = [*PROJECT["dependencies"], *EXTRAS["lab"], *EXTRAS["cpu"]]
    assert {Requirement(package).name for package in packages} == set(map(environment_yml.name_of, needed))


def test_rendering_needs_no_cuda_and_no_torch():
    names = set(map(environment_yml.name_of, PROJECT["dependencies"]))
    assert not names & {"torch", "cupy-cuda13x", "nvidia-ml-py", "jupyterlab"}


def test_make_lists_every_target():
    said = make().stdout
    assert re.findall(r"^  make (\w[\w-]*)", said, re.MULTILINE) == TARGETS
    assert all(re.search(rf"^  make {target} +\S", said, re.MULTILINE) for target in TARGETS)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("RNU=x report", "make report takes no RNU: it takes RUN=<name> PYTHON=<interpreter>."),
        ("report DEVICE=cpu", "make report takes no DEVICE: it takes RUN=<name> PYTHON=<interpreter>."),
        ("RUN=x", "make help takes no RUN: it takes PYTHON=<interpreter>."),
        ("tune DEVICE=cpu report", "make tune report takes no DEVICE: it takes RUN=<name> PYTHON=<interpreter>."),
        ("check RUN=x", "make check takes no RUN: it takes FIX=1 PYTHON=<interpreter>."),
        ("test 'RUN=a b' 'PYTHON=c d'", "test takes no RUN: it takes OF=<browser|faults|gpu> PYTHON=<interpreter>."),
        ("reprot RUN=x", "No rule to make target 'reprot'."),
    ],
)
def test_a_variable_that_a_target_does_not_take_is_refused_in_one_line(words, refused):
    ended = make(*shlex.split(words))
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert refused in line


@pytest.mark.parametrize("words", ["measure LONG={}", "dispatch RUN=x REPLACE={}", "check FIX={}"])
def test_a_switch_is_off_by_0_and_by_nothing(words):
    said = [make("-n", "PYTHON=python", *words.format(value).split()).stdout for value in ("", 0, 1)]
    option = f"--{words.split()[-1].partition('=')[0].lower()}"
    assert [option in words for words in said] == [False, False, True]


def test_an_interpreter_that_is_there_keeps_its_path_and_gets_nothing():
    ended = make("-n", "report", "PYTHON=some-python")
    assert ended.stdout.splitlines()[-1].startswith("some-python -m attnlab report")
    assert "pip" not in ended.stdout
    probe = "show:; $(python) -c 'import os; print(os.environ[\"PYTHONPATH\"])'"
    shown = make("-f", "Makefile", f"--eval={probe}", "show", f"PYTHON={sys.executable}", PYTHONPATH="/elsewhere")
    assert shown.stdout.split(":") == [f"{ROOT}/lib", "/elsewhere\n"]


@pytest.fixture
def fresh(tmp_path) -> Path:
    """A checkout in which nothing is installed."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "tools/environment.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def driver(folder: Path, version: str) -> str:
    """A `PATH` with an nvidia-smi that reports this driver version."""
    program(folder / "bin" / "nvidia-smi", f"echo {version}")
    return f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("words", "stamp"),
    [
        (("report", "RUN=x"), "render"),
        (("measure", "DEVICE=cpu"), "cpu"),
        (("measure", "DEVICE=cpu", "SCHEDULER=tcp://host:8786"), "cpu-dask"),
        (("test",), "cpu-dask-kernels-model-test"),
        (("kernels",), "kernels"),
        (("lab", "DEVICE=cpu"), "cpu-lab"),
        (("check",), "cpu-check"),
    ],
)
def test_each_target_installs_only_what_it_needs(fresh, words, stamp):
    installing, path = f"tools/environment.py {stamp} cpu\n", driver(fresh, "570.1")
    said = make("-n", *words, cwd=fresh, PATH=path).stdout
    assert said.count("tools/environment.py") == said.count(installing) == 1
    # What stands is not installed again, until the lock changes, its Python is gone or an installation is cut off.
    program(fresh / ".venv" / "bin" / "python", "exit 0")
    (fresh / ".venv" / f".ready-{stamp}").touch()
    for others in (words, ("report", "RUN=x")):
        assert "environment.py" not in make("-n", *others, cwd=fresh).stdout
    lock = fresh / "requirements.lock"
    times = lock.stat().st_atime, lock.stat().st_mtime
    later = (fresh / ".venv" / f".ready-{stamp}").stat().st_mtime + 10
    os.utime(lock, (later, later))
    assert installing in make("-n", *words, cwd=fresh, PATH=path).stdout
    os.utime(lock, times)
    for name, content in ((".venv.lock", "installing\n"), (".venv/bin/python", "#!/bin/sh\nexit 1\n")):
        (fresh / name).write_text(content)
        assert installing in make("-n", *words, cwd=fresh, PATH=path).stdout
        assert "environment.py render cpu" in make("-n", "report", "RUN=x", cwd=fresh, PATH=path).stdout
        (fresh / ".venv.lock").write_text("")


def test_where_there_is_a_driver_pytorch_is_the_build_for_it_whatever_device_says(fresh):
    path = driver(fresh, "580.95.05")
    said = [make("-n", "lab", *words, cwd=fresh, PATH=path).stdout for words in ((), ("DEVICE=cpu",))]
    assert [re.search(r"environment.py (.*)", words)[1] for words in said] == ["cuda-lab cuda", "cpu-lab cuda"]


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("WARNING: Retrying (Retry(total=0, connect=None)) after", "the package index does not answer: "),
        ("WARNING: Retrying (Retry(total=4, connect=None)) after\nERROR: No space left", "ERROR: No space left"),
    ],
)
def test_what_stops_an_installation_is_said(fresh, log, said):
    program(fresh / ".venv" / "bin" / "python", f"[ \"$1\" = -Ic ] || {{ echo '{log}'; exit 1; }}")
    first, *others = make("report", "RUN=x", cwd=fresh).stderr.splitlines()
    assert first.startswith(said)
    assert [line.startswith("make: ***") for line in others] == [True]


def test_without_a_python_new_enough_it_says_so(fresh):
    tools = fresh / "bin"
    tools.mkdir()
    for tool in ("make", "sh", "awk"):
        (tools / tool).symlink_to(shutil.which(tool))
    ended = make("report", "RUN=x", cwd=fresh, PATH=str(tools))
    assert ended.returncode == 2
    first = ended.stderr.splitlines()[0]
    assert first == "attnlab needs Python 3.11 or newer: install it, or state PYTHON=..."
    assert not (fresh / ".venv").exists()


def example(page: str, language: str) -> str:
    """The only example in a language on a page."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", TEXTS[page], re.DOTALL | re.MULTILINE)
    return found


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_pages_commands_are_targets_and_take_their_variables():
    named = {page: set(re.findall(r"(?:^|`)make (\w[\w-]*)", text, re.MULTILINE)) for page, text in TEXTS.items()}
    assert {page: sorted(words - set(TARGETS)) for page, words in named.items() if words - set(TARGETS)} == {}
    assert {"report", "lab", "measure", "export"} <= named["README.md"]
    assert set(TARGETS) - set.union(*named.values()) == {"help"}
    command = re.compile(r"(?:^|`)make ([a-z-]+ [^`#&\n]+)", re.MULTILINE)
    commands = {found for text in TEXTS.values() for found in command.findall(text)}
    assert len(commands) > 20
    for command in commands:
        assert make("-n", *shlex.split(command), "PYTHON=python").stderr == "", command


def test_the_example_of_a_study_is_one(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text(example("docs/method.md", "yaml"))
    assert studies.load(path).shapes


def test_the_example_of_a_kernel_is_a_rung(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels")
    monkeypatch.setenv("ATTNLAB_KERNELS", str(tmp_path / "kernels"))
    (tmp_path / "kernels" / "mine.cu").write_text(example("docs/kernels.md", "cuda"))
    with open(tmp_path / "kernels" / "ladder.toml", "a") as entries:
        entries.write("\n" + example("docs/kernels.md", "toml"))
    mine = ladder.rung("kernel.mine")
    assert list(ladder.texts(mine)) == ["mine.cu", "element.cuh"]
    assert mine.expression("float16", mine.tiles[0], True) == "mine<__half, 64, true>"
    (tmp_path / "mine.yaml").write_text(example("docs/kernels.md", "yaml"))
    study = studies.load(tmp_path / "mine.yaml")
    assert {"kernel.mine", f"kernel.{mine.after}"} <= set(study.implementations)
    assert {shape.head_dim for shape in study.shapes} == {tile.head_dim for tile in mine.tiles}


def test_the_fields_of_a_rung_and_of_a_dispatch_table_are_explained():
    fields = {*ladder.Rung.model_fields, *ladder.Tile.model_fields} - {"text"}  # which no entry states
    assert [field for field in sorted(fields) if f"`{field}`" not in TEXTS["kernels/README.md"]] == []
    explained = TEXTS["data/README.md"].split("## dispatch/")[1].split("\n## ")[0]
    assert [field for field in Dispatch.model_fields if f"`{field}`" not in explained] == []


def test_the_fields_of_a_study_and_the_axes_of_a_shape_are_explained_with_their_defaults():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|([^|]*)\|", TEXTS["docs/method.md"], re.MULTILINE)
    stated = {name: default.strip(" `") for names, default in rows for name in re.findall(r"\w+", names)}
    for name, field in studies.Study.model_fields.items():
        default = "" if field.is_required() else str(field.default).lower().removesuffix(".0")
        assert stated[name] == ("the file's name" if name == "name" else default)
    plain = shapes.Shape(2, 3, 5, 7).axes
    for axis in plain:
        default = "" if axis in shapes.Shape.AXES[:4] else str(plain[axis]).lower()
        assert str(plain.get(stated[axis], stated[axis])) == default


@pytest.mark.parametrize("page", TEXTS)
def test_links_paths_and_names_on_a_page_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", TEXTS[page]):
        target = ((ROOT / page).parent / link).resolve() if link else ROOT / page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target.read_text()), f"{link}#{anchor}"
    tops = "benchmarks|data|docs|figures|kernels|lib|notebooks|reports|studies|tests|tools"
    for path in re.findall(rf"`((?:{tops})/[\w./-]*)`", TEXTS[page]):
        assert (ROOT / path).exists() or (ROOT / f"{path}.xz").exists() or path == "kernels/mine.cu", path
    names = re.findall(r"`attnlab\.([\w.]+)", TEXTS[page])
    for name in (name for name in names if not (PACKAGE / f"attnlab.{name}").is_file()):
        found = import_module("attnlab")
        for word in name.split("."):
            found = getattr(found, word) if hasattr(found, word) else import_module(f"{found.__name__}.{word}")


def test_the_readme_leads_to_every_page():
    linked = {link for link in re.findall(r"\]\(([^)#]+)", TEXTS["README.md"]) if link.endswith(".md")}
    assert {page for page in TEXTS if page.startswith("docs/")} <= linked


def test_the_continuous_integration_calls_targets():
    script = ROOT / ".ci" / "run"
    assert {"test", "kernels"} <= set(re.findall(r"^make (\w[\w-]*)", script.read_text(), re.MULTILINE)) <= set(TARGETS)
    assert os.access(script, os.X_OK)


def test_no_file_names_a_place_on_someones_machine():
    here = re.escape(f"{ROOT}/".encode())
    homes = re.compile(rb"/(?:home/[a-z]\w*/|Users/[A-Za-z]\w*/|root/\w)|file:///\w|(?<![\w.])" + here)
    found = {path: homes.search(path.read_bytes()) for path in tracked() if path != Path(__file__)}
    assert {str(path.relative_to(ROOT)): match[0] for path, match in found.items() if match} == {}


def test_what_is_tracked_is_small():
    sizes = {path: path.stat().st_size for path in tracked()}
    assert sum(sizes.values()) < TREE_LIMIT
    for manifest in (path for path in sizes if path.name == "manifest.json"):
        assert sum(size for path, size in sizes.items() if path.parent == manifest.parent) < RUN_LIMIT


def test_racecheck_gets_kernels_in_which_each_thread_arrives(tmp_path):
    given = each_arriving(tmp_path / "kernels")
    there = [path for path in given.iterdir() if path.is_file()]
    changed = [path.name for path in there if path.read_bytes() != (paths.kernels() / path.name).read_bytes()]
    assert sorted(changed) == ["13_fp8.cu", "jobs.cuh"]
