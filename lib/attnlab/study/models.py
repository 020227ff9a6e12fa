"""What `make model` measures: models by their configurations, and the prompts that they continue."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from attnlab.base.documents import Hash, validated
from attnlab.base.errors import UserError, suggestion
from attnlab.study.shapes import Shape

Size = Annotated[int, Field(ge=1, lt=2**31)]
Sizes = Annotated[list[Size], Field(min_length=1)]
BASELINE, CANDIDATE = "transformers.sdpa", "attnlab.attend"
"""The attentions that are compared: the one that transformers calls by itself, and ours."""
DTYPES = {"cuda": "float16", "cpu": "float32"}
DRAFTED = 8
"""The tokens of a draft that a model reads in one step, in speculative decoding."""
LIBRARY = "Python's standard library"
"""The name of the text that prompts are cut from where no other is named."""


class Model(BaseModel, extra="forbid", frozen=True, strict=True):
    """A decoder of transformers, by its sizes.

    Attributes:
        name: for weights from a folder, that of the folder.
        family: the type of model, as transformers names it.
        intermediate: the width of the MLP; None where weights come from a folder.
        positions: the most tokens that a sequence may have; None for as many as are asked for.
        weights: the SHA-256 of the folder's files, see `measure.pretrained`; None for random weights.
    """

    name: str
    family: str
    layers: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    intermediate: Size | None = None
    vocabulary: Size
    positions: Size | None = None
    weights: Hash | None = None


class Text(BaseModel, extra="forbid", frozen=True, strict=True):
    """What prompts are cut from.

    Attributes:
        name: of the file, or `LIBRARY`.
        sha256: of its bytes.
        tokens: what the tokens are: those of the model's own tokenizer, or single bytes.
    """

    name: str
    sha256: Hash
    tokens: Literal["tokenizer", "bytes"]


def _llama(**fields: Any) -> Model:
    return Model(family="llama", **fields)


def _gpt2(**fields: Any) -> Model:
    return Model(family="gpt2", kv_heads=fields["heads"], **fields)


MODELS = {
    model.name: model
    for model in (
        _gpt2(name="gpt2", layers=12, heads=12, head_dim=64, intermediate=3072, vocabulary=50257),
        # The sizes of Llama 3.2 1B and 3B.
        _llama(name="llama-64", layers=16, heads=32, kv_heads=8, head_dim=64, intermediate=8192, vocabulary=128256),
        _llama(name="llama-128", layers=28, heads=24, kv_heads=8, head_dim=128, intermediate=8192, vocabulary=128256),
        _gpt2(name="tiny-gpt2", layers=2, heads=2, head_dim=64, intermediate=256, vocabulary=512),
        _llama(name="tiny-llama", layers=2, heads=4, kv_heads=2, head_dim=64, intermediate=256, vocabulary=512),
    )
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "cuda": {"models": ["gpt2", "llama-64", "llama-128"], "batch": [4], "prompt": [512, 4096], "tokens": 17},
    "cpu": {"models": ["tiny-gpt2", "tiny-llama"], "batch": [2], "prompt": [128], "tokens": 9},
}
"""By the kind of the device, what is measured unless something else is stated."""


class Workload(BaseModel, extra="forbid", frozen=True, strict=True):
    """A model that continues a batch of prompts, each of `prompt` tokens."""

    model: Model
    batch: Size
    prompt: Size
    dtype: str

    @property
    def shape(self) -> Shape:
        """The shape of its attention over the prompt, in every layer."""
        model = self.model
        sizes = (self.batch, model.heads, self.prompt, model.head_dim)
        return Shape(*sizes, causal=True, dtype=self.dtype, kv_heads=model.kv_heads)

    @property
    def label(self) -> str:
        """``gpt2 (4 × 512)``: the model, the batch and the tokens of a prompt."""
        return f"{self.model.name} ({self.batch} × {self.prompt})"


class Plan(BaseModel, extra="forbid", frozen=True, strict=True):
    """What is measured: each model with each batch and length of prompt.

    Attributes:
        tokens: how many are generated for each prompt, the first among them.
        rounds: generations by each attention and replicate.
        text: what prompts are cut from; None for random tokens.
    """

    models: Annotated[list[Model], Field(min_length=1)]
    batch: Sizes
    prompt: Sizes
    tokens: Annotated[int, Field(ge=2)]
    rounds: Annotated[int, Field(ge=2)] = 6
    replicates: Size = 5
    dtype: str
    text: Text | None = None

    def workloads(self, model: Model) -> list[Workload]:
        """The workloads of one of the models."""
        sizes = product(dict.fromkeys(self.batch), dict.fromkeys(self.prompt))
        return [Workload(model=model, batch=batch, prompt=prompt, dtype=self.dtype) for batch, prompt in sizes]

    @property
    def positions(self) -> int:
        """The most tokens that a sequence comes to."""
        return max(self.prompt) + max(self.tokens, DRAFTED)


def plan(kind: str, models: Sequence[str] | None = None, known: Mapping[str, Model] = MODELS, **stated: Any) -> Plan:
    """The plan for a device of a kind; what isn't stated, or None, is taken from `DEFAULTS`.

    Args:
        models: names among those that are known.

    Raises:
        UserError: there is no such model, or a size can't be measured; the message is one line.
    """
    fields = DEFAULTS[kind] | {"dtype": DTYPES[kind]}
    fields |= {name: value for name, value in stated.items() if value is not None}
    names = list(dict.fromkeys(models or fields["models"]))
    if unknown := [name for name in names if name not in known]:
        listed = f"known are {', '.join(known)}{suggestion(unknown[0], known)}"
        raise UserError(f"unknown model {unknown[0]!r}; {listed}")
    made = validated(Plan, fields | {"models": [known[name] for name in names]}, "make model")
    for model in made.models:
        if model.positions and made.positions > model.positions:
            most = f"{model.name} takes {model.positions} tokens, and a prompt with what follows has {made.positions}"
            raise UserError(f"make model: {most}: state shorter prompts")
    return made


def command(name: str, plan: Plan) -> str:
    """What a user types to measure, or to go on with, the record of a name; folders and files by their names."""
    if not plan.text:
        return f"make model RUN={name}"
    text = "" if plan.text.name == LIBRARY else f" text={plan.text.name}"
    return f'make model RUN={name} PARAMS="weights={plan.models[0].name}{text}"'
