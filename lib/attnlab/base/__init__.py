"""Modules that all other packages use: errors, files, sources, paths."""
