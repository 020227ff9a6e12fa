"""Numbers for the choice of a backend: the fastest at each shape, rules, and what `attnlab.attend` adds."""
