"""Every implementation by its name, callable."""

from dataclasses import replace

from attnlab.measure.fp8 import subjects as fp8
from attnlab.measure.subjects import attend, best, peers
from attnlab.measure.subjects.implementation import Implementation
from attnlab.measure.subjects.sdpa import REGISTRY
from attnlab.study import implementations
from attnlab.study.ladder import PREFIX

_OTHERS = {other.name: other for other in (*peers.PEERS, *fp8.SUBJECTS, attend.DISPATCHED)}


def find(name: str) -> Implementation:
    """The implementation that a run calls `name`: one that a study names, or the control of its baseline.

    Raises:
        UserError: it is a rung that the ladder does not have.
    """
    if implementations.is_control(name):
        return replace(find(implementations.under_control(name)), name=name)
    known = REGISTRY | _OTHERS
    return best.implementation(name) if name.startswith(PREFIX) and name not in known else known[name]
