"""The version of this package, which a run's manifest names."""

VERSION = "0.1.0"
