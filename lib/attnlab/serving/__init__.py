"""`attnlab.attend`: attention by the fastest implementation measured, in place of SDPA. Nothing imports it early."""
