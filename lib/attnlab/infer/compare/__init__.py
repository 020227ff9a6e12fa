"""A run beside others: the same cases again, and published numbers."""
