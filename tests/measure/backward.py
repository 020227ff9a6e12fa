"""A model of kernels/backward.cuh: the tile of each task at each step, and the order of additions to dQ."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

KEYS, PAUSE = 128, 2
Tile = tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """A problem, as in `Gradients` and `Schedule`: `heads` of K and V over all batches, on `grid` CTAs."""

    heads: int
    group: int
    queries: int
    keys: int
    causal: bool
    paired: bool
    grid: int
    rows: int = 64
    whole: bool = False  # whether a CTA takes all tasks of a head, one after the other

    @property
    def tiles(self) -> int:
        return -(-self.queries // self.rows)

    @property
    def blocks(self) -> int:
        return -(-self.keys // KEYS)

    @property
    def tasks(self) -> int:
        return -(-self.blocks // 2) if self.paired else self.blocks

    def first_tile(self, block: int) -> int:
        return max(0, KEYS * block - (self.keys - self.queries)) // self.rows if self.causal else 0

    def steps(self, task: int) -> Iterator[tuple[int, int, int]]:
        """The block, the query head in its group, and the tile of each step of a task, as `prepare` writes them."""
        head, member = divmod(task, self.tasks)
        if not self.causal:
            begin = head * self.tasks
            first = (begin + member) // self.grid * self.grid
            least, most = max(begin, first), min(begin + self.tasks, first + self.grid)
            if self.whole:
                least, most = task, task + 1
            count = self.group * self.tiles
            offset = (begin + member - least) * count // (most - least)
            for step in range(count):
                yield member, *divmod((offset + step) % count, self.tiles)
            return
        short = self.blocks - 1 - member
        for block in ([short] if self.paired and short != member else []) + [member]:
            first = pivot = self.first_tile(block)
            if self.paired and block == member:  # up from the first tile that a short block sees, then down
                pivot = min(self.tiles, self.first_tile((self.blocks + 1) // 2))
            tiles = [*range(pivot, self.tiles), *range(pivot - 1, first - 1, -1)]
            for of_group in range(self.group):
                for tile in tiles:
                    yield block, of_group, tile

    def of_cta(self, cta: int) -> list[int]:
        """The tasks of a CTA, in its order."""
        if not self.whole:
            return list(range(cta, self.heads * self.tasks, self.grid))
        return [h * self.tasks + member for h in range(cta, self.heads, self.grid) for member in range(self.tasks)]

    @cached_property
    def turns(self) -> dict[tuple[int, int], tuple[Tile, int]]:
        """For each task and step: the tile, and the number of earlier additions to this tile."""
        visits: dict[Tile, list[tuple[int, int, int, int]]] = defaultdict(list)
        for task in range(self.heads * self.tasks):
            first_block = None
            for step, (block, of_group, tile) in enumerate(self.steps(task)):
                first_block = block if first_block is None else first_block
                time = step + (PAUSE if block != first_block else 0)
                tie = task if self.causal else -task
                round_ = task if self.whole else task // self.grid
                visits[task // self.tasks, of_group, tile].append((round_, time, tie, task, step))
        return {
            (task, step): (tile, turn)
            for tile, each in visits.items()
            for turn, (*_, task, step) in enumerate(sorted(each))
        }
