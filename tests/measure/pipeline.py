"""A model of kernels/jobs.cuh and 15_ragged.cu: pipeline, barriers and tile schedulers, run by agents in random order.

TMA loads arrive out of order, after a random delay. Each agent is a generator that yields wherever a thread may wait.
The model knows the tile in every stage, which a GPU doesn't report.
"""

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import ceil
from typing import Any

from attnlab.measuring.kernels import problem

MOST_STEPS = 400_000
Agent = Iterator[None]


class Wrong(Exception):
    """A consumer found another tile than its own, or all agents are deadlocked."""


@dataclass(frozen=True)
class Plan:
    """An instance and its problem, with the fields of `Plan`, `Problem` and `TileScheduler`; `cta` of `grid` CTAs."""

    keys: int
    stages: int
    consumers: int
    ping_pong: bool
    jobs_per_pass: int
    buffers: int
    causal: bool = False
    blocks: int = 1
    heads: int = 1
    earlier: int = 0
    section: int = 1
    grid: int = 1
    cta: int = 0
    whole_first: bool = False

    @property
    def passes_per_head(self) -> int:
        """The number of passes of a head."""
        return ceil(self.blocks / self.jobs_per_pass)

    @property
    def skips(self) -> bool:
        """Whether a consumer may have fewer tiles in a pass than another."""
        return self.causal or self.jobs_per_pass < self.consumers or bool(self.blocks % self.jobs_per_pass)

    @property
    def whole(self) -> int:
        """The number of passes that aren't split: without a mask, passes of an incomplete last round are."""
        passes = self.passes_per_head * self.heads
        return passes if self.causal else passes - passes % self.grid

    @property
    def shares(self) -> int:
        """The number of shares of each pass of the last round."""
        return 1 if self.causal else problem.shares(self.passes_per_head * self.heads, self.grid, self.jobs_per_pass)

    def passes(self) -> Iterator[tuple[int, int, int]]:
        """The head, first and last block of each pass of the CTA, or share of a pass. A share may have no block."""
        count = self.whole + (self.passes_per_head * self.heads - self.whole) * self.shares
        step = problem.step(self.passes_per_head * self.heads, self.grid)
        for round_ in range(count):
            fro = self.grid - 1 - self.cta if round_ % 2 else self.cta
            index = round_ * self.grid + (fro if self.causal else (self.cta + round_ * step) % self.grid)
            if index >= count:
                return
            yield self._work_tile(index)

    def jobs(self) -> Iterator[tuple[int, int]]:
        """The head and block of each job of the CTA, pass by pass."""
        for head, first, last in self.passes():
            yield from ((head, block) for block in range(max(first, 0), last + 1))

    def tiles(self, block: int) -> int:
        """The number of tiles of keys that a block of queries sees."""
        keys = self.earlier + 64 * (block + 1 if self.causal else self.blocks)
        return ceil(keys / self.keys)

    def pass_tiles(self, first: int, last: int) -> int:
        """The number of tiles that a pass loads."""
        return 0 if first > last else self.tiles(last)

    def order(self, first: int, last: int) -> list[int]:
        """The tiles of a pass, in the order in which they are loaded."""
        seen = self.earlier + 64 * max(first, 0) + 1 if self.causal else self.earlier + 64 * self.blocks
        return in_order(self.pass_tiles(first, last), seen // self.keys - 1 if self.whole_first else 0)

    def users(self, tile: int, first: int, last: int) -> int:
        """The number of blocks of a pass that see a tile."""
        begin = max(first, 0, self.keys * tile - self.earlier >> 6) if self.causal else first
        return last + 1 - begin

    def block(self, first: int, last: int, index: int) -> int | None:
        """The block of the job with this index in a pass; None if there is no such job."""
        around = index // self.consumers
        order = (2 * around + 1) * self.consumers - 1 - index if around % 2 else index
        block = first + (self.jobs_per_pass - 1 - order if self.causal else index)
        return block if 0 <= block <= last else None

    def following(self, index: int) -> int:
        """The index of a consumer's first job in the next pass; `index` is the one after its last in this pass."""
        to_and_fro = self.causal and self.jobs_per_pass == self.consumers
        return 2 * self.consumers - 1 - index if to_and_fro else index - self.jobs_per_pass

    def _work_tile(self, index: int) -> tuple[int, int, int]:
        if not self.causal:
            share, of = 0, 1
            if index >= self.whole:
                passes, share = divmod(index - self.whole, self.shares)
                index, of = self.whole + passes, self.shares
            head, group = divmod(index, self.passes_per_head)
            first = group * self.jobs_per_pass
            begin, end = (first + self.jobs_per_pass * number // of for number in (share, share + 1))
            return head, begin, min(end, self.blocks) - 1
        section, index = divmod(index, self.section * self.passes_per_head)
        begin = section * self.section
        group, head = divmod(index, min(self.section, self.heads - begin))
        first = self.blocks - (group + 1) * self.jobs_per_pass
        return begin + head, first, first + self.jobs_per_pass - 1


def in_order(tiles: int, begin: int) -> list[int]:
    """Tile `begin`, and the others in their order."""
    return sorted(range(tiles), key=lambda tile: (tile != begin, tile))


@dataclass
class Barrier:
    """An mbarrier: a phase ends when all threads and all bytes have arrived. `wait` takes only a phase's parity."""

    expected: int
    phase: int = 0
    coming: int = 0
    arrived: int = 0

    def arrive(self, count: int = 1) -> None:
        self.arrived += count
        if self.arrived > self.expected:
            raise Wrong("more arrive at a barrier than it waits for")
        self._end()

    def expect(self) -> None:
        self.coming += 1
        self.arrive()

    def come(self) -> None:
        self.coming -= 1
        self._end()

    def wait(self, parity: int) -> Agent:
        while self.phase % 2 == parity:
            yield

    def _end(self) -> None:
        if self.arrived == self.expected and not self.coming:
            self.phase, self.arrived = self.phase + 1, 0


@dataclass
class Job:
    """A job that is scheduled for a consumer; one without tiles ends its work."""

    tiles: int
    idle_turns: int
    drains: bool
    head: Any = 0
    block: Any = 0
    position: int = 0
    number: int = 0
    order: list[int] = field(default_factory=list)


@dataclass
class Cta:
    """The state of a running CTA.

    Args:
        delay: the most steps until a tile arrives.
        begin_pass: whether a pass waits until all earlier tiles have arrived, as `begin_pass` in jobs.cuh does.
    """

    plan: Plan
    random: random.Random
    delay: int
    begin_pass: bool = True
    computed: list[tuple[Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, two, buffers = self.plan, range(2), range(self.plan.buffers)
        self.full = [[Barrier(1) for _ in two] for _ in range(plan.stages)]
        self.empty = [[Barrier(plan.jobs_per_pass) for _ in two] for _ in range(plan.stages)]
        self.query_full = [[Barrier(1) for _ in buffers] for _ in range(plan.consumers)]
        self.query_empty = [[Barrier(1) for _ in buffers] for _ in range(plan.consumers)]
        self.held: list[list[Any]] = [[None, None] for _ in range(plan.stages)]
        self.jobs: list[list[Job | None]] = [[None for _ in buffers] for _ in range(plan.consumers)]
        self.may_issue = [0] * plan.consumers
        self.passes_begun = 0 if plan.skips else MOST_STEPS
        self.coming: list[tuple[int, Callable[[], None]]] = []
        self.step = 0

    def run(self) -> None:
        """Let all agents take steps until they are done.

        Raises:
            Wrong: a consumer took another tile for its own, or all agents are deadlocked.
        """
        run([self])

    def agents(self) -> list[Agent]:
        """The agents of the CTA: its producer, and a scheduler and a consumer for each consumer warpgroup."""
        return [self._produce(), *map(self._schedule, self._all()), *map(self._consume, self._all())]

    def _all(self) -> range:
        return range(self.plan.consumers)

    def let_come(self) -> None:
        """Advance by a step, and deliver the loads that are due."""
        self.step += 1
        if self.step > MOST_STEPS:
            raise Wrong(f"all wait for good, after {len(self.computed)} jobs")
        for due, come in [one for one in self.coming if one[0] <= self.step]:
            self.coming.remove((due, come))
            come()

    def _load(self, barrier: Barrier, kept: Callable[[], None]) -> None:
        barrier.expect()
        self.coming.append((self.step + self.random.randint(1, self.delay), lambda: (kept(), barrier.come())))

    def _produce(self) -> Agent:
        plan, position = self.plan, 0
        for number, (head, first, last) in enumerate(plan.passes()):
            for place, tile in enumerate(plan.order(first, last)):
                stage, parity = position % plan.stages, position // plan.stages % 2
                for i in range(2):
                    yield from self.empty[stage][i].wait(1 - parity)
                    self._load(self.full[stage][i], partial(self.held[stage].__setitem__, i, (head, tile)))
                    if away := plan.jobs_per_pass - plan.users(tile, first, last):
                        self.empty[stage][i].arrive(away)
                    if plan.skips and place + i == 0:
                        yield from self._begin(stage, parity)
                        self.passes_begun = number + 1
                    yield
                position += 1

    def _begin(self, own: int, parity: int) -> Agent:
        for stage in range(self.plan.stages) if self.begin_pass else ():
            before = parity ^ (stage >= own)
            if stage != own:
                yield from self.full[stage][0].wait(before)
            yield from self.full[stage][1].wait(before)

    def _schedule(self, consumer: int) -> Agent:
        plan, index, idle_turns, count, tiles_since, position = self.plan, consumer, 0, 0, 0, 0
        for number, (head, first, last) in enumerate(plan.passes()):
            pass_tiles = plan.pass_tiles(first, last)
            while index < plan.jobs_per_pass:
                block = plan.block(first, last, index)
                tiles = 0 if block is None else plan.tiles(block)
                if block is not None:
                    drains = tiles_since >= plan.stages or idle_turns + 2 > plan.stages
                    job = Job(tiles, idle_turns, drains, head, block, position, number, plan.order(first, last)[:tiles])
                    buffer = yield from self._place(consumer, count, job)
                    self._load(self.query_full[consumer][buffer], lambda: None)
                    tiles_since, idle_turns, count = 1 - tiles, 0, count + 1
                    yield
                idle_turns += pass_tiles - tiles
                index += plan.consumers
            index = plan.following(index)
            tiles_since, position = tiles_since + pass_tiles, position + pass_tiles
        buffer = yield from self._place(consumer, count, Job(0, idle_turns, True))
        self.query_full[consumer][buffer].arrive()

    def _place(self, consumer: int, count: int, job: Job) -> Generator[None, None, int]:
        """Store a consumer's job number `count` in its Q buffer, once that is free; returns the buffer."""
        buffer, parity = count % self.plan.buffers, count // self.plan.buffers % 2
        yield from self.query_empty[consumer][buffer].wait(1 - parity)
        self.jobs[consumer][buffer] = job
        return buffer

    def _consume(self, consumer: int) -> Agent:
        count, storing = 0, None
        if self.plan.ping_pong and consumer == self.plan.consumers - 1:
            self._ping_pong_signal(consumer)
        job = yield from self._first_tile(consumer, count)
        tile = 0
        while job.tiles:
            before, last, ends = job, tile, tile + 1 == job.tiles
            drains = False
            if ends and self.plan.buffers == 1:
                storing = yield from self._drain(consumer, job, tile, count)
                storing = self._release_query(consumer, storing)
                count, tile = count + 1, 0
                job = yield from self._first_tile(consumer, count)
                continue
            if ends:
                storing = self._release_query(consumer, storing)
                count += 1
                yield from self.query_full[consumer][count % 2].wait(count // 2 % 2)
                drains = self._scheduled(consumer, count).drains
                if drains:
                    storing = yield from self._drain(consumer, before, last, count - 1)
                job = yield from self._begin_job(consumer, count)
                if not job.tiles:
                    return
                tile = 0
            else:
                tile += 1
            yield from self._ping_pong_wait(consumer)
            yield from self._wait_for(job, tile, 0)
            if not drains:
                yield from self._wait_for(before, last, 1)
            self._ping_pong_signal(consumer)
            storing = self._release_query(consumer, storing)
            for _ in range(self.random.randrange(3)):
                yield
            self._release(job, tile, 0)
            if not drains:
                self._release(before, last, 1)
            if ends and not drains:
                storing = self._store_out(consumer, before, count - 1)
            yield

    def _first_tile(self, consumer: int, count: int) -> Any:
        buffers = self.plan.buffers
        yield from self.query_full[consumer][count % buffers].wait(count // buffers % 2)
        job = yield from self._begin_job(consumer, count)
        if job.tiles:
            yield from self._ping_pong_wait(consumer)
            yield from self._wait_for(job, 0, 0)
            self._ping_pong_signal(consumer)
            yield
            self._release(job, 0, 0)
        return job

    def _drain(self, consumer: int, job: Job, tile: int, count: int) -> Any:
        yield from self._wait_for(job, tile, 1)
        yield
        self._release(job, tile, 1)
        return self._store_out(consumer, job, count)

    def _scheduled(self, consumer: int, count: int) -> Job:
        job = self.jobs[consumer][count % self.plan.buffers]
        assert job is not None
        return job

    def _begin_job(self, consumer: int, count: int) -> Any:
        job = self._scheduled(consumer, count)
        for _ in range(job.idle_turns if self.plan.ping_pong else 0):
            yield from self._ping_pong_wait(consumer)
            self._ping_pong_signal(consumer)
        while job.tiles and self.passes_begun <= job.number:
            yield
        return job

    def _release_query(self, consumer: int, storing: int | None) -> None:
        if storing is not None:
            self.query_empty[consumer][storing].arrive()

    def _store_out(self, consumer: int, job: Job, count: int) -> int:
        if self._scheduled(consumer, count) is not job:
            raise Wrong("the memory of O is another job's")
        self.computed.append((job.head, job.block))
        return count % self.plan.buffers

    def _wait_for(self, job: Job, tile: int, i: int) -> Agent:
        position = job.position + tile
        stage = position % self.plan.stages
        yield from self.full[stage][i].wait(position // self.plan.stages % 2)
        own = job.head, job.order[tile]
        if self.held[stage][i] != own:
            raise Wrong(f"tile {own[1]} of head {own[0]} was taken to be there, and {self.held[stage][i]} was")

    def _release(self, job: Job, tile: int, i: int) -> None:
        self.empty[(job.position + tile) % self.plan.stages][i].arrive()

    def _ping_pong_wait(self, consumer: int) -> Agent:
        if self.plan.ping_pong:
            while not self.may_issue[consumer]:
                yield
            self.may_issue[consumer] -= 1

    def _ping_pong_signal(self, consumer: int) -> None:
        if self.plan.ping_pong:
            self.may_issue[(consumer + 1) % self.plan.consumers] += 1


def run(ctas: list[Cta]) -> None:
    """Let all agents of these CTAs take steps until they are done; raises as `Cta.run`."""
    some = ctas[0].random
    roles = [(cta, agent, some.choice((1, 1, 1, 3))) for cta in ctas for agent in cta.agents()]
    while roles:
        role = cta, agent, pace = some.choice(roles)
        if any(next(agent, "over") for _ in range(pace)):
            roles.remove(role)
        cta.let_come()


# Sequences of unlike lengths


@dataclass(frozen=True)
class Pass:
    """A pass in the list of 15_ragged.cu; with `member` -1, its blocks are the query heads of a head of K and V."""

    sequence: int
    queries: int
    keys: int
    first: int
    last: int
    member: int

    @property
    def begin(self) -> int:
        """The first block of the pass."""
        return max(self.first, 0)

    @property
    def blocks(self) -> int:
        """The number of blocks of the pass."""
        return self.last + 1 - self.begin

    @property
    def earlier(self) -> int:
        """The number of keys before those of the first block's own queries; all keys if `member` is -1."""
        return self.keys if self.member < 0 else self.keys - self.queries

    def tiles(self, block: int, plan: Plan) -> int:
        """The number of tiles that a block sees, at least 1, which may be fully masked."""
        keys = min(self.keys, self.earlier + 64 * (block + 1)) if plan.causal else self.keys
        return max(ceil(keys / plan.keys), 1)

    def order(self, plan: Plan) -> list[int]:
        """The tiles of the pass, in the order in which they are loaded."""
        seen = self.keys - self.queries + (0 if self.member < 0 else 64 * self.begin) + 1 if plan.causal else self.keys
        return in_order(self.tiles(self.last, plan), max(seen // plan.keys - 1, 0))

    def users(self, tile: int, plan: Plan) -> int:
        """The number of blocks of the pass that see a tile."""
        sees = self.begin if not plan.causal or not tile else max(self.begin, plan.keys * tile - self.earlier >> 6)
        return self.last + 1 - sees

    def job(self, block: int, kv_head: int, sharing: int) -> tuple[int, int, int]:
        """The sequence, the head of Q and the first row of a block."""
        head = block if self.member < 0 else self.member
        return self.sequence, kv_head * sharing + head, 0 if self.member < 0 else 64 * block


def listed(lengths: list[tuple[int, int]], plan: Plan, sharing: int) -> list[Pass]:
    """The passes of sequences with these lengths (queries, keys), those that take longest first."""
    parts, each = [], plan.jobs_per_pass
    for sequence, (queries, keys) in enumerate(lengths):
        joined = queries <= 64 and sharing > 1
        blocks = sharing if joined else ceil(queries / 64)
        members = (-1,) if joined else range(sharing)
        firsts = range(blocks - each, -each, -each) if plan.causal else range(0, blocks, each)
        made = [
            Pass(sequence, queries, keys, first, min(first + each, blocks) - 1, member)
            for first in (firsts if queries else ())
            for member in members
        ]
        whole = [one for one in made if plan.causal or one.blocks == each]
        for part in filter(None, (whole, made[len(whole) :])):
            parts.append((ceil(keys / plan.keys) * (1 + part[0].blocks), part))
    return [one for _, part in sorted(parts, key=lambda its: -its[0]) for one in part]


@dataclass
class RaggedCta(Cta):
    """A CTA of 15_ragged.cu, which takes its next pass from a list that all CTAs share.

    Args:
        passes: the list.
        taken: the counter of passes taken by all CTAs.
        slots: the most passes that the CTA may have taken and not yet passed to its consumers.
    """

    passes: list[Pass] = field(default_factory=list)
    kv_heads: int = 1
    sharing: int = 1
    taken: Iterator[int] = field(default_factory=lambda: iter(()))
    slots: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slots = self.slots or self.plan.consumers + 1
        self.passes_begun, self.dealt, self.round, self.open = 0, 0, 0, False
        self.slot: list[tuple[Pass, int] | None] = [None] * self.slots
        self.pass_full = [Barrier(1) for _ in self.slot]
        self.pass_empty = [Barrier(self.plan.consumers) for _ in self.slot]
        self.order = [(one, head) for one in self.passes for head in range(self.kv_heads)]
        if not self.plan.causal:  # the heads of a part follow each other
            parts = groupby(self.passes, key=lambda one: (one.sequence, one.blocks < self.plan.jobs_per_pass))
            every = [list(part) for _, part in parts]
            self.order = [(one, head) for part in every for head in range(self.kv_heads) for one in part]

    def _deal(self, least: int) -> Agent:
        while self.dealt < least or (self.open and self.dealt < self.round + self.slots):
            slot = self.dealt % self.slots
            yield from self.pass_empty[slot].wait(1 - self.dealt // self.slots % 2)
            index = next(self.taken) if self.dealt else self.plan.cta
            self.slot[slot], self.open = None, False
            if index < len(self.order):
                self.slot[slot] = self.order[index]
                self.open = self.order[index][0].blocks < self.plan.consumers
            self.pass_full[slot].arrive()
            self.dealt += 1
            yield

    def _produce(self) -> Agent:
        plan, position = self.plan, 0
        while True:
            yield from self._deal(self.round + 1)
            found = self.slot[self.round % self.slots]
            if found is None:
                return
            one, kv_head = found
            tiles = one.order(plan)
            for place, tile in enumerate(tiles):
                stage, parity = position % plan.stages, position // plan.stages % 2
                for i in range(2):
                    yield from self.empty[stage][i].wait(1 - parity)
                    own = ((one.sequence, kv_head), tile)
                    self._load(self.full[stage][i], partial(self.held[stage].__setitem__, i, own))
                    if away := plan.jobs_per_pass - one.users(tile, plan):
                        self.empty[stage][i].arrive(away)
                    if place + i == 0:
                        yield from self._begin(stage, parity)
                        self.passes_begun = self.round + 1
                    yield
                position += 1
                if place == max(len(tiles) - 3, 0):
                    yield from self._deal(self.round + 2)
            self.round += 1

    def _schedule(self, consumer: int) -> Agent:
        plan, place, turned, position, count, idle_turns, tiles_since = self.plan, consumer, False, 0, 0, 0, 0
        for number in range(MOST_STEPS):
            slot = number % self.slots
            yield from self.pass_full[slot].wait(number // self.slots % 2)
            found = self.slot[slot]
            self.pass_empty[slot].arrive()
            if found is None:
                break
            one, kv_head = found
            order, tiles, pass_tiles = place, 0, one.tiles(one.last, plan)
            if one.blocks == plan.consumers:
                order, turned = plan.consumers - 1 - place if turned else place, not turned
            else:
                place = (place - one.blocks) % plan.consumers
            if order < one.blocks:
                block = one.last - order if plan.causal else one.first + order
                tiles = one.tiles(block, plan)
                drains = tiles_since >= plan.stages or idle_turns + 2 > plan.stages
                job = Job(tiles, idle_turns, drains, (one.sequence, kv_head), one.job(block, kv_head, self.sharing))
                job.position, job.number, job.order = position, number, one.order(plan)[:tiles]
                buffer = yield from self._place(consumer, count, job)
                self._load(self.query_full[consumer][buffer], lambda: None)
                tiles_since, idle_turns, count = 1 - tiles, 0, count + 1
                yield
            idle_turns += pass_tiles - tiles
            tiles_since, position = tiles_since + pass_tiles, position + pass_tiles
        buffer = yield from self._place(consumer, count, Job(0, idle_turns, True))
        self.query_full[consumer][buffer].arrive()


def loads(passes: list[Pass], plan: Plan, kv_heads: int) -> list[int]:
    """The tiles of each CTA, if it takes its next pass when at most 3 tiles of its last pass are left."""
    tiles = [one.tiles(one.last, plan) for one in passes for _ in range(kv_heads)]
    ctas = [(max(its - 3, 0), its, cta) for cta, its in enumerate(tiles[: plan.grid])]
    heapify(ctas)
    for its in tiles[plan.grid :]:
        _, load, cta = heappop(ctas)
        heappush(ctas, (load + max(its - 3, 0), load + its, cta))
    return [load for _, load, _ in ctas]
