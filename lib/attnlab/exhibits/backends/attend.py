"""`attnlab.attend` compared with `sdpa.auto`: its dispatch table, and what it adds to a call."""

from scipy.stats import gmean

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer.backends import attend
from attnlab.infer.results import Results
from attnlab.runs.dispatch import Choice
from attnlab.study import tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.ladder import BEST, MASKS
from attnlab.study.shapes import Shape


@exhibit("backends.attend.chosen", of="attended")
def chosen(results: Results) -> Table:
    """What the dispatch table of this device calls, a row for each kind of shape."""
    table = attend.table(results)
    kinds: dict[tuple[int, str, str], list[Choice]] = {}
    for choice in table.choices:
        shape = choice.shape
        kinds.setdefault((shape.head_dim, MASKS[shape.causal], _queries(shape)), []).append(choice)
    rows = [
        {
            "head_dim": head_dim,
            "mask": mask,
            "queries": queries,
            "shapes": len(alike),
            f"not {FALLBACK}": sum(choice.implementation != FALLBACK for choice in alike),
            "speedup, mean": gmean([choice.speedup for choice in alike]),
            "least": min(choice.speedup for choice in alike),
            "most": max(choice.speedup for choice in alike),
            f"{BEST}, least": min((choice.speedups[BEST] for choice in alike if BEST in choice.speedups), default=None),
        }
        for (head_dim, mask, queries), alike in sorted(kinds.items())
    ]
    note = say("backends.chosen", table=table, fallback=FALLBACK, best=BEST)
    return Table.of(rows, "What `attnlab.attend` calls instead of SDPA, by kind of shape.", note)


def _queries(shape: Shape) -> str:
    if shape.seq_len == shape.kv_len:
        return "as many as keys"
    return "few, over a cache" if tuning.rows_of(shape) else "a chunk, after a cache"


@exhibit("backends.attend.regret", of="attended")
def regret(results: Results) -> Table | Prose:
    """What the choices cost at shapes drawn at random that the table doesn't hold, a row for each clock."""
    table = attend.table(results)
    if not table.regret:
        return Prose(say("backends.unjudged", run=table.run))
    rows = [
        {
            "clock": one.clock,
            "shapes": one.shapes,
            "best (%)": one.best_pct,
            "longer, mean (%)": one.mean_pct,
            "longer, worst (%)": one.worst_pct,
            "worst at": one.worst if one.worst_pct else None,
            "worst that is certain (%)": one.certain_pct,
            f"lead over {FALLBACK}": one.lead,
            "least lead": one.least_lead,
        }
        for one in table.regret
    ]
    caption = "What the choices of `attnlab.attend` cost at shapes drawn at random, which its table does not hold."
    return Table.of(rows, caption, say("backends.regret"))


@exhibit("backends.attend.overhead", of="attended")
def overhead(results: Results) -> Prose:
    """What `attend` adds to a call: of host time where it calls the same as SDPA, and of latency over a stream."""
    return Prose(say("backends.overhead", added=attend.overhead(results), allowed_us=attend.ALLOWED_US))
