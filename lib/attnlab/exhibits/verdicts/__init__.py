"""The page 06_verdicts."""

from attnlab.exhibits.verdicts import accuracy, every, findings, power, target, values

__all__ = ["accuracy", "every", "findings", "power", "target", "values"]
