"""Derive environment.yml from pyproject.toml and requirements.lock; as a program, write both files."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from attnlab.base import paths

HEADER = """\
# For conda: `conda env create -f environment.yml`, `conda activate attnlab`, `make report PYTHON=python`.
# tools/environment_yml.py writes it from pyproject.toml and requirements.lock, which has the versions of all others.
# Both paths below are relative to this file, and attnlab itself is installed from this checkout.
name: attnlab
channels:
  - conda-forge
dependencies:
  - python=3.12
  - pip
  - pip:
      - -c requirements.lock
      - -e .
"""
LOCK_HEADER = """\
# Every version that attnlab is run with, on Python 3.11 and 3.12. pyproject.toml says what is needed;
# tools/environment_yml.py resolves it into this file, and environment.yml follows from both.
"""
CUDA_NOTE = "      # On a machine with an NVIDIA driver of 580 or newer, these as well:\n"
KERNELS_NOTE = "      # On Linux or Windows, for `make kernels`, these as well:\n"


def environment(root: Path) -> str:
    """The text of environment.yml: attnlab, and the locked packages of rendering, JupyterLab and measuring on a CPU."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pins = locked((root / "requirements.lock").read_text())
    extras = project["optional-dependencies"]
    wanted = [name_of(requirement) for requirement in [*project["dependencies"], *extras["lab"], *extras["cpu"]]]
    lines = [f"      - {name}=={pins[name]}\n" for name in wanted]
    for note, extra in ((CUDA_NOTE, "cuda"), (KERNELS_NOTE, "kernels")):
        named = [requirement for requirement in extras[extra] if name_of(requirement) not in wanted]
        lines += [note, *(f"      # - {_with_extras(one)}=={pins[name_of(one)]}\n" for one in named)]
    return HEADER + "".join(lines)


def locked(text: str) -> dict[str, str]:
    """The pinned versions of a requirements file, by package name."""
    return dict(re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", text, re.MULTILINE))


def name_of(requirement: str) -> str:
    """The package name in a requirement, in the lock's spelling."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def _with_extras(requirement: str) -> str:
    found = re.search(r"\[.*?\]", requirement)
    return name_of(requirement) + (found[0] if found else "")


def lock(root: Path) -> None:
    """Resolve pyproject.toml into requirements.lock with uv, and write environment.yml."""
    command = "uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --fork-strategy fewest"
    options = "--no-annotate --no-header --quiet --output-file requirements.lock"
    subprocess.run([sys.executable, "-m", *command.split(), *options.split()], cwd=root, check=True)
    file = root / "requirements.lock"
    file.write_text(LOCK_HEADER + file.read_text())
    (root / "environment.yml").write_text(environment(root))


if __name__ == "__main__":
    lock(paths.ROOT)
