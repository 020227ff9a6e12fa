"""Reading latencies: our clocks, other tools' clocks to compare them with, and the canary in the cache."""
