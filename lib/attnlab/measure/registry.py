"""Every implementation, callable, by name."""

from dataclasses import replace

from attnlab import implementations
from attnlab.ladder import PREFIX
from attnlab.measure import attend, kernels, peers
from attnlab.measure.attention import REGISTRY, Implementation

_OTHERS = {other.name: other for other in (*peers.PEERS, attend.DISPATCHED)}


def find(name: str) -> Implementation:
    """The implementation that a run calls `name`: one that a study names, or the control of one.

    Raises:
        UserError: a rung that the ladder hasn't.
    """
    if implementations.is_control(name):
        return replace(find(implementations.under_control(name)), name=name)
    known = REGISTRY | _OTHERS
    return kernels.implementation(name) if name.startswith(PREFIX) and name not in known else known[name]
