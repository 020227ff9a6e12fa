"""How long attnlab itself takes here, and how much memory: measuring, inferring, rendering. Keeps no results."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from attnlab import implementations, obtain, runs, studies
from attnlab.analyse import results
from attnlab.errors import UserError

RUN = "h200-2026-11-21"
TEN = Path(__file__).with_name("ten.yaml")
EVERY_S = 0.05
CASES, REPLICATES, ROUNDS = (100, 1000), 5, 100


def main() -> None:
    """Run each benchmark in a process of its own and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTNLAB_REPORTS"] = str(Path(folder) / "reports")
        rows = [
            timed(f"read {RUN}", "read"),
            timed(f"infer from {RUN}", "infer"),
            timed(f"infer from and render {RUN}", "render"),
            *(
                timed(f"infer from {cases} cases, {REPLICATES} x {ROUNDS} samples", "cases", str(cases))
                for cases in CASES
            ),
        ]
        os.environ["ATTNLAB_DATA"] = str(Path(folder) / "data")
        device, study = _study()
        rows.append(timed(f"measure {study} on {device}", "measure", device, study))
    print(f"{'':<48} {'seconds':>8} {'peak MiB':>9}")
    for title, seconds, mebibytes in rows:
        print(f"{title:<48} {seconds:>8.1f} {mebibytes:>9}")


def timed(title: str, name: str, *arguments: str) -> tuple[str, float, str]:
    """Wall time of a fresh interpreter that does one thing, and the most memory that it and its children held."""
    print(f"{title} ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, __file__, name, *arguments], stdout=subprocess.DEVNULL)
    peak = _Peak(process.pid)
    peak.start()
    failed = process.wait()
    seconds = time.monotonic() - started
    peak.join()
    if failed:
        sys.exit(failed)
    return title, seconds, f"{peak.kibibytes / 1024:,.0f}" if peak.kibibytes else "n/a"


class _Peak(threading.Thread):
    """Adds up what a process and all below it hold, shared pages once, until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.kibibytes = pid, 0

    def run(self) -> None:
        while Path(f"/proc/{self.pid}/smaps_rollup").exists() and (held := _held(self.pid)):
            self.kibibytes = max(self.kibibytes, held)
            time.sleep(EVERY_S)


def _held(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/smaps_rollup").read_text()
        below = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return 0
    own = sum(int(line.split()[1]) for line in pages.splitlines() if line.startswith("Pss:"))
    return own + sum(_held(int(child)) for child in below.split())


def _study() -> tuple[str, str]:
    try:
        from attnlab.measure import devices

        devices.resolve("cuda")
    except UserError:
        return "cpu", "quick"
    return "cuda", str(TEN)


def read() -> None:
    """Read the recorded run and check it against its manifest."""
    runs.load(RUN)


def infer() -> None:
    """Infer from the recorded run, from nothing."""
    results.infer(runs.load(RUN))


def cases(count: str) -> None:
    """Infer from so many cases that were never measured, from nothing."""
    run = _made_up(int(count))
    assert len(results.of(run).table) == int(count)


def _made_up(count: int) -> runs.Run:
    """A run that is not complete, so that nothing is kept, with the manifest of the recorded one."""
    manifest = runs.read_manifest(RUN)
    names, timing = list(implementations.SDPA), {"clock": "device", "cache": "warm"}
    axes = {"heads": 8, "seq_len": 512, "head_dim": 64, "dtype": "float16"}
    batches = list(range(1, count // len(names) + 1))
    target = axes | {"batch": 1}
    sweeps = {"batch": [axes | {"batch": batches}]}
    study = manifest["study"] | {"implementations": names, "baseline": names[0], "timings": [timing]}
    study |= {"target": target, "sweeps": sweeps, "replicates": REPLICATES}
    rows = pd.MultiIndex.from_product(
        [names, batches, range(REPLICATES), range(ROUNDS)], names=["implementation", "batch", "replicate", "round"]
    ).to_frame(index=False)
    rows = rows.assign(**axes, **timing, causal=False, process="", launches=8, throttled=False, sm_clock_mhz=1980)
    rows = runs.plain(rows)
    noise = np.random.default_rng(0).standard_normal((len(rows) // ROUNDS, ROUNDS))
    # What processes do differently, and what samples have in common with their neighbours.
    noise += noise[:, :1] + np.roll(noise, 1, axis=1)
    samples = rows.assign(latency_us=50 * np.exp(0.01 * noise.ravel()))
    measured = samples[samples["round"] == 0].assign(status="measured")
    tables = dict.fromkeys(runs.TABLES, pd.DataFrame())
    tables |= {"samples": samples, "cases": measured[[*runs.CASE, "replicate", "status"]]}
    return runs.Run("made up", manifest | {"study": study, "complete": False}, **tables)


def render() -> None:
    """Render the recorded run, the inference included."""
    from attnlab.report import paper

    paper.render(RUN)


def measure(device: str, study: str) -> None:
    """Measure a study into a run that is thrown away."""
    obtain.measured("", studies.load(study), device)


COMMANDS: dict[str, Callable[..., None]] = {
    "read": read,
    "infer": infer,
    "cases": cases,
    "render": render,
    "measure": measure,
}

if __name__ == "__main__":
    if sys.argv[1:]:
        COMMANDS[sys.argv[1]](*sys.argv[2:])
    else:
        main()
