"""What a record of models that generate shows: verdicts, outputs, and the share of attention."""
