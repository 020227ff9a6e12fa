"""The half that needs only a recorded run: infer, draw, tabulate, say. It never imports torch, CuPy or ``measure``."""
