"""The numbers in Q, K and V: each input distribution, and inputs captured from a model's attention."""
