"""Makes JupyterLab save tracked notebooks without outputs and without a kernel's metadata.

It also writes the .py next to a notebook.
"""

import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

import jupytext

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
TRACKED = subprocess.run("git ls-files", shell=True, cwd=NOTEBOOKS, capture_output=True, text=True).stdout.split()


def as_tracked(model: dict[str, Any], path: str, **_: Any) -> None:
    """Remove outputs before a tracked notebook is saved; a copy under another name keeps them."""
    if path not in TRACKED or model["type"] != "notebook":
        return
    notebook = model["content"]
    notebook["metadata"] = json.loads((NOTEBOOKS / path).read_text())["metadata"]
    for cell in notebook["cells"]:
        cell["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "tags"}
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}


def with_its_py(os_path: str, model: dict[str, Any], **_: Any) -> None:
    """Write the .py of a saved notebook."""
    if model["path"] in TRACKED and model["type"] == "notebook":
        jupytext.write(jupytext.read(os_path), Path(os_path).with_suffix(".py"), fmt="py:percent")


# The server reads this file more than once.
warnings.filterwarnings("ignore", "Overriding existing (pre|post)_save_hook")
c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.ContentsManager.pre_save_hook = as_tracked
c.FileContentsManager.post_save_hook = with_its_py
