"""The page 01_environment."""

from attnlab.exhibits.environment import caches, clocks, load, machine, panel, provenance, rules, samples

__all__ = ["caches", "clocks", "load", "machine", "panel", "provenance", "rules", "samples"]
