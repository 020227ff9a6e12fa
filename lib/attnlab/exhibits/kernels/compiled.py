"""What each kernel needs of a multiprocessor, how its grid fills the device, and which instances ran."""

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Group, Table
from attnlab.exhibits.kernels.climb import without
from attnlab.exhibits.words import say
from attnlab.infer.kernels.rungs import Resources, instances, resources, rungs
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape


@exhibit("kernels.compiled", shape=target)
def compiled(results: Results, shape: Shape) -> Group:
    """Resources and launch geometry of every rung at a shape, and which instances ran."""
    used = {rung.implementation: found for rung in rungs(results) if (found := resources(results, rung, shape))}
    if not used:
        raise NotMeasured(f"No kernel was launched at {shape.label}")
    parts = {"resources": _resources(results, used, shape), "grid": _grid(used, shape)}
    return Group(parts | ({"instances": _instances(ran)} if (ran := instances(results)) else {}))


def _resources(results: Results, used: dict[str, Resources], shape: Shape) -> Table:
    rows = [
        {
            "rung": name,
            "for": each.architecture,
            "threads": each.threads,
            "registers": each.registers,
            "local (B)": each.local_bytes,
            "shared, static (KiB)": each.static_shared_bytes,
            "shared, dynamic (KiB)": each.dynamic_shared_bytes,
            "CTAs per SM": each.ctas_per_sm,
            "occupancy": each.occupancy_pct,
            "limited by": formats.listing(each.limits) if each.limits else None,
        }
        for name, each in used.items()
    ]
    shows = dict.fromkeys(("shared, static (KiB)", "shared, dynamic (KiB)"), formats.kibibytes)
    note = say("kernels.resources", without=without(results, shape))
    shows |= {"occupancy": formats.percent}
    return Table.of(rows, f"Resources of the kernels at {shape.label}.", note, shows=shows)


def _grid(used: dict[str, Resources], shape: Shape) -> Table:
    rows = [
        {
            "rung": name,
            "persistent": "yes" if each.persistent else "no",
            "work items": each.items,
            "CTAs": each.ctas,
            "at once": each.slots,
            "waves": each.waves,
            "last wave": each.last_wave_pct,
            "SMs with work": each.busy_pct,
        }
        for name, each in used.items()
    ]
    shows = dict.fromkeys(("work items", "CTAs", "at once"), formats.whole)
    shows |= dict.fromkeys(("last wave", "SMs with work"), formats.percent)
    note = say("kernels.grid", causal=shape.causal)
    return Table.of(rows, f"Launch geometry at {shape.label}.", note, shows=shows)


def _instances(ran: dict[str, dict[str, list[Shape]]]) -> Table:
    rows = [
        {"implementation": name, "instance": function, "ran at": _sizes(shapes)}
        for name, functions in ran.items()
        for function, shapes in functions.items()
    ]
    note = "An instance is named by its template arguments: first the dtype, the head dimension and the mask."
    return Table.of(rows, "Which instance ran where, of kernels that have several for a shape.", note)


def _sizes(shapes: list[Shape]) -> str:
    """The sizes of shapes of one head_dim, each once, and the number of kinds of values that they were on."""
    lengths: dict[tuple[int, int], set[int]] = {}
    for shape in shapes:
        lengths.setdefault((shape.batch, shape.heads), set()).add(shape.seq_len)
    named = {sizes: ", ".join(map(str, sorted(found))) for sizes, found in lengths.items()}
    on_kinds = len({shape.values for shape in shapes})
    said = "; ".join(f"B={batch} H={heads} S={all_of}" for (batch, heads), all_of in named.items())
    return f"{said}, {on_kinds} kinds of values" if on_kinds > 1 else said
