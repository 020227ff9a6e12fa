"""Everything that is shown: a module or folder for each notebook, by its name, and modules that they share."""
