"""Q, K and V that a model's attention was called with, from a file in safetensors' format.

The file holds, for each layer, three tensors of 16 bits: ``<layer>.q`` ``(heads, tokens, head_dim)``, ``<layer>.k`` and
``<layer>.v`` ``(kv_heads, tokens, head_dim)``, as they are after rotary embeddings and before scaling. Query head i
belongs to the KV head i · kv_heads / heads, rounded down.
"""

import hashlib
from functools import cache
from pathlib import Path

import torch

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measure.subjects.implementation import Unsupported
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study
from attnlab.study.values import CAPTURED, split

Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_used: list[Path] = []


def use(study: Study) -> None:
    """Take what this process draws as captured from the file that a study names."""
    _used[:] = [path(study)]


def path(study: Study) -> Path:
    """The file that a study names; a relative path is one in the project."""
    return paths.ROOT / study.captured


def digests(study: Study) -> dict[str, str]:
    """The SHA-256 of the file by its name; empty for a study without captured values.

    Raises:
        UserError: the file can't be read, or lacks a layer that the study states.
    """
    layers = {word for name, word in (split(shape.values) for shape in study.shapes) if name == CAPTURED}
    if not layers:
        return {}
    file = path(study)
    try:
        there, content = set(names(file)), file.read_bytes()
    except OSError as error:
        raise UserError(
            f"captured: {paths.shown(file)} can't be read ({error.strerror or error}): name another"
        ) from None
    except Exception as error:  # safetensors' own error has no public base
        raise UserError(f"captured: {paths.shown(file)} is no file of safetensors: {error}") from None
    for layer in sorted(layers):
        for tensor in "qkv":
            if f"{layer}.{tensor}" not in there:
                raise UserError(
                    f"captured: {paths.shown(file)} lacks {layer}.{tensor}; it has {', '.join(sorted(there))}"
                )
    return {file.name: hashlib.sha256(content).hexdigest()}


def names(file: Path) -> list[str]:
    """The names of the tensors in a file."""
    from safetensors import safe_open

    with safe_open(file, "pt") as content:
        return list(content.keys())


def layer(name: str, shape: Shape, device: torch.device) -> Layer:
    """Q, K and V of a layer: ``(heads, seq_len, head_dim)`` and twice ``(kv_heads, kv_len, head_dim)``.

    Keys are the first that were captured, and queries the last of those.

    Raises:
        Unsupported: the file holds fewer tokens, or heads of another width.
    """
    q, k, v = _read(_used[0], name, device)
    if q.shape[2] != shape.head_dim:
        raise Unsupported(f"the captured heads have {q.shape[2]} columns, not {shape.head_dim}")
    if k.shape[1] < shape.kv_len:
        raise Unsupported(f"{k.shape[1]} tokens were captured, and the shape has {shape.kv_len} keys")
    return q[:, shape.kv_len - shape.seq_len : shape.kv_len], k[:, : shape.kv_len], v[:, : shape.kv_len]


@cache
def _read(file: Path, name: str, device: torch.device) -> Layer:
    from safetensors import safe_open

    with safe_open(file, "pt", device=str(device)) as content:
        q, k, v = (content.get_tensor(f"{name}.{tensor}") for tensor in "qkv")
    return q, k, v
