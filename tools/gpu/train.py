"""Train a small causal transformer with SDPA and with attnlab.attend: a minute on an H200, and no run.

``PYTHONPATH=lib python3 tools/gpu/train.py`` prints the losses of 200 steps for D = 64 and 128 in columns, and their
mean distance from SDPA's. It also prints the median latency of a step by CUDA events. All runs see the same tokens. 2
more runs of SDPA have other initial weights: by another seed, and larger by 2^-9, a rounding to bfloat16.
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnlab
from attnlab.measuring.subjects.sdpa import sdpa

LAYERS, WIDTH, LENGTH, BATCH, TOKENS = 6, 768, 1024, 16, 256
GPU = torch.device("cuda")
STEPS, EVERY = 200, 20
"""The steps of a run, and the number of steps over which a printed loss is averaged."""
Run = tuple[list[float], list[float]]
Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


class Block(nn.Module):
    """Attention and a feed-forward layer, each after normalization."""

    def __init__(self, head_dim: int, attention: Attention) -> None:
        super().__init__()
        self.head_dim, self.attention = head_dim, attention
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(2, (3, -1, self.head_dim)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v, True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class Model(nn.Module):
    """A model from bytes to logits of the next bytes."""

    def __init__(self, head_dim: int, attention: Attention) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(head_dim, attention) for _ in range(LAYERS)))
        self.last, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.logits(self.last(self.blocks(x)))


def text() -> Tensor:
    """The bytes of this project's sources and pages."""
    root = Path(__file__).resolve().parents[2]
    files = sorted(path for suffix in ("py", "md", "cu", "cuh") for path in root.glob(f"[dkltn]*/**/*.{suffix}"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def train(attention: Attention, head_dim: int, seed: int = 0, larger: float = 0.0) -> Run:
    """The loss and the ms of each step. `larger` is the share by which the seed's initial weights are scaled up."""
    torch.manual_seed(seed)
    model, every = Model(head_dim, attention).to(GPU), text().to(GPU)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + larger)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    draws = torch.Generator().manual_seed(1)
    losses, events = [], []
    for _ in range(STEPS):
        begins = torch.randint(len(every) - LENGTH - 1, (BATCH, 1), generator=draws)
        tokens = every[(begins + torch.arange(LENGTH + 1)).to(GPU)].long()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        losses.append(loss.detach())
        events.append((begin, end))
    found = torch.stack(losses).tolist()
    return found, [begin.elapsed_time(end) for begin, end in events]


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("train: torch sees no NVIDIA GPU here")
    print(torch.cuda.get_device_name(), f"{LAYERS} layers, {BATCH} x {LENGTH} bytes")
    for head_dim in (64, 128):
        runs = {
            "SDPA": train(sdpa, head_dim),
            "other weights": train(sdpa, head_dim, larger=2**-9),
            "other seed": train(sdpa, head_dim, seed=1),
            "attend": train(attnlab.attend, head_dim),
        }
        print(f"\nD = {head_dim}\n{'steps':>9} {' '.join(f'{name:>13}' for name in runs)}")
        for first in range(0, STEPS, EVERY):
            means = [statistics.mean(losses[first : first + EVERY]) for losses, _ in runs.values()]
            print(f"{first:4}-{first + EVERY - 1:4} {' '.join(f'{mean:13.4f}' for mean in means)}")
        apart = (statistics.mean(map(abs, map(float.__sub__, runs["SDPA"][0], losses))) for losses, _ in runs.values())
        print(f" distance {' '.join(f'{each:13.5f}' for each in apart)}")
        took = [statistics.median(times[len(times) // 4 :]) for _, times in runs.values()]
        print(
            f"ms a step {' '.join(f'{each:13.2f}' for each in took)}\nSDPA over attend {took[0] / took[-1]:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
