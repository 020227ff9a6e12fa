"""The environment that make installs: complete or made again, by one process at a time, with the right PyTorch build.

A small project stands for attnlab, and small wheels for its dependencies. The environment borrows the pip of these
tests, which is the real one: venv would take seconds to install it.
"""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest
from conftest import wait_until

from attnlab.base import paths

CUT_OFF = "an installation was cut off: .venv is made again"
MAKING = f"making .venv with Python {sys.version.split()[0]}"
WAITING = "another make is installing into .venv: waiting for it"
INSTALLING = "installing attnlab [{}] as requirements.lock pins it; .venv/pip.log says how far it is"
PATIENCE_S = 300
# Each waits while the file `hold` contains its name.
WAIT = """
import os, time
from pathlib import Path
def wait(step):
    hold = Path("hold")
    while hold.exists() and hold.read_text() == step:
        Path("held").touch()
        time.sleep(0.01)
"""
BACKEND = """
import os, shutil
from wait import wait
def build_editable(folder, *_, **__):
    wait("build")
    return os.path.basename(shutil.copy("attnlab-1-py3-none-any.whl", folder))
"""
VENV = f"""
import shutil, sys
from pathlib import Path
from wait import wait
folder = Path(sys.argv[-1])
assert sys.argv[1:] == ["--clear", ".venv"]
shutil.rmtree(folder, ignore_errors=True)
(folder / "bin").mkdir(parents=True)
(folder / "bin" / "python").symlink_to(sys._base_executable)
home = Path(sys._base_executable).parent
(folder / "pyvenv.cfg").write_text(f"home = {{home}}\\ninclude-system-site-packages = false")
packages = folder / "lib" / f"python3.{{sys.version_info.minor}}" / "site-packages"
packages.mkdir(parents=True)
wait("venv")
(packages / "pip").symlink_to({str(Path(pip.__file__).parent)!r})
"""


def write_wheel(folder: Path, name: str, version: str, *metadata: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    about, file = f"{name}-{version}.dist-info", f"{name}-{version}-py3-none-any.whl"
    stated = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *metadata, ""]
    files = {f"{name}.py": "", f"{about}/METADATA": "\n".join(stated)}
    files[f"{about}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{about}/RECORD"] = "".join(f"{inside},,\n" for inside in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / file, "w") as wheel:
        for inside, content in files.items():
            wheel.writestr(inside, content)
    return file


class Project:
    """A project in a folder, with calls of the script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        (folder / "pyproject.toml").write_text(build + '[project]\nname = "attnlab"\nversion = "1"\n')
        for name, code in (("wait", WAIT), ("backend", BACKEND), ("venv", VENV)):
            (folder / f"{name}.py").write_text(code)
        extras = [f"Provides-Extra: {extra}" for extra in ("cpu", "cuda", "test")]
        needs = [f'Requires-Dist: torch; extra == "{extra}"' for extra in ("cpu", "cuda")]
        write_wheel(folder, "attnlab", "1", *extras, *needs)
        (folder / "index").mkdir()
        self.lock("2.0")

    def lock(self, torch: str) -> None:
        (self.folder / "requirements.lock").write_text(f"torch=={torch}\n")

    def start(self, extras: str = "render", build: str = "cpu", **variables: str) -> subprocess.Popen:
        barred = ("PIP_", "PYTHON", "ATTNLAB_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(barred)}
        of_pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        of_pip |= {"PIP_FIND_LINKS": str(self.folder / "links"), "PIP_INDEX_URL": (self.folder / "index").as_uri()}
        return subprocess.Popen(
            [sys.executable, paths.ROOT / "tools" / "environment.py", extras, build],
            cwd=self.folder,
            env=kept | of_pip | {"PYTHONPATH": str(self.folder)} | variables,  # for `python -m venv`
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore SIGINT
        )

    def install(self, *words: str, **variables: str) -> list[str]:
        """Run the script to its end; returns the lines that it prints."""
        process = self.start(*words, **variables)
        said, error = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, error) == (0, "")
        return said.splitlines()

    def start_until(self, step: str) -> subprocess.Popen:
        """Start the script, and wait until it stops at a step, where it stays until `go_on`."""
        (self.folder / "hold").write_text(step)
        process = self.start()
        wait_until((self.folder / "held").exists)
        return process

    def go_on(self) -> None:
        (self.folder / "hold").unlink()

    def is_complete(self) -> bool:
        check = subprocess.run([self.folder / ".venv" / "bin" / "python", "-Ic", "import pip, attnlab"])
        return check.returncode == 0 and self.unlocked() and (self.folder / ".venv" / ".ready-render").exists()

    def unlocked(self) -> bool:
        return (self.folder / ".venv.lock").read_text() == ""

    def torch(self) -> str:
        (found,) = self.folder.glob(".venv/lib/*/site-packages/torch-*.dist-info")
        return found.name.removeprefix("torch-").removesuffix(".dist-info")


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("step", ["venv", "build"])
def test_what_was_killed_or_lost_its_pip_is_made_again(project, step):
    first = project.start_until(step)
    (project.folder / ".venv" / ".ready-cpu").touch()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    project.go_on()
    assert project.install() == [CUT_OFF, MAKING, INSTALLING.format("render")]
    assert project.is_complete()
    assert not (project.folder / ".venv" / ".ready-cpu").exists()
    assert project.install() == []
    if step == "build":
        (pip_there,) = project.folder.glob(".venv/lib/*/site-packages/pip")
        pip_there.unlink()
        broken = ".venv has no pip for Python 3.11 or newer: it is made again"
        assert project.install() == [broken, MAKING, INSTALLING.format("render")]
        assert project.is_complete()


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda first: None, []),
        (lambda first: os.killpg(first.pid, signal.SIGINT), [INSTALLING.format("render")]),
        (lambda first: first.terminate(), [CUT_OFF, MAKING, INSTALLING.format("render")]),
        # pip continues.
        (lambda first: first.kill(), [CUT_OFF, MAKING, INSTALLING.format("render")]),
    ],
    ids=["it ends", "it is interrupted", "it is told to end", "it alone is killed"],
)
def test_a_second_one_waits_for_all_that_the_first_started(project, end, said):
    first = project.start_until("build")
    second = project.start()
    assert second.stdout.readline() == f"{WAITING}\n"
    end(first)
    first.poll()
    project.go_on()
    rest, error = second.communicate(timeout=PATIENCE_S)
    assert (rest.splitlines(), error, second.returncode) == (said, "", 0)
    assert project.is_complete()
    first.communicate()
    assert first.returncode in {0, 130, 143, -signal.SIGKILL}


def test_pytorch_is_the_cpu_build_where_one_is_found_and_no_driver_is(project):
    links, index = project.folder / "links", project.folder / "builds"
    for version in ("2.0", "2.1", "2.2", "2.3"):
        write_wheel(links, "torch", version)
    refused = {"ATTNLAB_TORCH_INDEX": "http://127.0.0.1:1/"}
    installing = INSTALLING.format("cpu")
    none = (
        "found no CPU build of torch 2.0 in pip's index or in http://127.0.0.1:1/: downloading the CUDA build, "
        "several GB; ATTNLAB_TORCH_INDEX=<address> names another index of CPU builds"
    )
    on_linux = sys.platform == "linux"  # on other systems, PyPI's build is a CPU build
    assert project.install("cpu", "cpu", **refused) == [MAKING, installing, *[none] * on_linux]
    assert project.torch() == "2.0"

    # A failed installation leaves the environment unchanged.
    project.lock("3.0")
    process = project.start("cpu", "cuda")
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "torch==3.0" in error
    assert project.unlocked()
    assert project.torch() == "2.0"

    project.lock("2.1")
    name = write_wheel(index / "torch", "torch", "2.1+cpu")
    (index / "torch" / "index.html").write_text(f'<a href="{name.replace("+", "%2B")}">{name}</a>')
    assert project.install("cpu", "cpu", ATTNLAB_TORCH_INDEX=index.as_uri()) == [installing]
    assert project.torch() == "2.1+cpu" if on_linux else "2.1"
    # A driver was installed in the meantime.
    assert project.install("cuda", "cuda") == [INSTALLING.format("cuda")]
    assert project.torch() == "2.1"
    assert project.install("cpu-test", "cpu", **refused) == [INSTALLING.format("cpu, test")]
    assert project.torch() == "2.1"

    for version in ("2.2", "2.3"):
        write_wheel(links, "torch", f"{version}+cpu")
    project.lock("2.2")
    assert project.install("cpu", "cpu", **refused) == [installing]
    assert project.torch() == "2.2+cpu"
    project.lock("2.3")
    assert project.install("cpu", "cuda") == [installing]
    assert project.torch() == "2.3"
