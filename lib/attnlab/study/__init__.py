"""Declarations that precede every measurement: shapes, studies, implementations, the ladder."""
