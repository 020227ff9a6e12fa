"""`attnlab.attend`: attention by what was measured to be the fastest, in place of SDPA. Nothing imports it."""
