"""Correctness before speed: what an implementation has to pass before and after it is timed."""
