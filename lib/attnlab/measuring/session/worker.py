"""The units of work, each in a separate process: the survey, shapes of a replicate, and the other parts of a run.

A run takes the panel of clocks, the loads and the counters once, each on one card; other cards measure meanwhile.
"""

import sys
import time
import zlib
from typing import Any

import torch

from attnlab.base.errors import Outdated, UserError
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.instruments import counters, devices, environment, telemetry
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.session import ceilings, estimate, panel, requests
from attnlab.measuring.session.cases import measure_shape
from attnlab.measuring.session.subject import STREAM_PART, Job, Session
from attnlab.measuring.subjects import registry
from attnlab.measuring.values import captured
from attnlab.runs import read, write
from attnlab.runs.schema import Manifest, replicate_key
from attnlab.runs.tables import PROCESSES, frame_of
from attnlab.study import tuning
from attnlab.study.implementations import E4M3, in_fp8
from attnlab.study.studies import Study

ONCE = ("panel", "loads", "counters")
"""The parts that a run on GPUs takes once; without a panel, the counters alone."""


def survey(wanted: str, study: Study) -> tuple[dict[str, Any], float]:
    """The manifest's fields about the machine, and the estimated seconds of the whole study on one device."""
    device = devices.resolve(wanted)
    environment.lock()
    missing = [str(timing) for timing in study.timings if not cuda_events.available(device, timing)]
    if len(missing) == len(study.timings):
        lacks = f"{device.type} lacks the clocks of the study ({', '.join(missing)})"
        raise UserError(f"nothing can be timed here, {lacks}: state one with the clock eager")
    found_in = captured.digests(study)
    captured.use(study)
    total_s, shapes_s = estimate.planned(study, device)
    for name, changed in registry.PUT_BACK.items():
        if changed:
            print(f"{name}: importing it changed {', '.join(changed)}, which was put back", file=sys.stderr)
    dtypes = sorted({shape.dtype for shape in study.shapes})
    if device.type == "cuda":
        dtypes = sorted({*dtypes, "float16", "bfloat16", "float32"})
        dtypes += [E4M3] if any(map(in_fp8, study.implementations)) else []
    found = {
        "device": devices.describe(device),
        "environment": environment.fingerprint(device, environment.packages(device, study.implementations)),
        "ceilings": ceilings.measure(device, dtypes),
        "clocks": cuda_events.calibrate(device),
        "missing_clocks": missing,
        "telemetry": Telemetry(device).unavailable or "NVML",
        "planned_s": shapes_s,
        "captured": found_in,
        "surveyed": {"card": telemetry.card(device), **devices.host()},
    }
    return found, total_s


def take(job: Job) -> dict[str, str]:
    """Take the parts of a job that a run still lacks; for counters, returns the manifest's entry on the profile.

    Raises:
        UserError: the environment can't be locked.
        Outdated: the environment isn't that in which the run began, or the measured code has changed since.
    """
    captured.use(job.study)
    if job.part == "counters":
        return counters.take(job.run, job.study, job.device)
    if job.part in ONCE:
        device = torch.device(job.device)
        environment.lock_as_begun(job.run, device)
        (panel.take if job.part == "panel" else panel.take_loads)(job.run, job.study, device)
    else:
        measure(job)
    return {}


def measure(job: Job) -> None:
    """Measure shapes of a replicate, a block at a time, or its stream of requests; raises as `take` does."""
    started = time.monotonic()
    require_unchanged(job.study, read.read_manifest(job.run))
    device = torch.device(job.device)
    environment.lock_as_begun(job.run, device)
    captured.use(job.study)
    session = Session(job, device, Telemetry(device), started)
    row = {
        "process": session.process,
        "replicate": job.replicate,
        "setup_seconds": time.monotonic() - started,
        "card": telemetry.card(device),
        **session.telemetry.modes(),
        **devices.host(),
    }
    # Before anything is measured: a process that is killed leaves samples, and they name it.
    key = replicate_key(job.replicate)
    write.add_part(job.run, "processes", f"{key}-{session.process}", frame_of(PROCESSES, [row]))
    for shape in job.shapes:
        measure_shape(session, shape)
    if job.part == STREAM_PART:
        seed = zlib.crc32(f"stream {job.replicate}".encode())
        calls = requests.take(job.run, job.study, job.replicate, device, seed)
        write.add_part(job.run, "stream", key, calls.assign(process=session.process))


def require_unchanged(study: Study, manifest: Manifest) -> None:
    """Raise Outdated if a study's code (kernels, users' functions) has changed since its run began."""
    before, now = manifest["kernels"], tuning.hashes(study.implementations, manifest["device"]["name"])
    changed = [name for name in study.implementations if before.get(name) != now.get(name)]
    if changed:
        raise Outdated(f"{', '.join(changed)} changed since the run {manifest['name']!r} began: start a new run")
