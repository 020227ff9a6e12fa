"""Words that both halves spell alike: each is spelled once, in ``runs/``."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from attnlab.base import paths
from attnlab.runs import methods, rules, schema
from attnlab.study.values import NORMAL

LIB = paths.ROOT / "lib" / "attnlab"
SOURCES = sorted(path for path in LIB.rglob("*.py") if path.parent != LIB / "runs")
CLOCKS = {methods.EAGER, methods.DEVICE}
"""These name a clock of a study as well, and are spelled in many places."""
TOOLS = {methods.NCU, methods.CUPTI}
"""These name a tool as well."""


def strings(path: Path) -> Iterator[tuple[int, str, str]]:
    """The string constants of a file but for its docstrings: line, content, and the line's text."""
    text = path.read_text()
    tree, lines = ast.parse(text), text.splitlines()
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value, lines[node.lineno - 1]


def test_what_both_halves_spell_alike_is_spelled_once():
    names = {method.name for method in methods.METHODS} - CLOCKS - TOOLS
    found = [
        f"{path.relative_to(LIB)}:{number}: {value}"
        for path in SOURCES
        for number, value, line in strings(path)
        if value in names
        or re.search(r"\b(gpu|sm|smsp|l1tex|lts|dram|launch)__\w", value)
        or value in (schema.OUT_OF_MEMORY, *schema.EXTREMES)
        or (value in schema.STATUSES and "status" in line)
        or (value == NORMAL and "inputs" in line)
    ]
    assert found == []


def test_every_rule_is_recorded_under_its_name():
    recorded = rules.recorded()
    assert recorded["gate_factor"] == rules.GATE_FACTOR == 2.0
    assert recorded["steady"] == rules.STEADY == 0.02
    assert recorded["seed"] == rules.SEED == 42
    stated = {node.targets[0].id.lower() for node in ast.parse((LIB / "runs" / "rules.py").read_text()).body
              if isinstance(node, ast.Assign)}  # fmt: skip
    assert set(recorded) == stated
