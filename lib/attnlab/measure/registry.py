"""Every implementation, callable, by name."""

from attnlab.ladder import PREFIX
from attnlab.measure import kernels
from attnlab.measure.attention import REGISTRY, Implementation


def find(name: str) -> Implementation:
    """The implementation that a study calls `name`.

    Raises:
        UserError: a rung that the ladder hasn't.
    """
    return kernels.implementation(name) if name.startswith(PREFIX) and name not in REGISTRY else REGISTRY[name]
