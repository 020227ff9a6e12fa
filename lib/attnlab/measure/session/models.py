"""Recording how models generate: a process and a block for each model in each replicate."""

import copy
import math
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import torch

from attnlab.base import rules
from attnlab.base.errors import Outdated, UserError
from attnlab.measure import pretrained, processes
from attnlab.measure.clocks import cuda_events, traced
from attnlab.measure.instruments import devices, environment, inspection
from attnlab.measure.session import record
from attnlab.measure.subjects import attend, model
from attnlab.measure.subjects.implementation import ran_out_of_memory
from attnlab.runs import dispatch, models, read, schema, write
from attnlab.runs.manifest import ModelFields
from attnlab.runs.models import WORKLOAD
from attnlab.runs.schema import FIRST, GRAPHS, PHASES, REST, STEPS, Row
from attnlab.runs.tables import MODEL_TABLES, frame_of
from attnlab.study.models import BASELINE, CANDIDATE, Model, Plan, Workload, command

Steps = dict[str, Callable[[], object]]
WARMUPS = 2
"""Generations by each attention before any is timed."""
WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
"""The type in which the same weights are the reference for logits."""
WATCHED = "attnlab.watched"


@dataclass(frozen=True)
class Job:
    """A model in a replicate, of which a record lacks the block.

    Attributes:
        own: the plan's only model, where its weights come from a folder.
    """

    run: str
    plan: Plan
    device: str
    replicate: int
    model: Model
    environment: str
    table: Path | None
    own: pretrained.Own | None


def record_models(
    name: str,
    plan: Plan,
    device: torch.device,
    dispatched: dict[str, str],
    executor: Executor | None = None,
    own: pretrained.Own | None = None,
) -> None:
    """Measure into the record `name`, which is new, or was cut off and is resumed.

    Args:
        dispatched: the dispatch table that `attend` goes by, as `dispatch.identity` gives it; empty for SDPA alone.
        executor: runs the jobs in fresh processes; default `processes.fresh_processes`.
        own: the model and the text of the plan, where it names a text.

    Raises:
        UserError: another process measures into the record; it is complete, or of another plan or environment; or
            measuring was cut off. What was recorded until then is kept.
    """
    run, again = models.run_of(name), command(name, plan)
    target = schema.folder(run)
    held = write.lock(run, {"plan": plan.model_dump(mode="json")})
    with held, executor or processes.fresh_processes() as pool, record.explained(target, pool, again):
        if not (target / "manifest.json").is_file():
            found = pool.submit(survey, device.type).result() | {"plan": plan.model_dump(mode="json")}
            write.create(run, record.begun(again, __name__, found | {"dispatch": dispatched, "queued": True}))
        begun = ModelFields.model_validate(read.read_manifest(run))
        if begun.complete:
            raise UserError(f"the record {name!r} is complete: name another with RUN")
        if begun.plan != plan or (plan.text is None) != (own is None):
            goes_on = f"`{command(name, begun.plan)}` goes on with it"
            raise UserError(f"the record {name!r} is of another plan: {goes_on}, or name another with RUN")
        if (begun.dispatch or {}) != dispatched:
            raise Outdated(f"the dispatch table changed since the record {name!r} began: start a new one")
        read.held(run)  # which refuses blocks that were lost or changed, before others are measured
        deque(pool.map(take, _jobs(run, begun, device, own)), maxlen=0)
        write.finish(run)


def survey(kind: str) -> dict[str, Any]:
    """What a manifest says of the machine: device, locked environment, and the step of the clock."""
    device = torch.device(kind)
    environment.lock()
    found = environment.fingerprint(device, [*environment.packages(device), "transformers"])
    tick_us = cuda_events.calibrate(torch.device("cpu"))["tick_us"]  # of the host's clock
    return {"device": devices.describe(device), "environment": found, "tick_us": tick_us}


def _jobs(run: str, begun: ModelFields, device: torch.device, own: pretrained.Own | None) -> Iterator[Job]:
    done = write.recorded(run, "samples")
    table = dispatch.path(begun.device.name) if begun.dispatch else None
    for replicate, one in product(range(begun.plan.replicates), begun.plan.models):
        if schema.model_key(replicate, one.name) not in done:
            yield Job(run, begun.plan, device.type, replicate, one, begun.environment.hash, table, own)


def take(job: Job) -> None:
    """Measure a model in a replicate.

    Raises:
        UserError: the device's memory doesn't hold the model.
        Outdated: the environment isn't the one that the record began in.
    """
    device, one = torch.device(job.device), job.model
    environment.lock_as_begun(job.run, job.environment, device)
    model.register(CANDIDATE, model.attention)
    if job.table:
        attend.use(job.table)
    which = f"replicate {job.replicate + 1} of {job.plan.replicates}, {one.name}"
    print(f"{schema.folder(job.run).name}: {which}", file=sys.stderr, flush=True)
    try:
        with warnings.catch_warnings(action="ignore"):  # that torch knows no deterministic way for this and that
            rows = _block(job, device)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise UserError(
            f"the device's memory doesn't hold {one.name} with its reference: state smaller ones, as in "
            '`make model PARAMS="models=gpt2 batch=1 prompt=512"`'
        ) from None
    for table, columns in MODEL_TABLES.items():  # the samples last: a block that has them is whole
        write.add_part(job.run, table, schema.model_key(job.replicate, one.name), frame_of(columns, rows[table]))


def _block(job: Job, device: torch.device) -> dict[str, list[Row]]:
    made = model.build(job.own.folder if job.own else job.model, job.plan.positions, job.plan.dtype, device)
    generator = torch.Generator(device).manual_seed(rules.SEED + job.replicate)
    taken = [_Taking(job, each, made, _prompts(job, each, generator)) for each in job.plan.workloads(job.model)]
    tables = {"samples": [row for each in taken for row in each.samples()]}
    tables["kernels"] = [row for each in taken for row in each.kernels()]
    wide = copy.deepcopy(made).to(getattr(torch, WIDER[job.plan.dtype]))
    wide.set_attn_implementation("eager")
    return tables | {"outputs": [row for each in taken for row in each.outputs(wide)]}


def _prompts(job: Job, workload: Workload, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Prompts of a workload, ``(batch, prompt)``, without end: passages of the text, or random tokens."""
    if job.own:
        return pretrained.passages(job.own.tokens, workload.batch, workload.prompt, generator)
    shape, device = (workload.batch, workload.prompt), generator.device
    draw = partial(torch.randint, workload.model.vocabulary, shape, generator=generator, device=device)
    return (draw() for _ in count())


@dataclass(frozen=True)
class _Taking:
    """What is taken of one workload in one replicate."""

    job: Job
    workload: Workload
    model: Any
    prompts: Iterator[torch.Tensor]

    def samples(self) -> Iterator[Row]:
        """Generations in rounds in which all attentions take turns in random order, each on the same new prompts."""
        order = random.SystemRandom()
        for attention in WARMUPS * list(model.REGISTERED):
            self._generated(attention, next(self.prompts))
        steps = {name: model.steps(self._by(name), next(self.prompts)) for name in model.REGISTERED}
        for number in range(self.job.plan.rounds):
            prompts = next(self.prompts)
            turns = order.sample(list(model.REGISTERED), len(model.REGISTERED))
            made = {attention: self._generated(attention, prompts) for attention in turns}
            for position, attention in enumerate(turns):
                one = made[attention]
                agreeing = int((one.tokens == made[BASELINE].tokens).sum())
                times = {"first_us": one.first_us, "rest_us": one.rest_us, "agreeing": agreeing}
                times |= self._taken_us(attention, steps[attention])
                yield self._row(attention) | {"round": number, "position": position} | times

    def outputs(self, wide: Any) -> Iterator[Row]:
        """Errors of the logits at the last token, against the same weights in a wider type."""
        prompts = next(self.prompts)
        # A sequence at a time: transformers' eager attention holds all scores.
        expected = torch.cat([_logits(wide, each) for each in prompts.split(1)])
        for attention in model.REGISTERED:
            errors = (_logits(self._by(attention), prompts) - expected).abs()
            found = {"max_error": errors.max().item(), "mean_error": errors.mean().item()}
            ran = {"reference": WIDER[self.workload.dtype], "ran": self._ran(attention, prompts)}
            yield self._row(attention) | found | ran

    def _ran(self, attention: str, prompts: torch.Tensor) -> str:
        """What ran the longest in the first layer's attention over the prompts: a kernel, or on a CPU an operator.

        Empty where CUPTI shows nothing.
        """
        inner, names = model.registered(model.REGISTERED[attention]), list[str]()

        def inspected(*args: Any, **named: Any) -> Any:
            call: Any = partial(inner, *args, **named)
            names.extend(() if names else inspection.kernels(call, torch.device(self.job.device)))
            return call()

        self._watched_by(inspected)
        model.generate(self.model, prompts, 1)
        return names[0] if names else ""

    def kernels(self) -> Iterator[Row]:
        """The device's time in attention and in all, for the first token and for the later ones."""
        if self.job.device == "cuda" and not traced.available():
            return
        for attention in (BASELINE, CANDIDATE):
            inner = model.registered(model.REGISTERED[attention])
            with _watching(self.job.device) as (through, calls_us):
                self._watched_by(lambda *args, inner=inner, **named: through(partial(inner, *args, **named)))
                made = model.generate(self.model, next(self.prompts), self.job.plan.tokens)
            layers = self.workload.model.layers
            within = {FIRST: sum(calls_us[:layers]), REST: sum(calls_us[layers:])}
            whole = {FIRST: made.first_us, REST: made.rest_us}
            if self.job.device == "cuda":
                first_us, all_us = (self._traced_us(attention, tokens) for tokens in (1, self.job.plan.tokens))
                whole = {FIRST: first_us, REST: all_us - first_us}
            for phase in PHASES:
                us = {"attention_us": within[phase], "total_us": whole[phase]}
                yield self._row(attention) | {"phase": phase} | us

    def _watched_by(self, attention: model.Attention) -> None:
        model.register(WATCHED, attention)
        self.model.set_attn_implementation(WATCHED)

    def _traced_us(self, attention: str, tokens: int) -> float:
        with _watching(self.job.device) as (through, us):
            through(partial(model.generate, self._by(attention), next(self.prompts), tokens))
        return us[0]

    def _generated(self, attention: str, prompts: torch.Tensor) -> model.Generation:
        return model.generate(self._by(attention), prompts, self.job.plan.tokens)

    def _taken_us(self, attention: str, steps: Steps) -> dict[str, float]:
        """How long each step takes, in µs; NaN for those that this device doesn't have."""
        self._by(attention)
        device = torch.device(self.job.device)
        found_us = dict.fromkeys(STEPS.values(), math.nan)
        for column, step in steps.items():
            if column in GRAPHS:
                step()  # the host launches what is timed while the device is busy with this
            found_us[column] = cuda_events.timed(device, step)[0]
        return found_us

    def _by(self, attention: str) -> Any:
        """The model, which computes attention by this one from now on."""
        self.model.set_attn_implementation(model.REGISTERED[attention])
        return self.model

    def _row(self, attention: str) -> Row:
        names = (*WORKLOAD, "attention", "replicate")
        values = (self.workload.model.name, self.workload.batch, self.workload.prompt, attention, self.job.replicate)
        return dict(zip(names, values, strict=True))


@contextmanager
def _watching(kind: str) -> Iterator[tuple[Callable[[Callable[[], Any]], Any], list[float]]]:
    """A function that does work and returns what it returns, and how long the device took for each piece of work.

    On a GPU that is the time of its kernels, by CUPTI, known once the context is left; on a CPU that by its clock.
    """
    us: list[float] = []
    if kind == "cuda":
        with traced.Trace() as trace:
            yield trace.mark, us
        us += [piece.kernels_us for piece in trace.pieces]
        return

    def through(work: Callable[[], Any]) -> Any:
        took_us, returned = cuda_events.timed(torch.device("cpu"), work)
        us.append(took_us)
        return returned

    yield through, us


def _logits(of: Any, prompts: torch.Tensor) -> torch.Tensor:
    """Logits at the last token, ``(batch, vocabulary)``, in float64."""
    return of(prompts, use_cache=False, logits_to_keep=1).logits[:, -1].double()
