"""Is your attention kernel really faster? Two halves, ``measure`` and ``analyse``, that meet in the run folder."""

__version__ = "0.1.0"
