"""The published run, whose name stands in the Makefile."""

import re

from attnlab.base import paths

RUN = re.findall(r"^PUBLISHED := (\S+)$", (paths.ROOT / "Makefile").read_text(), re.MULTILINE)[0]
