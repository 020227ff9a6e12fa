"""Audits five reports on an NVIDIA L4: every claim is compared with their other numbers and with the hardware.

data/reference/ holds the numbers as printed and the claims about them. A stated number *holds* where the recomputed one
prints the same. It is *rounding* where the printed digits allow the recomputed one. Otherwise the rule names the
finding. What follows from a claim that does not stand has a *refuted premise*, however right its arithmetic.
"""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError, suggestion
from attnlab.literature.audit.numbers import Number, as_printed
from attnlab.literature.audit.reference import Claim, Reference, Row, Term
from attnlab.literature.audit.rules import RULES, Finding, Outcome, Rule

FINDINGS: tuple[Finding, ...] = get_args(Finding)
"""All findings, those that leave a claim standing first."""
FINE: tuple[Finding, ...] = ("holds", "rounding")
"""The findings that leave a claim standing."""


def audit(folder: Path = paths.REFERENCE) -> pd.DataFrame:
    """Every claim of the documents, recomputed.

    Args:
        folder: read instead of data/reference/.

    Returns:
        A row for each claim: ``id``, ``source`` (the document), ``place`` (the section), ``claim`` (what is said),
        ``stated`` as printed, ``recomputed`` in the same unit, ``unit``, ``finding`` (one of `FINDINGS`), ``why`` in a
        line, ``rule``, ``telling`` (rank among the most informative claims, NA for the rest), and ``factor``: how many
        times too large or too small the stated number is, NaN for words.

    Raises UserError where a row or a claim can't be read; the message names file, line and what is wrong.
    """
    reference = Reference(folder)
    rows, claims = {}, list(reference.claims())
    for place, claim in claims:
        try:
            rows[claim.id] = _judged(claim, reference)
        except (UserError, ZeroDivisionError, ValueError) as error:
            raise UserError(f"{place}: claim {claim.id!r}: {error}") from None
    for claim in _premises_first(claims):
        refuted = [f"{name} ({rows[name]['finding']})" for name in claim.rests_on if rows[name]["finding"] not in FINE]
        if refuted and rows[claim.id]["finding"] in FINE:
            why = "; ".join(filter(None, (str(rows[claim.id]["why"]), f"rests on {', '.join(refuted)}")))
            rows[claim.id] |= {"finding": "refuted premise", "why": why}
    return pd.DataFrame(list(rows.values())).astype({"telling": "Int64"})


def advice(claims: pd.DataFrame, folder: Path = paths.REFERENCE) -> pd.DataFrame:
    """The documents' advice, and whether the claims that it rests on support it.

    Args:
        claims: the result of `audit`.
        folder: read instead of data/reference/.

    Returns:
        A row for each piece of advice: ``source``, ``advice``, ``verdict`` (``stands`` where every claim holds or is
        rounding, ``unsupported`` where the others are no worse, else ``falls``), ``against`` (the claims that do not
        hold), and ``instead``.

    Raises UserError where a row can't be read, or rests on a claim that doesn't exist.
    """
    found = claims.set_index("id")["finding"]
    rows = []
    for place, given in Reference(folder).advice():
        for claim in given.claims:
            if claim not in found:
                raise UserError(f"{place}: there is no claim {claim!r}{suggestion(claim, list(found.index))}")
        against = [claim for claim in given.claims if found[claim] not in FINE]
        kinds = {str(found[claim]) for claim in against}
        verdict = "stands" if not against else "unsupported" if kinds == {"unsupported"} else "falls"
        stated = {"source": given.document, "advice": given.advice}
        rows.append(stated | {"verdict": verdict, "against": against, "instead": given.instead})
    return pd.DataFrame(rows)


def _premises_first(claims: list[tuple[str, Claim]]) -> list[Claim]:
    """The claims in an order in which each comes after those that it rests on.

    Raises UserError where a claim rests on one that doesn't exist, or on itself.
    """
    by_id = {claim.id: (place, claim) for place, claim in claims}
    for place, claim in claims:
        for name in claim.rests_on:
            if name not in by_id:
                raise UserError(f"{place}: there is no claim {name!r}{suggestion(name, list(by_id))}")
    try:
        order = list(TopologicalSorter({claim.id: claim.rests_on for _, claim in claims}).static_order())
    except CycleError as error:
        place, claim = by_id[error.args[1][0]]
        raise UserError(f"{place}: claim {claim.id!r} rests on itself: take it out of its premises' premises") from None
    return [by_id[name][1] for name in order]


def _judged(claim: Claim, reference: Reference) -> dict[str, object]:
    if claim.rule not in RULES:
        raise UserError(f"unknown rule {claim.rule!r}; known are {', '.join(RULES)}{suggestion(claim.rule, RULES)}")
    rule, stated = RULES[claim.rule], reference.row(claim.stated, claim.document)
    inputs = _inputs(claim, rule, reference)
    outcome = rule.apply(stated, *inputs)
    finding = _finding(outcome, rule, stated, inputs)
    number = outcome.recomputed if isinstance(outcome.recomputed, Number) else None
    return {
        "id": claim.id,
        "source": claim.document,
        "place": stated.place,
        "claim": claim.claim,
        "stated": stated.value,
        "recomputed": as_printed(number, stated.value, stated.unit) if number else outcome.recomputed,
        "unit": stated.unit,
        "finding": finding,
        "why": "; ".join(filter(None, (outcome.how, claim.note))),
        "rule": claim.rule,
        "telling": claim.telling,
        "factor": _factor(stated, number),
    }


def _inputs(claim: Claim, rule: Rule, reference: Reference) -> list[Term]:
    if rule.counts:
        return _counted(claim, reference)
    inputs = [term for name in claim.inputs for term in reference.terms(name, claim.document)]
    if not rule.least <= len(inputs) <= rule.most:
        many = f"{rule.least}" if rule.most == rule.least else f"{rule.least} or more"
        raise UserError(f"the rule {claim.rule!r} takes {many} inputs, not {len(inputs)}")
    return inputs


def _counted(claim: Claim, reference: Reference) -> list[Term]:
    """A quantity and how many of it are needed, then a term for each row of the document that states it."""
    if len(claim.inputs) != 2:
        raise UserError(f"the rule {claim.rule!r} takes a quantity and how often it is needed")
    quantity, needed = claim.inputs
    there = [row for row in reference.rows[claim.document].values() if row.quantity == quantity]
    asked = [Term(None, None, quantity), *reference.terms(needed, claim.document)]
    return [*asked, *(Term(row.number, row, row.shown) for row in there)]


def _finding(outcome: Outcome, rule: Rule, stated: Row, inputs: list[Term]) -> Finding:
    if outcome.agrees is None:
        if stated.number is None or not isinstance(outcome.recomputed, Number):
            raise UserError(f"the stated {stated.value!r} is a word, where the rule needs a number")
        if stated.number.contains(outcome.recomputed.value):
            return "holds"
        if stated.number.meets(outcome.recomputed):
            return "rounding"
    elif outcome.agrees:
        return "holds"
    if rule.otherwise:
        return rule.otherwise
    others = {term.row.document for term in inputs if term.row} - {stated.document}
    return "contradicts another" if others else "contradicts itself"


def _factor(stated: Row, number: Number | None) -> float:
    if stated.number is None or number is None or not stated.number.value > 0 or not number.value > 0:
        return float("nan")
    ratio = stated.number.value / number.value
    return max(ratio, 1 / ratio)


__all__ = ["FINDINGS", "FINE", "advice", "audit"]
