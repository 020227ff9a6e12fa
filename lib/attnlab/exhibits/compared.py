"""One run against another in print: how many cases are slower, what differs, and a row for each case."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from attnlab.exhibits import decisions, formats
from attnlab.exhibits.display import Table
from attnlab.exhibits.formats import CI, MARGIN
from attnlab.infer.compare import repeat, verdicts
from attnlab.infer.compare.verdicts import Compared
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval

ORDER = (decisions.SLOWER, decisions.FASTER, decisions.INCONCLUSIVE, decisions.EQUIVALENT)


@dataclass(frozen=True)
class Comparison:
    """A run against the one before it, in print."""

    here: Results
    there: Results

    @cached_property
    def cases(self) -> list[Compared]:
        """The cases of both, those that are slower first, then those that are faster."""
        found = verdicts.compare(self.here, self.there)
        return sorted(found, key=lambda case: ORDER.index(case.verdict.decision))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row of texts for each case."""
        return pd.DataFrame([self._row(case) for case in self.cases])

    def _row(self, case: Compared) -> dict[str, str]:
        decision = case.verdict.decision
        return {
            "verdict": f"{decisions.SIGNS[decision]} {decision}",
            "implementation": case.change.implementation,
            "shape": case.change.shape.label,
            "timing": str(case.change.timing),
            f"{self.there.run.name} (µs)": formats.interval(case.there),
            f"{self.here.run.name} (µs)": formats.interval(case.here),
            f"change [{CI}]": formats.change(repeat.in_percent(repeat.inverse(case.verdict.speedup))),
            "noise": formats.percent(100 * case.noise),
            "source": "edited" if case.edited else "",
        }

    @property
    def words(self) -> str:
        """How many cases there are of each verdict, what noise rests on, and what differs between the runs."""
        counts = Counter(case.verdict.decision for case in self.cases)
        told = formats.listing([f"{counts[decision]} {decision}" for decision in ORDER])
        same = len(verdicts.unchanged(self.here, self.there))
        rests = f"{formats.count(same, 'implementation')} that did not change, and on " if same else ""
        lines = [
            f"`{self.here.run.name}` against `{self.there.run.name}`: {told} (within ±{MARGIN}), "
            f"of {formats.count(len(self.cases), 'case')}.",
            f"The noise between the runs rests on {rests}their controls and replicates. "
            "Nothing within it is called faster or slower.",
        ]
        devices = [run.run.manifest["device"]["name"] for run in (self.here, self.there)]
        differing = [("device", *devices), *repeat.differences(self.here, self.there).rows]
        return "\n".join([*lines, *(_differs(*row) for row in differing if row[1] != row[2])])

    @property
    def text(self) -> str:
        """All of it for a terminal."""
        return f"{self.frame.to_string(index=False)}\n\n{self.words}"

    @property
    def markdown(self) -> str:
        """All of it for a pull request, what is neither slower nor faster folded away."""
        words = "\n".join(f"- {line}" for line in self.words.splitlines())
        decided = [case.verdict.decision in ORDER[:2] for case in self.cases]
        rest = self.frame[[not one for one in decided]]
        parts = [words]
        if any(decided):
            parts.append(Table(self.frame[decided], "Slower or faster.").markdown)
        if len(rest):
            table = Table(rest, "Neither.").markdown
            others = formats.count(len(rest), "other case")
            parts.append(f"<details><summary>{others}</summary>\n\n{table}\n\n</details>")
        return "\n\n".join(parts)


def _differs(name: str, *values: object) -> str:
    now, before = (formats.interval(value) if isinstance(value, Interval) else str(value) for value in values)
    return f"{name}: {before}, then {now}."
