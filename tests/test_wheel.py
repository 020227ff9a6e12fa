"""The wheel in a separate environment, outside of the checkout: it finds its kernels, notebooks and tables there."""

import os
import site
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
import synthetic

from attnlab.base import paths

pytest.importorskip("hatchling")
pytest.importorskip("torch")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
ALONE = ["--no-deps", "--no-index"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """An environment with only the wheel installed; it finds other packages in the environment of these tests."""
    folder = tmp_path_factory.mktemp("installed")
    build = [*PIP, "wheel", *ALONE, "--no-build-isolation", "--wheel-dir", folder, paths.ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    made = folder / "environment"
    venv.create(made, symlinks=True)
    python = made / "bin" / "python"
    install = [*PIP, "--python", python, "install", *ALONE, wheel]
    subprocess.run(install, check=True, capture_output=True, env=_without("PYTHON"))  # not as if it were there already
    (packages,) = made.glob("lib/*/site-packages")
    (packages / "others.pth").write_text("\n".join([sysconfig.get_path("purelib"), *site.getsitepackages()]))
    return made


def _without(*beginnings: str) -> dict[str, str]:
    """The environment variables, without those whose names begin with one of these."""
    return {name: value for name, value in os.environ.items() if not name.startswith(beginnings)}


@pytest.fixture
def run(environment, tmp_path, monkeypatch):
    """A function that runs a program of the environment in an empty folder, and returns its output."""

    def run(program: str, *words: str) -> str:
        libraries = Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib")
        variables = _without("ATTNLAB_", "PYTHON") | {
            "JUPYTER_PATH": f"{sys.prefix}/share/jupyter",  # the templates of nbconvert, which lie beside packages
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        command = [environment / "bin" / program, *words]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=variables, timeout=300)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def test_it_holds_the_command_the_kernels_and_attend(run, tmp_path):
    assert run("attnlab", "--version").startswith("attnlab ")
    if find_spec("cuda") and find_spec("cuda.bindings.nvrtc"):
        assert "naive" in run("attnlab", "kernels", "--rung", "naive")
    program = (
        "import torch, attnlab\n"
        "from attnlab.runs import dispatch\n"
        "from attnlab.study import ladder, studies, tuning\n"
        "print(attnlab.attend(*torch.ones(3, 1, 2, 16, 32)).sum().item())\n"
        "table, tuned = dispatch.load(dispatch.path('NVIDIA H200'), 'NVIDIA H200'), tuning.load('NVIDIA H200')\n"
        "print(bool(table.choices), bool(tuned.choices), bool(ladder.load()), studies.load('quick').name)\n"
        "print(dispatch.write(table), tuning.write(tuned))\n"
        "print(dispatch.path('NVIDIA H200'), tuning.path('NVIDIA H200'))\n"
    )
    total, found, written, read = run("python", "-c", program).splitlines()
    assert (total, found) == ("1024.0", "True True True quick")
    cache = tmp_path / "cache" / "attnlab"
    assert written == read == f"{cache}/data/dispatch/nvidia-h200.json {cache}/kernels/tuned/nvidia-h200.json"


def test_it_renders_a_run_of_the_folder_that_one_stands_in(run, tmp_path, data):
    synthetic.write("tiny", synthetic.Recipe(study=synthetic.AT_TARGET))
    assert data.parent == tmp_path
    said = run("attnlab", "notebook", "02_baseline", "-p", "run=tiny")
    assert said == "rendered reports/tiny/02_baseline.html\n"
    assert str(paths.ROOT) not in (tmp_path / "reports" / "tiny" / "02_baseline.html").read_text()
