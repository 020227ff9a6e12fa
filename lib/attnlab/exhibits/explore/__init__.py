"""The page 10_explore, and the explorer: one widget, in JupyterLab and on a page that needs no server."""
