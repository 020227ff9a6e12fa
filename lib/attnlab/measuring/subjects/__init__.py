"""Implementations of attention, their inputs and outputs, and the float64 oracle that checks them."""
