"""How cards differ, where a run measured on several, and whether busy neighbours slow a card."""

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer.cases import LEAST_CARDS
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine import cards as of_cards
from attnlab.infer.machine import neighbours
from attnlab.infer.results import Results


@exhibit("environment.cards")
def cards(results: Results) -> Table:
    """The variance of a latency between cards, between processes and within."""
    if not results.cards:
        raise NotMeasured(_why_not(results))
    found = of_cards.deviations(results)
    rows = [
        {
            "timing": str(one.timing),
            "cases": one.cases,
            "between cards (%)": one.card,
            "between processes of a card (%)": one.process,
            "within a process (%)": one.within,
        }
        for one in found
    ]
    count = of_cards.count(results)
    caption = f"Standard deviation of a latency by level, over {count} cards, in percent of the latency."
    few, surveyed = 0 if results.over_cards else count, results.run.manifest["surveyed"]["card"]
    note = say("environment.cards", found=found[0], few=few, least=LEAST_CARDS, surveyed=surveyed)
    return Table.of(rows, caption, note)


def _why_not(results: Results) -> str:
    if results.run.cards:
        return "All replicates ran on one card: intervals and verdicts hold for this card, not for others of its kind"
    return "This run doesn't name its cards, so how cards differ is unknown: intervals and verdicts hold for it alone"


@exhibit("environment.neighbours")
def beside(results: Results) -> Table | None:
    """The latencies of cards beside busy neighbours over those of the same cards alone; None where none is recorded."""
    compared = neighbours.compared(results.run.manifest["device"]["name"])
    if not compared:
        return None
    rows = [
        {
            "timing": str(one.timing),
            "alone": one.alone.name,
            "beside neighbours": one.beside.name,
            "cards": len(one.beside.cards),
            f"ratio [{CI}]": one.ratio,
            "verdict": one.decision,
        }
        for one in compared
    ]
    note = say("environment.neighbours", decisions=neighbours.agreed(compared))
    return Table.of(rows, "The same study on a card alone, and beside busy neighbours.", note)


def scope(results: Results) -> str:
    """What a verdict of this run holds for: ``on this NVIDIA H200``, ``on these 2 NVIDIA H200s``, ``on NVIDIA H200s``.

    The last takes intervals over cards.
    """
    return say("environment.scope", **_held(results))


def held_for(results: Results) -> str:
    """``One NVIDIA H200``, ``2 NVIDIA H200s``, or how many cards stand for all of their kind."""
    return say("environment.held_for", **_held(results))


def _held(results: Results) -> dict[str, object]:
    name = results.run.manifest["device"]["name"]
    return {"name": name, "cards": of_cards.count(results), "over_cards": results.over_cards}
