"""The executor over a Dask cluster: each worker has a card, and measures one thing at a time on it.

Workers are admitted if they are alike in everything that a run's results may depend on. A card that is free takes the
next piece of the replicates, and its blocks come home shape by shape; only this process writes the run folder. What is
left when a worker is lost or fails goes to another, and a worker that joins takes its part of what waits.
"""

import operator
import pickle
import sys
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import islice
from pkgutil import resolve_name
from typing import Any

import distributed
import torch
from tqdm import tqdm

from attnlab.base.errors import UserError
from attnlab.measuring.cluster import run_sync, scheduling
from attnlab.measuring.cluster.admission import Admission, admission, difference
from attnlab.measuring.cluster.remote import Outcome, Task, answer, carry_out
from attnlab.measuring.session import estimate, record
from attnlab.measuring.session.subject import Job
from attnlab.study.shapes import Shape

LISTEN_S = 0.2
PATIENCE_S = 60.0
"""Without a worker, one is waited for so long: a nanny may be starting it anew."""
TRIES = 2
"""A shape at which so many processes have failed stops the run: it is not the cards that fail."""
Failure = (torch.AcceleratorError, BrokenProcessPool, MemoryError, OSError)
"""What may be the fault of one worker or its card."""
ENTRY = f"{carry_out.__module__}:{carry_out.__name__}"


@dataclass(frozen=True)
class Work:
    """Something to do on one card: a piece of a replicate with its number, or anything else that a run needs once."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    number: int | None = None
    done: Future[Any] = field(default_factory=Future)


@dataclass
class Card:
    """An admitted worker, and what it is doing."""

    address: str
    found: Admission
    begun: tuple[Work, distributed.Future] | None = None

    @property
    def name(self) -> str:
        """The card's own name, which stays when its worker is started again; a CPU has that of its worker."""
        return self.found.card or self.address

    def __str__(self) -> str:
        return f"{self.found.host}, {self.name}"


class Fleet(Executor):
    """The workers of a cluster as an executor.

    Args:
        client: of the cluster.
        wanted: ``auto``, ``cuda`` or ``cpu``.

    Raises:
        UserError: no worker came, or none can measure.
    """

    def __init__(self, client: distributed.Client, wanted: str) -> None:
        self._client, self._wanted = client, wanted
        self._topic = f"attnlab-{uuid.uuid4().hex}"
        client.subscribe_topic(self._topic, self._hear)
        # With results: a future is finished before its result has left a worker, which may be lost in between.
        self._arriving = distributed.as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._cards: dict[str, Card] = {}
        self._refused: set[str] = set()
        self._waiting: list[Work] = []
        self._taken: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._failed: Counter[tuple[int, Shape]] = Counter()
        self._standard: Admission | None = None
        self._lonely_since = time.monotonic()
        while not self._cards:
            self._look_around()
        for card in self._cards.values():
            _say(f"{card}: {self.device['name']}")

    @property
    def device(self) -> dict[str, Any]:
        """The device that the workers measure on, as `devices.describe` describes it."""
        assert self._standard is not None
        return self._standard.device

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Do one thing on one worker, and wait for it."""
        assert not named
        one = Work(work, arguments)
        try:
            deque(self._do([one]), maxlen=0)
        except Exception as error:
            one.done.set_exception(error)
        return one.done

    def map(
        self, work: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Measure replicates in pieces on all cards; anything else, before them, is done as a whole, each on one card.

        It begins when the first result is asked for. The results of whole things come first, as soon as they are there.

        Raises:
            BrokenExecutor: the scheduler or the last worker is lost.
            Outdated, UserError, torch.AcceleratorError, OSError, MemoryError: as what was measured raised it.
        """
        every: list[Any] = list(*iterables)
        jobs = [one for one in every if isinstance(one, Job)]
        whole = [Work(work, (one,)) for one in every if not isinstance(one, Job)]
        cut = scheduling.pieces(jobs, estimate.recorded(jobs[0]), len(self._cards)) if jobs else []
        done = self._do([*whole, *(Work(work, (piece,), number) for number, piece in cut)])
        yield from islice(done, len(whole))
        deque(done, maxlen=0)
        # A stream of requests builds on all shapes of its replicate.
        deque(self._do([Work(work, (replace(job, shapes=()),)) for job in jobs if job.stream]), maxlen=0)
        yield from [None] * len(jobs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Give up what waits and what is on its way."""
        self._waiting = []
        for card in self._cards.values():
            if card.begun:
                card.begun[1].cancel()
                card.begun = None

    def _do(self, works: list[Work]) -> Iterator[Any]:
        """Do these at the same time, as far as there are cards; their values in order, each as soon as it is there."""
        self._waiting = list(works)
        try:
            for work in works:
                while not work.done.done():
                    self._look_around()
                    self._hand_out()
                    self._take_home()
                yield work.done.result()
        except BaseException:
            self.shutdown()
            raise

    def _hand_out(self) -> None:
        for card in [card for card in self._cards.values() if not card.begun]:
            chosen = self._choose(card)
            if chosen is None:
                continue
            work = self._waiting.pop(chosen)
            card.begun = work, self._submit(card.address, work)
            if work.number is not None:
                self._taken[card.name][work.number] += 1
                job: Job = work.arguments[0]
                _say(f"{card}: replicate {job.replicate}, {len(job.shapes)} shape{'s' * (len(job.shapes) != 1)}")

    def _choose(self, card: Card) -> int | None:
        """The index of what a card that is free does next of what waits: what isn't a piece comes first."""
        pieces: list[tuple[int, Job]] = []
        for index, work in enumerate(self._waiting):
            if work.number is None:
                return index
            pieces.append((work.number, work.arguments[0]))
        taken = {other.name: self._taken[other.name] for other in self._cards.values()}
        return scheduling.choose(pieces, card.name, taken)

    def _submit(self, address: str, work: Work) -> distributed.Future:
        packed = pickle.dumps(Task(work.call, work.arguments, run_sync.files(work.arguments[0]), self._topic))
        # Found by the standard library, and packed: the scheduler, which unpickles what it is sent, may lack attnlab.
        found = self._client.submit(resolve_name, ENTRY, workers=[address], pure=False)
        future = self._client.submit(operator.call, found, packed, workers=[address], pure=False)
        self._arriving.add(future)
        return future

    def _hear(self, event: tuple[float, tuple[str, list[tuple[str, bytes]]]]) -> None:
        """Take what a worker has recorded of shapes, while it goes on; all of it comes again with the result."""
        run, blocks = event[1]
        run_sync.take(run, dict(blocks))

    def _take_home(self) -> None:
        if not self._arriving.has_ready():
            time.sleep(LISTEN_S)
        for future, result in self._arriving.next_batch(block=False):
            for card in [card for card in self._cards.values() if card.begun and card.begun[1] == future]:
                self._ended(card, result)

    def _ended(self, card: Card, result: Any) -> None:
        assert card.begun is not None
        work, _ = card.begun
        error = result[1] if isinstance(result, tuple) else result
        if isinstance(error, (distributed.CancelledError, distributed.KilledWorker)):
            self._lose(card, ": its worker was lost")
            return
        outcome = result if isinstance(result, Outcome) else Outcome(None, error, {})
        card.begun = None
        if outcome.blocks:
            run_sync.take(work.arguments[0].run, outcome.blocks)
        rest = _rest(work)
        if rest and rest.number is not None and isinstance(outcome.error, Failure):
            self._fail(card, rest, outcome.error)
        elif outcome.error:
            raise outcome.error
        else:
            work.done.set_result(outcome.value)

    def _fail(self, card: Card, rest: Work, error: BaseException) -> None:
        """A process failed: the rest of its piece is done elsewhere, unless that shape has failed before."""
        job: Job = rest.arguments[0]
        at = job.replicate, job.shapes[0]
        self._failed[at] += 1
        if self._failed[at] >= TRIES or len(self._cards) == 1:
            raise error
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._waiting.insert(0, rest)
        self._refused.add(card.address)
        self._lose(card, f" is left out: {what}, at {at[1].label}, replicate {at[0]}")

    # Who is there

    def _look_around(self) -> None:
        """Notice which workers were lost, and admit those that have joined and are free."""
        try:
            there, busy = self._client.nthreads(), self._client.processing()
        except (OSError, ValueError, RuntimeError):
            there, busy = {}, {}
        if self._client.status != "running":
            raise BrokenExecutor("the scheduler is lost")
        for card in [card for address, card in self._cards.items() if address not in there]:
            self._lose(card, ": its worker was lost")
        joined = [address for address in there.keys() - self._cards.keys() - self._refused if not busy.get(address)]
        if joined:
            self._admit(self._asked(joined), there)
        self._require_company(set(there))

    def _asked(self, workers: list[str]) -> dict[str, Any]:
        """The admission of each worker, or the exception that it raised; one without attnlab raises ImportError."""
        # First by the standard library, since a worker without attnlab can't unpickle what comes from it.
        able = self._client.run(resolve_name, ENTRY, workers=workers, on_error="return")
        there = [address for address, found in able.items() if not isinstance(found, Exception)]
        return able | self._client.run(answer, admission, self._wanted, workers=there, on_error="return")

    def _admit(self, answers: dict[str, Any], threads: dict[str, int]) -> None:
        """Admit workers that are like the others; the first ones, if they are like most of them."""
        found = [one for one in answers.values() if isinstance(one, Admission)]
        first = self._standard is None
        if first and found:
            hashes = Counter(one.environment["hash"] for one in found)
            self._standard = max(found, key=lambda one: hashes[one.environment["hash"]])
        for address, one in answers.items():
            if what := self._unfit(one, threads[address]):
                self._refused.add(address)
                _say(f"the worker {address} is left out: {what}")
                continue
            self._cards[address] = Card(address, one)
            if not first:
                _say(f"{self._cards[address]}: joined, {len(self._cards)} now")

    def _unfit(self, found: Any, threads: int) -> str:
        """Why a worker can't measure with the others, from its admission or what asking for it raised; else ""."""
        if threads != 1:
            return f"it has {threads} threads, and one measures at a time: start it with --nthreads 1"
        if isinstance(found, ImportError):
            return f"{found}; PYTHONPATH has to lead to lib/ there, and its packages to be installed"
        if isinstance(found, Exception):
            return " ".join(f"{type(found).__name__}: {found}".split())
        assert self._standard is not None
        same = [card for card in self._cards.values() if found.card and card.found.card == found.card]
        return f"its card already measures for {same[0].address}" if same else difference(self._standard, found)

    def _require_company(self, there: set[str]) -> None:
        """Raise an error if no worker can measure, or after some time without one."""
        if self._cards:
            self._lonely_since = time.monotonic()
        elif self._standard is None and there and there <= self._refused:
            raise UserError("none of the cluster's workers can measure: the lines above say why")
        elif time.monotonic() - self._lonely_since < PATIENCE_S:
            time.sleep(LISTEN_S)
        elif self._standard is None:
            raise UserError(
                f"the scheduler has no idle workers after {PATIENCE_S:.0f} s: start them with "
                "`dask worker <scheduler> --nthreads 1`"
            )
        else:
            raise BrokenExecutor("no worker is left")

    def _lose(self, card: Card, why: str) -> None:
        """Do without a worker: what it has not finished is done elsewhere."""
        del self._cards[card.address]
        if card.begun:
            work, future = card.begun
            future.cancel()
            if work.number is not None:
                self._taken[card.name][work.number] -= 1
            if rest := _rest(work):
                self._waiting.insert(0, rest)
            else:
                work.done.set_result(None)
        left = len(self._cards)
        _say(f"{card}{why}; {left} left{'' if left else f', waiting {PATIENCE_S:.0f} s for another'}")


def _rest(work: Work) -> Work | None:
    """What is left of some work by what has come home; None if nothing is. Only pieces come home in parts."""
    if work.number is None:
        return work
    left = record.lacking(work.arguments[0])
    return replace(work, arguments=(left,)) if left else None


def _say(words: str) -> None:
    tqdm.write(words, file=sys.stderr)
