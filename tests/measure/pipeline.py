"""A model of kernels/jobs.cuh: its ring of tiles, barriers and dealing, run by agents that take steps in random order.

What TMA brings comes late and out of order, within a delay that is drawn at random. Each agent is a generator that
yields wherever a thread may be held up. The model knows which tile every slot holds, which the GPU does not say.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

from attnlab.measure.subjects import problem

MOST_STEPS = 400_000
Agent = Iterator[None]


class Wrong(Exception):
    """A consumer found another tile than its own, or everybody waits for good."""


@dataclass(frozen=True)
class Plan:
    """An instance and its problem, as `Plan`, `Problem` and `Deal` hold them; the CTA is one of `grid`."""

    keys_of_a_tile: int
    slots: int
    consumers: int
    turns: bool
    per_pass: int
    causal: bool = False
    blocks: int = 1
    heads: int = 1
    earlier: int = 0
    section: int = 1
    grid: int = 1
    cta: int = 0

    @property
    def groups(self) -> int:
        """Passes of a head."""
        return ceil(self.blocks / self.per_pass)

    @property
    def skips(self) -> bool:
        """Whether a consumer may have less to do in a pass than another."""
        return self.causal or self.per_pass < self.consumers or bool(self.blocks % self.per_pass)

    @property
    def whole(self) -> int:
        """Passes that a CTA takes whole: those of the last round may be shared out."""
        passes = self.groups * self.heads
        return passes if self.causal else passes - passes % self.grid

    @property
    def shares(self) -> int:
        """Shares of each pass of the last round."""
        return 1 if self.causal else problem.shares(self.groups * self.heads, self.grid, self.per_pass)

    def passes(self) -> Iterator[tuple[int, int, int]]:
        """Head, first and last block of each pass of the CTA, or of its share of one, which may have no block."""
        count = self.whole + (self.groups * self.heads - self.whole) * self.shares
        step = problem.step(self.groups * self.heads, self.grid)
        for turn in range(count):
            fro = self.grid - 1 - self.cta if turn % 2 else self.cta
            at = turn * self.grid + (fro if self.causal else (self.cta + turn * step) % self.grid)
            if at >= count:
                return
            yield self._place(at)

    def jobs(self) -> Iterator[tuple[int, int]]:
        """Head and block of each job of the CTA, pass by pass."""
        for head, first, last in self.passes():
            yield from ((head, block) for block in range(max(first, 0), last + 1))

    def tiles(self, block: int) -> int:
        """The tiles that a block sees."""
        keys = self.earlier + 64 * (block + 1 if self.causal else self.blocks)
        return ceil(keys / self.keys_of_a_tile)

    def rounds(self, first: int, last: int) -> int:
        """The tiles that a pass needs."""
        return 0 if first > last else self.tiles(last)

    def users(self, tile: int, first: int, last: int) -> int:
        """How many blocks of a pass see a tile."""
        begin = max(first, 0, self.keys_of_a_tile * tile - self.earlier >> 6) if self.causal else first
        return last + 1 - begin

    def block(self, first: int, last: int, index: int) -> int | None:
        """The block of a job of a pass; None if there is no such job."""
        around = index // self.consumers
        order = (2 * around + 1) * self.consumers - 1 - index if around % 2 else index
        block = first + (self.per_pass - 1 - order if self.causal else index)
        return block if 0 <= block <= last else None

    def following(self, index: int) -> int:
        """The first job of a consumer in a pass, from the one after its last in the pass before."""
        to_and_fro = self.causal and self.per_pass == self.consumers
        return 2 * self.consumers - 1 - index if to_and_fro else index - self.per_pass

    def _place(self, at: int) -> tuple[int, int, int]:
        if not self.causal:
            share, of = 0, 1
            if at >= self.whole:
                passes, share = divmod(at - self.whole, self.shares)
                at, of = self.whole + passes, self.shares
            first = at % self.groups * self.per_pass
            begin, end = (first + self.per_pass * number // of for number in (share, share + 1))
            return at // self.groups, begin, min(end, self.blocks) - 1
        begin, index = at // (self.section * self.groups) * self.section, at % (self.section * self.groups)
        there = min(self.section, self.heads - begin)
        first = (self.groups - 1 - index // there) * self.per_pass + self.blocks - self.groups * self.per_pass
        return begin + index % there, first, first + self.per_pass - 1


@dataclass
class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes have come. `wait` knows phases by parity alone."""

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
    """What a dealer writes for a consumer; without tiles, the end."""

    tiles: int
    turns: int
    apart: bool
    head: int = 0
    block: int = 0
    place: int = 0
    number: int = 0


@dataclass
class Cta:
    """A CTA at work.

    Args:
        delay: the most steps in which a tile comes.
        begin_pass: whether a pass waits until all earlier tiles have come, as `begin_pass` in jobs.cuh does.
    """

    plan: Plan
    random: random.Random
    delay: int
    begin_pass: bool = True
    computed: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, two = self.plan, range(2)
        self.full = [[Barrier(1) for _ in two] for _ in range(plan.slots)]
        self.empty = [[Barrier(plan.per_pass) for _ in two] for _ in range(plan.slots)]
        self.query_full = [[Barrier(1) for _ in two] for _ in range(plan.consumers)]
        self.query_empty = [[Barrier(1) for _ in two] for _ in range(plan.consumers)]
        self.held: list[list[Any]] = [[None, None] for _ in range(plan.slots)]
        self.jobs: list[list[Job | None]] = [[None, None] for _ in range(plan.consumers)]
        self.may_turn = [0] * plan.consumers
        self.passes_begun = 0 if plan.skips else MOST_STEPS
        self.coming: list[tuple[int, Callable[[], None]]] = []
        self.step = 0

    def run(self) -> None:
        """Let all agents take steps until they are done.

        Raises:
            Wrong: a consumer took another tile for its own, or nobody gets on.
        """
        roles = [self._produce(), *map(self._deal, self._all()), *map(self._consume, self._all())]
        pace = {id(agent): self.random.choice((1, 1, 1, 3)) for agent in roles}
        while roles:
            agent = self.random.choice(roles)
            if any(next(agent, "over") for _ in range(pace[id(agent)])):
                roles.remove(agent)
            self._let_come()

    def _all(self) -> range:
        return range(self.plan.consumers)

    def _let_come(self) -> None:
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
        plan, at = self.plan, 0
        for turn, (head, first, last) in enumerate(plan.passes()):
            for tile in range(plan.rounds(first, last)):
                slot, parity = at % plan.slots, at // plan.slots % 2
                for i in range(2):
                    yield from self.empty[slot][i].wait(1 - parity)
                    self._load(self.full[slot][i], partial(self.held[slot].__setitem__, i, (head, tile)))
                    if away := plan.per_pass - plan.users(tile, first, last):
                        self.empty[slot][i].arrive(away)
                    if plan.skips and tile + i == 0:
                        yield from self._begin(slot, parity)
                        self.passes_begun = turn + 1
                    yield
                at += 1

    def _begin(self, own: int, parity: int) -> Agent:
        for slot in range(self.plan.slots) if self.begin_pass else ():
            before = parity ^ (slot >= own)
            if slot != own:
                yield from self.full[slot][0].wait(before)
            yield from self.full[slot][1].wait(before)

    def _deal(self, consumer: int) -> Agent:
        plan, index, turns, count, since, at = self.plan, consumer, 0, 0, 0, 0
        for number, (head, first, last) in enumerate(plan.passes()):
            rounds = plan.rounds(first, last)
            while index < plan.per_pass:
                block = plan.block(first, last, index)
                tiles = 0 if block is None else plan.tiles(block)
                if block is not None:
                    apart = since >= plan.slots or turns + 2 > plan.slots
                    job = Job(tiles, turns, apart, head, block, at, number)
                    yield from self.query_empty[consumer][count % 2].wait(1 - count // 2 % 2)
                    self.jobs[consumer][count % 2] = job
                    self._load(self.query_full[consumer][count % 2], lambda: None)
                    since, turns, count = 1 - tiles, 0, count + 1
                    yield
                turns += rounds - tiles
                index += plan.consumers
            index, since, at = plan.following(index), since + rounds, at + rounds
        yield from self.query_empty[consumer][count % 2].wait(1 - count // 2 % 2)
        self.jobs[consumer][count % 2] = Job(0, turns, True)
        self.query_full[consumer][count % 2].arrive()

    def _consume(self, consumer: int) -> Agent:
        count, stored = 0, None
        if self.plan.turns and consumer == self.plan.consumers - 1:
            self._pass_turn(consumer)
        yield from self.query_full[consumer][0].wait(0)
        job = yield from self._begin_job(consumer, count)
        if not job.tiles:
            return
        tile = 0
        yield from self._take_turn(consumer)
        yield from self._wait_for(job, 0, 0)
        self._pass_turn(consumer)
        yield
        self._release(job, 0, 0)
        while True:
            before, last, over = job, tile, tile + 1 == job.tiles
            apart = False
            if over:
                stored = self._refill(consumer, stored)
                count += 1
                yield from self.query_full[consumer][count % 2].wait(count // 2 % 2)
                found = self.jobs[consumer][count % 2]
                assert found is not None
                apart = found.apart
                if apart:
                    yield from self._wait_for(before, last, 1)
                    yield
                    self._release(before, last, 1)
                    stored = self._finalise(before, count)
                job = yield from self._begin_job(consumer, count)
                if not job.tiles:
                    return
                tile = 0
            else:
                tile += 1
            yield from self._take_turn(consumer)
            yield from self._wait_for(job, tile, 0)
            if not apart:
                yield from self._wait_for(before, last, 1)
            self._pass_turn(consumer)
            stored = self._refill(consumer, stored)
            for _ in range(self.random.randrange(3)):
                yield
            self._release(job, tile, 0)
            if not apart:
                self._release(before, last, 1)
            if over and not apart:
                stored = self._finalise(before, count)
            yield

    def _begin_job(self, consumer: int, count: int) -> Any:
        job = self.jobs[consumer][count % 2]
        assert job is not None
        for _ in range(job.turns if self.plan.turns else 0):
            yield from self._take_turn(consumer)
            self._pass_turn(consumer)
        while job.tiles and self.passes_begun <= job.number:
            yield
        return job

    def _refill(self, consumer: int, stored: int | None) -> None:
        if stored is not None:
            self.query_empty[consumer][stored].arrive()

    def _finalise(self, job: Job, count: int) -> int:
        self.computed.append((job.head, job.block))
        return (count - 1) % 2

    def _wait_for(self, job: Job, tile: int, i: int) -> Agent:
        at = job.place + tile
        slot = at % self.plan.slots
        yield from self.full[slot][i].wait(at // self.plan.slots % 2)
        if self.held[slot][i] != (job.head, tile):
            raise Wrong(f"tile {tile} of head {job.head} was taken to be there, and {self.held[slot][i]} was")

    def _release(self, job: Job, tile: int, i: int) -> None:
        self.empty[(job.place + tile) % self.plan.slots][i].arrive()

    def _take_turn(self, consumer: int) -> Agent:
        if self.plan.turns:
            while not self.may_turn[consumer]:
                yield
            self.may_turn[consumer] -= 1

    def _pass_turn(self, consumer: int) -> None:
        if self.plan.turns:
            self.may_turn[(consumer + 1) % self.plan.consumers] += 1
