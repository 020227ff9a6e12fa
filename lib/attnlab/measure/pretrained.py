"""A model of one's own: its weights from a folder, and prompts that are cut from a text by its tokenizer.

The folder is as transformers' ``save_pretrained`` writes it. Its SHA-256 is what ``sha256sum *.json *.safetensors |
sha256sum`` prints in it, where the shell sorts names by their bytes.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from attnlab.base import library
from attnlab.base.errors import UserError
from attnlab.measure.subjects import model
from attnlab.study.models import BASELINE, DTYPES, LIBRARY, Model, Plan, Text

Tokens = npt.NDArray[np.int32]
WATCHED = "attnlab.pretrained"
PIECE = 2**20
"""Characters that a tokenizer gets at once."""
BYTES = 256


@dataclass(frozen=True, eq=False)
class Own:
    """A model from a folder, and the text that it reads.

    Attributes:
        dtype: that of the weights if it has 16 bits, else that of random ones on the device.
        tokens: all of the text, one after the other.
    """

    folder: Path
    model: Model
    dtype: str
    text: Text
    tokens: Tokens

    def require_passages(self, plan: Plan) -> None:
        """Raise UserError unless each round of a plan can read another passage."""
        batch, prompt = max(plan.batch), max(plan.prompt)
        if len(self.tokens) < plan.rounds * batch * prompt:
            reads = f"{plan.rounds} rounds of {batch} × {prompt} tokens, each another passage"
            raise UserError(
                f"text: {self.text.name} has {len(self.tokens)} tokens, too few for {reads}: name a longer one"
            )


def read(weights: str, text: str, kind: str) -> Own:
    """The model in a folder, and the text in a file or, without a name, `LIBRARY`, for a device of a kind.

    The model is loaded once, on the CPU, and its sizes are those that its attention is called with.

    Raises:
        UserError: one of them can't be used; the message is one line.
    """
    transformers.utils.logging.set_verbosity_error()  # what fails is said once
    folder = Path(weights).expanduser().resolve()
    files = _files(folder)
    name, content = _content(text)
    config = _explained(folder, lambda: transformers.AutoConfig.from_pretrained(folder, **model.LOCAL))
    stored = str(getattr(config, "dtype", "")).removeprefix("torch.")
    dtype = stored if kind == "cuda" and stored in ("float16", "bfloat16") else DTYPES[kind]
    found = _measured(folder, config, dtype, _digest(files))
    how, tokens = _tokens(folder, content, found.vocabulary)
    return Own(folder, found, dtype, Text(name=name, sha256=hashlib.sha256(content).hexdigest(), tokens=how), tokens)


def passages(tokens: Tokens, batch: int, prompt: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Prompts, ``(batch, prompt)`` on the generator's device, without end.

    They follow each other in the text; all of it is read, in a random order, before a passage is read again.
    """
    count = len(tokens) // (batch * prompt)
    cut = torch.from_numpy(tokens[: count * batch * prompt]).view(count, batch, prompt)
    order = torch.randperm(count, generator=generator, device=generator.device).tolist()
    return (cut[number].to(generator.device, torch.long) for number in cycle(order))


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"weights: {folder} is no folder: name one that save_pretrained wrote")
    for pattern in ("config.json", "*.safetensors"):
        if not any(folder.glob(pattern)):
            raise UserError(f"weights: {folder} lacks {pattern}: name a folder that save_pretrained wrote")
    return [*sorted(folder.glob("*.json")), *sorted(folder.glob("*.safetensors"))]


def _named(path: Path) -> str:
    """The name of a file or folder as a record and its pages hold it, in characters that mean nothing to them."""
    return re.sub(r"[^\w.-]", "_", path.name, flags=re.ASCII)


def _digest(files: list[Path]) -> str:
    lines = []
    for path in files:
        with open(path, "rb") as content:
            lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {path.name}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _content(text: str) -> tuple[str, bytes]:
    if not text:
        return LIBRARY, b"".join(library.sources(library.folder()).values())
    path = Path(text).expanduser()
    try:
        return _named(path), path.read_bytes()
    except OSError as error:
        raise UserError(f"text: {path} can't be read: {error.strerror}") from None


def _explained(folder: Path, work: Callable[[], Any]) -> Any:
    """What work of transformers on a folder returns; whatever fails there is said in one line."""
    try:
        return work()
    except UserError:
        raise
    except Exception as error:  # transformers raises of all kinds, without a base of its own
        first = re.split(r"\n|\. ", str(error).strip())[0] or type(error).__name__
        raise UserError(f"weights: transformers can't load {folder}: {first}") from None


def _measured(folder: Path, config: Any, dtype: str, digest: str) -> Model:
    """The model in a folder, with the sizes that its attention is called with."""
    made = _explained(folder, lambda: model.build(folder, 0, dtype, torch.device("cpu")))
    calls, inner = list[tuple[int, int, int]](), model.registered(model.REGISTERED[BASELINE])

    def watched(module: Any, query: torch.Tensor, key: torch.Tensor, *others: Any, **named: Any) -> Any:
        calls.append((query.shape[1], key.shape[1], query.shape[3]))
        return inner(module, query, key, *others, **named)

    model.register(WATCHED, watched)
    made.set_attn_implementation(WATCHED)
    tokens = torch.zeros(1, 2, dtype=torch.long)
    logits = _explained(folder, lambda: made(tokens, use_cache=False, logits_to_keep=1).logits)
    if not calls:
        kind = type(made).__name__
        raise UserError(
            f"weights: {folder}: the attention of {kind} doesn't go through transformers' attention interface"
        )
    if len(set(calls)) > 1:
        raise UserError(f"weights: {folder}: its layers have attention of different sizes, and one is measured for all")
    heads, kv_heads, head_dim = calls[0]
    return Model(
        name=_named(folder),
        family=config.model_type,
        layers=len(calls),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=logits.shape[-1],
        positions=getattr(config.get_text_config(), "max_position_embeddings", None),
        weights=digest,
    )


def _tokens(folder: Path, content: bytes, vocabulary: int) -> tuple[Any, Tokens]:
    """What the tokens of a text are, and all of them."""
    if any(folder.glob("tokenizer*")):
        how, tokens = "tokenizer", _explained(folder, lambda: _tokenized(folder, content.decode(errors="replace")))
    else:
        how, tokens = "bytes", np.frombuffer(content, np.uint8).astype(np.int32)
    least = BYTES if how == "bytes" else int(tokens.max(initial=0)) + 1
    if vocabulary < least:
        has = "no tokenizer" if how == "bytes" else "a tokenizer of another model"
        raise UserError(
            f"weights: {folder} has {has}, and a vocabulary of {vocabulary} below {least}: save its tokenizer there"
        )
    return how, tokens


def _tokenized(folder: Path, text: str) -> Tokens:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **model.LOCAL)
    pieces = (text[begin : begin + PIECE] for begin in range(0, len(text), PIECE))
    ids = [tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"] for piece in pieces]
    return np.concatenate([np.asarray(each, np.int32) for each in ids] or [np.empty(0, np.int32)])
