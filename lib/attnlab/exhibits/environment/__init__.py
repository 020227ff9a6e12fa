"""The page 01_environment."""

from attnlab.exhibits.environment import (
    caches,
    cards,
    clocks,
    load,
    machine,
    neighbours,
    panel,
    provenance,
    rules,
    samples,
)

__all__ = ["caches", "cards", "clocks", "load", "machine", "neighbours", "panel", "provenance", "rules", "samples"]
