"""Measuring a study into a run: processes, checks, rounds, the panel of clocks, loads, ceilings."""
