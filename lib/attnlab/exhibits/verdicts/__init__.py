"""The page 06_verdicts."""

from attnlab.exhibits.verdicts import abstract, accuracy, every, findings, power, target, values

__all__ = ["abstract", "accuracy", "every", "findings", "power", "target", "values"]
