"""Whether models generate the same with `attend` and with SDPA, and how much of their time is attention."""

from dataclasses import dataclass

from attnlab.runs.models import Record
from attnlab.study.models import BASELINE, CANDIDATE, Workload


@dataclass(frozen=True)
class Agreement:
    """The outputs of an attention in one workload, over all replicates.

    Attributes:
        max_error: of the logits against the reference; `mean_error` likewise.
        agreeing: tokens that are those of the baseline, of `tokens`.
        ran: the kernels that ran the longest in the first layer's attention over the prompts, in any replicate.
    """

    workload: Workload
    attention: str
    max_error: float
    mean_error: float
    agreeing: int
    tokens: int
    ran: tuple[str, ...]


def agreements(record: Record) -> list[Agreement]:
    """The outputs of each attention in each workload."""
    found = []
    for workload in record.workloads:
        outputs, samples = record.at("outputs", workload), record.at("samples", workload)
        for attention, errors in outputs.groupby("attention", sort=False):
            generations = samples[samples["attention"] == attention]
            tokens = len(generations) * workload.batch * record.manifest.plan.tokens
            worst, mean = errors["max_error"].max(), errors["mean_error"].mean()
            agreeing = int(generations["agreeing"].sum())
            ran = tuple(sorted(set(errors["ran"])))
            found.append(Agreement(workload, str(attention), float(worst), float(mean), agreeing, tokens, ran))
    return found


def kernels_of_prompts(record: Record) -> list[tuple[Workload, tuple[str, ...]]]:
    """The kernels of `attend` that ran over the prompts of each workload, ``()`` where those were SDPA's own.

    Empty where CUPTI didn't show some of the kernels.
    """
    every = agreements(record)
    if any("" in one.ran for one in every):
        return []
    ran = {(one.workload.label, one.attention): one.ran for one in every}
    sides = [(one, ran[one.label, CANDIDATE], ran[one.label, BASELINE]) for one in record.workloads]
    return [(workload, () if ours == theirs else ours) for workload, ours, theirs in sides]


def shares_pct(record: Record, workload: Workload, phase: str) -> dict[str, float]:
    """By attention, the median over replicates of its share of the device's time; empty where it wasn't taken."""
    rows = record.at("kernels", workload)
    rows = rows[rows["phase"] == phase]
    shares = 100 * rows["attention_us"].astype(float) / rows["total_us"].astype(float)
    return {str(name): float(value) for name, value in shares.groupby(rows["attention"], sort=False).median().items()}
