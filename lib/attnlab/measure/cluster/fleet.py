"""The executor over a Dask cluster: each worker has a card, and measures one thing at a time on it.

Workers are admitted if they are alike in everything that a run's results may depend on. Whatever a worker that is lost
or fails had not finished goes to the others; a worker that joins takes its part of what is not begun. Blocks come home
as Dask events while a worker measures, and only this process writes the run folder.
"""

import math
import queue
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name as find
from typing import Any

import distributed
import torch
from distributed.client import FutureCancelledError
from tqdm import tqdm

from attnlab.base.errors import Outdated, UserError
from attnlab.measure.cluster import home
from attnlab.measure.cluster.credentials import Credentials, alike, credentials, difference, other_code
from attnlab.measure.cluster.deal import deal
from attnlab.measure.cluster.remote import Order, carry_out
from attnlab.measure.session.subject import Job
from attnlab.runs import read, schema, write
from attnlab.study.shapes import Shape

LISTEN_S = 0.5
PATIENCE_S = 60.0
"""Without a worker, one is waited for so long: a nanny may be starting it anew."""
ASKED = f"{credentials.__module__}:{credentials.__name__}"
"""What a worker is asked for first: importing it needs all that measuring needs."""
TRIES = 2
"""A shape at which so many processes have failed stops the run: it is not the cards that fail."""
Failure = (torch.AcceleratorError, BrokenProcessPool, MemoryError, OSError)
"""What may be the fault of one worker or its card."""


@dataclass(frozen=True)
class Task:
    """Something to do in a fresh process: a replicate of some shapes, or anything else that a run needs once."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: Future[Any] | None = None

    @property
    def job(self) -> Job | None:
        """The replicate, if it is one."""
        return self.arguments[0] if isinstance(self.arguments[0], Job) else None


@dataclass
class Card:
    """An admitted worker, what it has begun, and what waits for it."""

    address: str
    found: Credentials
    waiting: deque[Task] = field(default_factory=deque)
    begun: "Begun | None" = None

    def __str__(self) -> str:
        return f"{self.found.host}, {self.found.card or self.address}"


@dataclass
class Begun:
    """A task on its way, by the number of its order."""

    number: int
    task: Task
    future: distributed.Future


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
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._topic = f"attnlab-{uuid.uuid4().hex}"
        self._orders = 0
        self._cards: dict[str, Card] = {}
        self._asked: dict[str, Begun] = {}
        self._refused: set[str] = set()
        self._left: list[Task] = []
        self._strikes: Counter[tuple[int, Shape]] = Counter()
        self._standard: Credentials | None = None
        self._lonely_since = time.monotonic()
        self._looked = 0.0
        client.subscribe_topic(self._topic, lambda event: self._inbox.put((event[1]["order"], event[1])))
        self._admit_first()

    @property
    def device(self) -> dict[str, Any]:
        """The device that the workers measure on, as `devices.describe` describes it."""
        assert self._standard is not None
        return self._standard.device

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Do one thing on one worker, and wait for it."""
        assert not named
        done: Future[Any] = Future()
        try:
            self._do([Task(work, arguments, done)])
        except Exception as error:
            done.set_exception(error)
        return done

    def map(
        self, work: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Measure replicates, each job's shapes shared out among the cards; what remains of them is looked up here.

        Anything else is done as a whole, each on one card.

        Raises:
            BrokenExecutor: the scheduler or the last worker is lost.
            Outdated: no worker has the environment that the run began in.
            UserError, torch.AcceleratorError, OSError, MemoryError: as what was measured raised it.
        """
        every: list[Any] = list(*iterables)
        if all(isinstance(one, Job) for one in every):
            yield from self._measured(work, every)
        else:
            yield from self._do([Task(work, (one,), Future()) for one in every])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Give up what is on its way."""
        for begun in [*self._asked.values(), *(card.begun for card in self._cards.values() if card.begun)]:
            begun.future.cancel()

    def _do(self, tasks: list[Task]) -> list[Any]:
        """Do these at the same time, as far as there are cards; their values."""
        futures = [task.done for task in tasks if task.done]
        self._left = list(tasks)
        self._work_until(lambda: all(done.done() for done in futures))
        return [done.result() for done in futures]

    # Replicates

    def _measured(self, work: Callable[..., Any], jobs: list[Job]) -> Iterator[None]:
        self._require_environment(jobs[0])
        self._left = [Task(work, (job,)) for job in jobs if job.shapes]
        self._work_until(self._idle)
        streams = write.recorded(jobs[0].run, "stream")
        alone = [job for job in jobs if job.stream and schema.replicate_key(job.replicate) not in streams]
        self._left = [Task(work, (replace(job, shapes=()),)) for job in alone]
        self._work_until(self._idle)
        yield from (None for _ in jobs)

    def _require_environment(self, job: Job) -> None:
        """Leave out workers with another environment than the run began in; raises Outdated if none is left.

        A worker that joins later has to be like the others.
        """
        fits = {address: card.found.environment["hash"] == job.environment for address, card in self._cards.items()}
        if self._cards and not any(fits.values()):
            found = next(iter(self._cards.values())).found.environment
            before = read.read_manifest(job.run)["environment"]
            parts = ", ".join(part for part in found if part != "hash" and found[part] != before.get(part))
            raise Outdated(
                f"the environment of the workers is not the one that the run {job.run!r} began in ({parts}): "
                "start a new run"
            )
        for address in [address for address, fit in fits.items() if not fit]:
            self._refuse(address, f"its environment is not the one that the run {job.run!r} began in")
        self._standard = next((card.found for card in self._cards.values()), self._standard)

    def _idle(self) -> bool:
        return not self._left and not any(card.begun or card.waiting for card in self._cards.values())

    # One step after the other

    def _work_until(self, done: Callable[[], bool]) -> None:
        self._deal()
        try:
            while not done():
                self._hand_out()
                self._listen()
                self._look_around()
                self._require_company()
        except (BrokenExecutor, UserError, *Failure):
            for card in self._cards.values():
                card.waiting.clear()
                self._give_up(card)
            raise

    def _deal(self) -> None:
        """Deal everything that is not begun."""
        left = self._left + [task for card in self._cards.values() for task in card.waiting]
        if not self._cards or not left:
            return
        self._left = []
        for card in self._cards.values():
            card.waiting.clear()
        jobs = [task.job for task in left if task.job and task.job.shapes]
        if jobs:
            spend, measured = home.seconds(jobs[0]), home.measured_by_card(jobs[0].run)
            dealt = deal(
                jobs,
                spend,
                {address: _seconds_left(card, spend) for address, card in self._cards.items()},
                lambda address, shape: measured[self._cards[address].found.card, shape],
            )
            for address, mine in dealt.items():
                self._cards[address].waiting.extend(Task(left[0].work, (job,)) for job in mine)
        fewest = sorted(self._cards.values(), key=lambda card: len(card.waiting) + (card.begun is not None))
        for number, task in enumerate(task for task in left if not (task.job and task.job.shapes)):
            fewest[number % len(fewest)].waiting.append(task)

    def _hand_out(self) -> None:
        for card in self._cards.values():
            if card.begun is None and card.waiting:
                task = card.waiting.popleft()
                card.begun = self._order(card.address, task, home.files(task.arguments[0]))
                if task.job and task.job.shapes:
                    count = len(task.job.shapes)
                    _say(f"{card}: replicate {task.job.replicate}, {count} shape{'s' * (count != 1)}")

    def _order(self, address: str, task: Task, files: dict[str, bytes]) -> Begun:
        order = Order(self._orders + 1, self._topic, task.work, task.arguments, files)
        return self._submit(address, task, carry_out, order)

    def _submit(self, address: str, task: Task, call: Callable[[Any], Any], argument: Any) -> Begun:
        """Have a worker call this for a task; the number of a call is that of its order, if it has one."""
        self._orders += 1
        number = self._orders
        future = self._client.submit(
            call, argument, workers=[address], key=f"{self._topic}-{number}", pure=False, retries=0
        )
        future.add_done_callback(lambda future: self._inbox.put((number, future)))
        return Begun(number, task, future)

    def _listen(self) -> None:
        """Take home what has arrived."""
        patience_s = LISTEN_S
        while True:
            try:
                number, said = self._inbox.get(timeout=patience_s)
            except queue.Empty:
                return
            patience_s = 0.0
            if asked := next((a for a, begun in self._asked.items() if begun.number == number), None):
                if isinstance(said, distributed.Future):
                    self._answered(asked, self._asked.pop(asked))
                continue
            card = next((c for c in self._cards.values() if c.begun and c.begun.number == number), None)
            if card is None:
                continue  # from a worker that was given up
            if isinstance(said, distributed.Future):
                self._ended(card, said)
            else:
                assert card.begun is not None
                write.take_part(card.begun.task.arguments[0].run, said["name"], said["content"])

    def _ended(self, card: Card, future: distributed.Future) -> None:
        assert card.begun is not None
        task, card.begun = card.begun.task, None
        try:
            value = future.result()
        except distributed.KilledWorker:
            self._lose(card, task, f"{card}: its worker died")
        except FutureCancelledError:
            self._require_scheduler()
            self._lose(card, task, f"{card}: its worker was lost")
        except Outdated as error:
            self._lose(card, task, f"{card} is left out: {error}")
            self._refused.add(card.address)
            if not self._cards:
                raise
        except Failure as error:
            self._failed(card, task, error)
        else:
            if task.done:
                task.done.set_result(value)
            elif left := _rest_of(task):
                self._failed(card, left, BrokenProcessPool("not all of its blocks came home"))

    def _failed(self, card: Card, task: Task, error: BaseException) -> None:
        """A process failed: once more elsewhere, unless that shape has failed before."""
        rest = _rest_of(task) or task
        at = (rest.job.replicate, rest.job.shapes[0]) if rest.job and rest.job.shapes else None
        if at is None or len(self._cards) == 1:
            raise error
        self._strikes[at] += 1
        if self._strikes[at] >= TRIES:
            raise error
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        self._refused.add(card.address)
        self._lose(card, rest, f"{card} is left out: {what}, at {at[1].label}, replicate {at[0]}")

    def _lose(self, card: Card, task: Task | None, why: str) -> None:
        """Do without a worker: what it has not finished is dealt again."""
        self._cards.pop(card.address, None)
        rest = task and _rest_of(task)
        self._left += ([rest] if rest else []) + list(card.waiting)
        self._lonely_since = time.monotonic()
        _say(f"{why}; {len(self._cards)} left" + ("" if self._cards else f", waiting {PATIENCE_S:.0f} s for another"))
        self._deal()

    # Who is there

    def _look_around(self) -> None:
        """Notice which workers were lost and which have joined."""
        if time.monotonic() - self._looked < LISTEN_S:
            return
        self._looked = time.monotonic()
        there = self._workers()
        for card in [card for address, card in self._cards.items() if address not in there]:
            task = card.begun.task if card.begun else None
            self._give_up(card)
            self._lose(card, task, f"{card}: its worker was lost")
        for address in [address for address in self._asked if address not in there]:
            self._asked.pop(address).future.cancel()
        for address, threads in there.items():
            if address not in self._cards and address not in self._asked and address not in self._refused:
                self._ask(address, threads)

    def _give_up(self, card: Card) -> None:
        if card.begun:
            card.begun.future.cancel()
            card.begun = None

    def _workers(self) -> dict[str, int]:
        """The addresses of all workers, with their threads."""
        try:
            return dict(self._client.nthreads())
        except (OSError, ValueError, RuntimeError):
            self._require_scheduler()
            return {}

    def _require_scheduler(self) -> None:
        if self._client.status != "running":
            raise BrokenExecutor("the scheduler is lost")

    def _require_company(self) -> None:
        """Raise BrokenExecutor after some time without a worker."""
        if self._cards or self._asked:
            self._lonely_since = time.monotonic()
        elif time.monotonic() - self._lonely_since > PATIENCE_S:
            raise BrokenExecutor("no worker is left")

    def _ask(self, address: str, threads: int) -> None:
        if threads != 1:
            self._refuse(address, f"it has {threads} threads, and one measures at a time: start it with --nthreads 1")
        else:
            # First by the standard library: a worker that can't unpickle an order, as without attnlab, ends itself.
            self._asked[address] = self._submit(address, Task(find, (ASKED,)), find, ASKED)

    def _answered(self, address: str, begun: Begun) -> None:
        """Ask a worker that has attnlab for its credentials, and admit one that has shown them; or refuse it."""
        try:
            found = begun.future.result()
        except FutureCancelledError:
            self._require_scheduler()
            return
        except distributed.KilledWorker:
            return
        except ImportError as error:
            self._refuse(address, f"{error}; PYTHONPATH has to lead to lib/ there, and its packages to be installed")
            return
        except Exception as error:  # whatever else is wrong there
            self._refuse(address, " ".join(f"{type(error).__name__}: {error}".split()))
            return
        if not isinstance(found, Credentials):
            self._asked[address] = self._order(address, Task(credentials, (self._wanted,)), {})
            return
        same = [card for card in self._cards.values() if found.card and card.found.card == found.card]
        what = f"its card already measures for {same[0].address}" if same else other_code(found)
        what = what or (difference(self._standard, found) if self._standard else "")
        if what:
            self._refuse(address, what)
        else:
            self._cards[address] = Card(address, found)
            if self._standard is not None:
                _say(f"{self._cards[address]}: joined, {len(self._cards)} now")
                self._deal()

    def _refuse(self, address: str, why: str) -> None:
        self._refused.add(address)
        if card := self._cards.pop(address, None):
            self._left += card.waiting
        _say(f"the worker {address} is left out: {why}")

    def _admit_first(self) -> None:
        """Wait for the workers that are there; what most of them have in common is the standard."""
        began, patience_s = time.monotonic(), PATIENCE_S
        self._look_around()
        while self._asked or not self._cards:
            if self._refused and not self._asked and not self._cards:
                raise UserError("none of the cluster's workers can measure: the lines above say why")
            if time.monotonic() - began > patience_s:
                if self._cards:
                    break
                if not self._asked:
                    raise UserError(
                        f"the scheduler has no workers after {PATIENCE_S:.0f} s: start them with "
                        "`dask worker <scheduler> --nthreads 1`"
                    )
                _say("the cluster's workers are busy with something else; waiting for one")
                patience_s = math.inf
            self._listen()
            self._look_around()
        usual = Counter(alike(card.found) for card in self._cards.values()).most_common(1)[0][0]
        self._standard = next(card.found for card in self._cards.values() if alike(card.found) == usual)
        for card in list(self._cards.values()):
            if what := difference(self._standard, card.found):
                self._refuse(card.address, what)
        for card in self._cards.values():
            _say(f"{card}: {self._standard.device['name']}")


def _rest_of(task: Task) -> Task | None:
    """What is left of a task; None if nothing is."""
    left = home.lacking(task.job) if task.job else None
    return task if task.job is None else replace(task, arguments=(left,)) if left else None


def _seconds_left(card: Card, seconds: Callable[[Shape], float]) -> float:
    left = home.lacking(card.begun.task.job) if card.begun and card.begun.task.job else None
    return sum(map(seconds, left.shapes)) if left else 0.0


def _say(words: str) -> None:
    tqdm.write(words, file=sys.stderr)
