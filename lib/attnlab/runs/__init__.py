"""The run folder, which the measuring half of attnlab writes and the other half reads: layout, rules and names."""
