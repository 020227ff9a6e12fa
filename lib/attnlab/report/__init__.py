"""From a notebook to a page: check its parameters, execute it, render it as a paper."""
