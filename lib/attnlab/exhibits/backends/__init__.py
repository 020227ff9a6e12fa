"""The page 04_backends."""

from attnlab.exhibits.backends import advice, attend, choosing, cost, peers, runs, workloads

__all__ = ["advice", "attend", "choosing", "cost", "peers", "runs", "workloads"]
