"""Numbers of the ladder: its rungs, what each gained, and who leads."""
