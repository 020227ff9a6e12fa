"""The page 04_backends."""

from attnlab.exhibits.backends import advice, attend, calls, choosing, cost, peers, tables

__all__ = ["advice", "attend", "calls", "choosing", "cost", "peers", "tables"]
