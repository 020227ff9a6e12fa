"""Facts that the pages say in words."""
