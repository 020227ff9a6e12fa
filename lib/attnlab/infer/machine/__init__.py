"""The machine of a run: its clocks, what its cache held, how its cards differ, and what measuring took."""
