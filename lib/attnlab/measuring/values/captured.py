"""Q, K and V of calls of a model's attention, from a safetensors file.

The file holds, for each layer, 3 tensors of 16 bits: ``<layer>.q`` ``(heads, tokens, head_dim)``, ``<layer>.k`` and
``<layer>.v`` ``(kv_heads, tokens, head_dim)``, as they are after rotary embeddings and before scaling. Query head i
belongs to the KV head i · kv_heads / heads, rounded down. A file may be compressed, with ``.xz`` after its name.
"""

import hashlib
import lzma
import os
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study
from attnlab.study.values import CAPTURED, CAPTURED_FILE, split

Layer = tuple[Tensor, Tensor, Tensor]
FILE = "ATTNLAB_CAPTURED"
"""The environment variable with the path of the study's file, for this process and its children."""


def use(study: Study) -> None:
    """Use the captured values of the file that a study names, in this process and its children."""
    os.environ[FILE] = str(path(study.captured))


def path(stated: str) -> Path:
    """The file that a study states; a relative path is one in the working folder, or else in the project."""
    own = paths.working() / stated
    return own if own.is_file() else paths.ROOT / stated


def digests(study: Study) -> dict[str, str]:
    """The SHA-256 of the file by its name; empty for a study without captured values.

    Raises:
        UserError: the file can't be read, lacks a layer that the study states, or has tensors of wrong shapes.
    """
    layers = {word for name, word in (split(shape.values) for shape in study.shapes) if name == CAPTURED}
    if not layers:
        return {}
    from safetensors.torch import load

    file = path(study.captured)
    where = f"captured: {paths.shown(file)}"
    try:
        content = _content(file)
        there = {name: tuple(tensor.shape) for name, tensor in load(content).items()}
    except OSError as error:
        raise UserError(f"{where} can't be read ({error.strerror or error}): name another") from None
    except Exception as error:  # safetensors' own error has no public base
        raise UserError(f"{where} is no file of safetensors: {error}") from None
    for layer in sorted(layers):
        named = [f"{layer}.{tensor}" for tensor in "qkv"]
        if missing := [name for name in named if name not in there]:
            raise UserError(f"{where} lacks {missing[0]}; it has {', '.join(sorted(there))}")
        if flat := [name for name in named if len(there[name]) != 3]:
            stated = f"holds {flat[0]} as {there[flat[0]]}"
            raise UserError(f"{where} {stated}, which has to be (heads, tokens, head_dim)")
        q, k, v = (there[name] for name in named)
        if k != v or q[1:] != k[1:] or q[0] % k[0]:
            alike = "K and V have to be alike, and Q have a multiple of their heads"
            raise UserError(f"{where} holds {layer}.q as {q}, {layer}.k as {k} and {layer}.v as {v}: {alike}")
    return {file.name: hashlib.sha256(content).hexdigest()}


def layer(name: str, shape: Shape, device: torch.device) -> Layer:
    """A layer's Q ``(heads, seq_len, head_dim)``, and K and V ``(kv_heads, kv_len, head_dim)``.

    K and V are of the first `kv_len` captured tokens, Q is of the last `seq_len` of these.

    Raises:
        Unsupported: the file holds fewer tokens, or heads of another width.
    """
    q, k, v = _read(Path(os.environ.get(FILE, path(CAPTURED_FILE))), name, device)
    if q.shape[2] != shape.head_dim:
        raise Unsupported(f"the captured heads have {q.shape[2]} columns, not {shape.head_dim}")
    if k.shape[1] < shape.kv_len:
        raise Unsupported(f"{k.shape[1]} tokens were captured, and the shape has {shape.kv_len} keys")
    if shape.kv_len < shape.seq_len:
        raise Unsupported(f"captured queries are the last of {shape.kv_len} keys, and there are {shape.seq_len}")
    return q[:, shape.kv_len - shape.seq_len : shape.kv_len], k[:, : shape.kv_len], v[:, : shape.kv_len]


def _content(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else lzma.decompress(Path(f"{file}.xz").read_bytes())


@cache
def _read(file: Path, name: str, device: torch.device) -> Layer:
    q, k, v = (_held(file)[f"{name}.{tensor}"].to(device) for tensor in "qkv")
    return q, k, v


@cache
def _held(file: Path) -> dict[str, Tensor]:
    from safetensors.torch import load

    return load(_content(file))
