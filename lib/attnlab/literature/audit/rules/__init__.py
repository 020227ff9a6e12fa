"""The rules by which a stated number follows from others, each a few lines of arithmetic on printed numbers.

A rule takes the row that states a number and the terms that it should follow from, and returns the recomputed number.
No rule knows any document; data/reference/claims.csv says which rule applies to which rows.
"""

from attnlab.literature.audit.rules import arithmetic, hardware, intervals, work
from attnlab.literature.audit.rules.rule import RULES, Finding, Outcome, Rule

__all__ = ["RULES", "Finding", "Outcome", "Rule", "arithmetic", "hardware", "intervals", "work"]
