"""The rules by which a run is judged: constants that the gate, the inference and all text about them share."""

GATE_FACTOR = 2.0
"""An error may be at most this many times that of the framework's own low-precision result."""
STEADY = 0.02
"""A warm-up ends when 2 windows of calls take the same time to within this fraction."""
SEED = 42
"""The seed of inputs, orders and resamples."""
RESAMPLES = 10_000
CONFIDENCE = 0.95
ALPHA = 0.05
EQUIVALENCE_MARGIN = 0.02
"""Medians within this fraction of each other are equivalent."""
CLAIM_SPEEDUP = 1.10
"""The least speedup that may be claimed."""
CLAIM_DELTA = 0.3
"""The least |Cliff's delta| that may be claimed."""
POWER = 0.8
"""The probability with which the minimum detectable effect is detected."""


def recorded() -> dict[str, float]:
    """All rules by name, as the manifest of a run holds them."""
    return {name.lower(): value for name, value in globals().items() if name.isupper()}
