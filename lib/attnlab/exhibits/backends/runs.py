"""The runs that this page shows."""

from attnlab.exhibits.catalogue import exhibit, find
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.infer.results import Results


@exhibit("backends.run")
def run(
    results: Results,
    choices: Results | None = None,
    attended: Results | None = None,
    decoded: Results | None = None,
) -> Group:
    """The runs that this page shows, each once: what each is, what it lacks, and which cases have no latency."""
    shown = {each.run.name: each for each in (choices, attended, decoded) if each} or {results.run.name: results}
    makes = {what: find(f"environment.{what}").make for what in ("run", "lacking", "cases")}
    parts = {f"{name}.{what}": make(each) for name, each in shown.items() for what, make in makes.items()}
    return Group({name: part for name, part in parts.items() if isinstance(part, Prose | Table)})
