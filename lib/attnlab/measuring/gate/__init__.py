"""Correctness before speed: the checks of an implementation before and after it is timed."""
