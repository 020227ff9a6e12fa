"""`attnlab.attend`: attention by the fastest implementation measured, in place of SDPA. No other package imports it."""
