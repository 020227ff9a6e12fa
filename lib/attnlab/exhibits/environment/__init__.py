"""The page 01_environment."""

from attnlab.exhibits.environment import cards, clocks, load, machine, panel, provenance

__all__ = ["cards", "clocks", "load", "machine", "panel", "provenance"]
