"""From notebooks to pages: check parameters, execute, assemble the report, number, render."""
