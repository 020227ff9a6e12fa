"""Numbers from a run, and no words."""
