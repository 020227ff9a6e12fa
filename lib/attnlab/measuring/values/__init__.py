"""The numbers in Q, K and V: each kind of values, and what a model's attention was called with."""
