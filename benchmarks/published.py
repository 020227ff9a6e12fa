"""The published run."""

RUN = "h200-2026-11-28-main"
