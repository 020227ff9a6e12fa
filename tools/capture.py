"""Train a small language model on Python's own sources, and write the Q, K and V of its attention.

    PYTHONPATH=lib python tools/capture.py                # 3 minutes of training on a GPU.
    PYTHONPATH=lib python tools/capture.py --device cpu --layers 2 --width 128 --context 256 --minutes 1
    PYTHONPATH=lib python tools/capture.py --save small   # also saves the model for transformers, for notebook 09

The text is the sources of Python's standard library with the help topics of pydoc, byte by byte. Every 50th file is
held out, and the model reads the beginning of one of them. From an early, a middle and a late layer, the file has the 2
heads whose logits vary least and most: `early.q`, `early.k`, `early.v` and so on. Each is ``(heads, tokens, head_dim)``
in float16, the head whose logits vary least first. Logits are in nats, the exponents of e in softmax: Q times K over
the square root of the head's columns.
"""

import argparse
import errno
import math
import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.base import files, paths

OUT = paths.data() / "captured" / "small.safetensors"
SEED = 0
VOCABULARY = 256
HEAD_DIM = 64
ROTARY_BASE = 10000
HOLD_OUT_EVERY = 50
BATCH = 16
"""Windows in a step, and in each evaluation during training."""
PEAK_RATE = 1e-3
WARM_UP = 0.05
"""The share of the training after which the learning rate is at its peak."""
SAY_EVERY_S = 10
ABOUT = (
    "Q, K and V as causal attention sees them, after rotary embedding, on a held-out passage, in three layers of a "
    "small byte-level language model; of each layer the heads whose logits vary least and most"
)


class Text(NamedTuple):
    """The text on which the model is trained and judged.

    Attributes:
        trained: all training bytes, one after the other.
        held_out: windows of held-out bytes, ``(windows, context + 1)``; each begins with the last byte of the previous.
        passage: the bytes on which Q, K and V are captured, ``(context,)``.
        source: the file from whose beginning the passage is, relative to the standard library.
    """

    trained: Tensor
    held_out: Tensor
    passage: Tensor
    source: str


class Bound(NamedTuple):
    """The end of training: after a number of steps, or if that is not set, after a number of minutes."""

    minutes: float
    steps: int | None

    def spent(self, steps: int, seconds: float) -> float:
        """The share of the training that is over after these steps and seconds: from 0 to 1, or beyond 1."""
        return steps / self.steps if self.steps else seconds / 60 / self.minutes


class Head(NamedTuple):
    """The causal logits of a head on the passage.

    Attributes:
        deviation: their standard deviation over all pairs of a query and a key that it sees, in nats.
        largest: the largest of them, in nats.
        first: the weight of the first key, averaged over the queries.
    """

    number: int
    deviation: float
    largest: float
    first: float


class Attention(nn.Module):
    """Causal self-attention with rotary embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor, seen: list[Tensor] | None) -> Tensor:
        """The layer's output, ``(batch, tokens, width)`` as the input.

        Args:
            rotation: see `rotations`.
            seen: gets the Q, K and V that attention is called with, ``(3, batch, heads, tokens, head_dim)``.
        """
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, HEAD_DIM)).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, rotation), rotated(k, rotation)
        if seen is not None:
            seen.append(torch.stack((q, k, v)))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A layer of the model: attention and an MLP, each behind a norm and added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor, rotation: Tensor, seen: list[Tensor] | None) -> Tensor:
        """The layer's output, ``(batch, tokens, width)`` as the input; `seen` as in `Attention`."""
        x = x + self.attention(self.attention_norm(x), rotation, seen)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """A decoder-only transformer over bytes."""

    rotation: Tensor

    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("rotation", rotations(context))
        self._draw(layers)

    def forward(self, tokens: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        """The logits of the next byte at each position, ``(batch, tokens, VOCABULARY)``; `seen` as in `Attention`."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.rotation[:, : tokens.shape[1]], seen)
        return self.head(self.norm(x))

    def _draw(self, layers: int) -> None:
        """Initialise the matrices. Those that add to the residual stream are small, as is their sum over layers."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                added = name.endswith(("attention.out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if added else 0.02)


def main(arguments: list[str] | None = None) -> None:
    """Train, capture and write as the command line says."""
    options = _parser().parse_args(arguments)
    device = usable(options.device)
    prepare(options.out)
    if options.save:
        prepare(options.save / "config.json")
    text = read(Path(sysconfig.get_paths()["stdlib"]), options.context, device)
    torch.manual_seed(SEED)
    model = Model(options.layers, options.width, options.context).to(device)
    say(f"{_size(model)} M parameters, {len(text.trained) / 1e6:.1f} MB to train on, {named(device)}")
    steps, minutes = train(model, text, Bound(options.minutes, options.steps))
    if options.save:
        as_transformers(model, options.context).save_pretrained(options.save)
        say(f"saved {paths.shown(options.save)}/")
    held_out = judged(model, text.held_out)
    say(f"trained for {minutes:.2f} min, {steps} steps; bits/byte over all that is held out: {held_out:.3f}")
    tensors, heads = selected(captured(model, text.passage))
    metadata = {
        "about": ABOUT,
        "torch": torch.__version__,
        "device": named(device),
        "minutes": f"{minutes:.2f}",
        "steps": str(steps),
        "seed": str(SEED),
        "held_out_bits_per_byte": f"{held_out:.4f}",
        "passage": text.source,
    }
    write(options.out, tensors, metadata | heads)


def say(line: str) -> None:
    """Print a line at once, also where the output is a file."""
    print(line, flush=True)


def _size(model: Model) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f}"


def usable(name: str) -> torch.device:
    """The device of this name; ends the program with a line if this machine doesn't have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        sys.exit(f"capture: --device takes cpu or cuda, not {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        sys.exit(f"capture: there is no device {name!r} that PyTorch can use here; --device cpu trains on the CPU")
    return device


def named(device: torch.device) -> str:
    """The name of the device: the GPU's, or "CPU"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def prepare(out: Path) -> None:
    """Create the folder of the file; ends the program with a line if the file can't be written there."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not os.access(out.parent, os.W_OK):
            raise PermissionError(errno.EACCES, "its folder is read-only")
    except OSError as error:
        sys.exit(f"capture: can't write {paths.shown(out)}: {error.strerror}")


def read(folder: Path, context: int, device: torch.device) -> Text:
    """The sources below a folder, in the order of their paths; ends the program with a line if they are too few."""
    # Distributions of Python often leave its tests out; what others installed isn't the standard library.
    left_out = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.is_file())
    sources = {name: (folder / name).read_bytes() for name in found if left_out.isdisjoint(name.split("/"))}
    held_out = {name: sources[name] for name in list(sources)[::HOLD_OUT_EVERY]}
    trained = b"".join(content for name, content in sources.items() if name not in held_out)
    judged_on = b"".join(held_out.values())
    source = next((name for name, content in held_out.items() if len(content) >= context), None)
    if source is None or min(len(trained), len(judged_on)) <= context:
        sys.exit(
            f"capture: {folder} has too little Python source for windows of {context} bytes; try a lower --context"
        )
    windows = as_bytes(judged_on, device).unfold(0, context + 1, context)
    return Text(as_bytes(trained, device), windows, as_bytes(held_out[source][:context], device), source)


def as_bytes(content: bytes, device: torch.device) -> Tensor:
    """Bytes as a tensor of uint8."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)


def rotations(context: int) -> Tensor:
    """Cosines and sines of the rotary embedding: ``(2, context, head_dim / 2)``."""
    frequencies = ROTARY_BASE ** -torch.arange(0, 1, 2 / HEAD_DIM, dtype=torch.float64)
    angles = torch.arange(context)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin())).float()


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Q or K after rotary embedding, which turns column i with the column half a head further; shape and type stay."""
    cosines, sines = rotation
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat((left * cosines - right * sines, right * cosines + left * sines), dim=-1)
    return turned.to(x.dtype)


def train(model: Model, text: Text, bound: Bound) -> tuple[int, float]:
    """Train until the bound, with a line of losses every few seconds; returns the steps and minutes."""
    optimizer = optimizer_of(model)
    batches = drawn(text)
    sample = text.held_out[:: math.ceil(len(text.held_out) / BATCH)]
    losses: list[Tensor] = []
    steps, seconds, said = 0, 0.0, 0.0
    begin = time.monotonic()
    while (spent := bound.spent(steps, seconds)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * schedule(spent)
        loss = bits_per_byte(model, next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        steps, seconds = steps + 1, time.monotonic() - begin
        if seconds - said >= SAY_EVERY_S:
            trained, held_out = torch.stack(losses).mean().item(), judged(model, sample)
            say(f"{seconds:5.0f} s  step {steps:5d}  bits/byte: train {trained:.3f}, held out {held_out:.3f}")
            losses.clear()
            said = seconds
    return steps, seconds / 60


def optimizer_of(model: Model) -> torch.optim.Optimizer:
    """AdamW, with no weight decay for the norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    norms = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def schedule(spent: float) -> float:
    """The learning rate when this share of the training is over, as a share of its peak: warm-up, then a cosine."""
    if spent < WARM_UP:
        return spent / WARM_UP
    return (1 + math.cos(math.pi * (spent - WARM_UP) / (1 - WARM_UP))) / 2


def drawn(text: Text) -> Iterator[Tensor]:
    """Batches of windows from random positions in the training bytes: ``(BATCH, context + 1)``."""
    device = text.trained.device
    generator = torch.Generator(device).manual_seed(SEED)
    window = torch.arange(text.held_out.shape[1], device=device)
    begins = len(text.trained) - len(window) + 1
    while True:
        begin = torch.randint(begins, (BATCH, 1), generator=generator, device=device)
        yield text.trained[begin + window]


def bits_per_byte(model: Model, windows: Tensor) -> Tensor:
    """The mean loss over all bytes of the windows but the first of each, in bits."""
    tokens = windows.long()
    with precision(windows.device):
        scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten()) / math.log(2)


def precision(device: torch.device) -> torch.autocast:
    """A context in which matrix products and attention run in bfloat16 on a GPU, in float32 on the CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def judged(model: Model, windows: Tensor) -> float:
    """As `bits_per_byte`, without gradients, in batches that fit into memory."""
    total = sum(bits_per_byte(model, batch).item() * len(batch) for batch in windows.split(BATCH))
    return total / len(windows)


def as_transformers(model: Model, context: int) -> Any:
    """The same model in transformers: a Llama whose MLP has no gate."""
    import transformers  # nothing else here needs it

    width, layers = model.embedding.embedding_dim, len(model.blocks)
    config = transformers.ArceeConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_DIM,
        num_key_value_heads=width // HEAD_DIM,
        head_dim=HEAD_DIM,
        hidden_act="gelu",
        max_position_embeddings=context,
        rms_norm_eps=torch.finfo(torch.float32).eps,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        bos_token_id=None,
        eos_token_id=None,
    )
    weights = {
        f"model.layers.{number}.{name}": tensor
        for number in range(layers)
        for name, tensor in _of_layer(model.blocks[number])
    }
    weights |= {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    made = transformers.ArceeForCausalLM(config)
    made.load_state_dict(weights | {"lm_head.weight": model.head.weight})
    return made


def _of_layer(block: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a layer by their names in transformers."""
    for name, tensor in zip("qkv", block.attention.qkv.weight.chunk(3), strict=True):
        yield f"self_attn.{name}_proj.weight", tensor
    yield "self_attn.o_proj.weight", block.attention.out.weight
    yield "input_layernorm.weight", block.attention_norm.weight
    yield "post_attention_layernorm.weight", block.mlp_norm.weight
    yield "mlp.up_proj.weight", block.mlp[0].weight
    yield "mlp.down_proj.weight", block.mlp[2].weight


@torch.no_grad()
def captured(model: Model, passage: Tensor) -> list[Tensor]:
    """Q, K and V of each layer on the passage, on the CPU: ``(3, heads, tokens, head_dim)`` in float16.

    float16 holds all digits of bfloat16 values, unless they are below 6e-5, and the first 3 of float32 values.
    Ends the program with a line if a value isn't finite in float16.
    """
    seen: list[Tensor] = []
    with precision(passage.device):
        model(passage.long()[None], seen)
    layers = [layer[:, 0].half().cpu() for layer in seen]
    if not all(layer.isfinite().all() for layer in layers):
        sys.exit("capture: Q, K or V holds a value that isn't finite in float16: the training went wrong")
    return layers


def selected(layers: list[Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors to write, by name, and their layers and heads; prints a row for each head.

    Args:
        layers: Q, K and V of each layer, see `captured`.
    """
    tensors: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    for name, layer in chosen_layers(len(layers)).items():
        queries, keys, values = layers[layer]
        heads = described(queries, keys)
        kept = least_and_most(heads)
        show(name, layer, heads, kept)
        tensors |= {f"{name}.q": queries[kept], f"{name}.k": keys[kept], f"{name}.v": values[kept]}
        origin |= {f"{name}.layer": str(layer), f"{name}.heads": ", ".join(map(str, kept))}
    return tensors, origin


def chosen_layers(layers: int) -> dict[str, int]:
    """The numbers of the layers to write, from 0, by name."""
    return {"early": 1, "middle": layers // 2, "late": layers - 1}


def described(queries: Tensor, keys: Tensor) -> list[Head]:
    """Statistics of each head's logits, from Q and K ``(heads, tokens, head_dim)``."""
    return [_described(number, q.float(), k.float()) for number, (q, k) in enumerate(zip(queries, keys, strict=True))]


def _described(number: int, q: Tensor, k: Tensor) -> Head:
    logits = q @ k.T / math.sqrt(HEAD_DIM)
    causal = torch.ones_like(logits, dtype=torch.bool).tril()
    weights = logits.masked_fill(~causal, -math.inf).softmax(dim=-1)
    visible = logits[causal]
    return Head(number, visible.std().item(), visible.max().item(), weights[:, 0].mean().item())


def least_and_most(heads: list[Head]) -> list[int]:
    """The heads whose logits have the smallest and the largest standard deviation."""
    ordered = sorted(heads, key=lambda head: head.deviation)
    return [ordered[0].number, ordered[-1].number]


def show(name: str, layer: int, heads: list[Head], kept: list[int]) -> None:
    """Print a row for each head of a layer."""
    print(f"{name}, layer {layer}   logits: deviation   largest   weight on first key")
    for head in heads:
        mark = "  kept" if head.number in kept else ""
        print(f"  head {head.number:2d} {head.deviation:19.2f} {head.largest:9.2f} {head.first:21.3f}{mark}")


def write(out: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write the file; ends the program with a line if that fails."""
    content = safetensors.torch.save(tensors, metadata)
    try:
        files.write_atomically(out, content)
    except OSError as error:
        sys.exit(f"capture: can't write {paths.shown(out)}: {error.strerror}")
    print(f"wrote {paths.shown(out)}, {len(content) / 1e6:.1f} MB")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("capture", description="Q, K and V of a small model that is trained here.")
    present = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=present, help="cpu or cuda; %(default)s if not given")
    bounds = parser.add_mutually_exclusive_group()
    bounds.add_argument("--minutes", type=_positive, default=3.0, help="when training stops; %(default)s if not given")
    bounds.add_argument("--steps", type=_at_least_1, help="instead, after how many steps it stops")
    parser.add_argument("--out", type=Path, default=OUT, help="the file; %(default)s if not given")
    parser.add_argument("--save", type=Path, help="a folder that the model itself is saved in")
    parser.add_argument("--layers", type=_at_least_2, default=8, help="%(default)s if not given")
    parser.add_argument("--width", type=_width, default=512, help="%(default)s if not given")
    parser.add_argument(
        "--context", type=_at_least_2, default=2048, help="bytes in the passage; %(default)s if not given"
    )
    return parser


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"takes a number above 0, not {text!r}")


def _at_least_1(text: str) -> int:
    return _whole(text, 1)


def _at_least_2(text: str) -> int:
    return _whole(text, 2)


def _width(text: str) -> int:
    return _whole(text, 2 * HEAD_DIM, HEAD_DIM)


def _whole(text: str, least: int, divisor: int = 1) -> int:
    """Parse a whole number of at least `least` that is a multiple of `divisor`."""
    with suppress(ValueError):
        value = int(text)
        if value >= least and value % divisor == 0:
            return value
    kind = "a whole number" if divisor == 1 else f"a multiple of {divisor}"
    raise argparse.ArgumentTypeError(f"takes {kind} from {least}, not {text!r}")


if __name__ == "__main__":
    main()
