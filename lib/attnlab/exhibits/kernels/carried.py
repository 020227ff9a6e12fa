"""Whether the ladder's lead on this device is a lead on another."""

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.environment.machine import replicate_words
from attnlab.infer.beside import carried
from attnlab.infer.beside.carried import Carried
from attnlab.infer.beside.repeat import other_sources
from attnlab.infer.results import Results
from attnlab.study.ladder import BEST


@exhibit("kernels.carried", where=carried.is_elsewhere)
def shown(results: Results) -> Group:
    """The fastest hand-written kernel over the fastest of all else, here and on another device."""
    found = carried.find(results)
    return Group({"words": words(found), "table": table(found)})


def words(found: Carried) -> Prose:
    """How many signs agree, and where they don't."""
    signs = {shape: found.sign(shape) for shape in found.leads}
    differing = [shape.label for shape, sign in signs.items() if sign == carried.DIFFERENT]
    here, there = (_device(side) for side in (found.here, found.there))
    same, unsure = (list(signs.values()).count(sign) for sign in (carried.SAME, carried.OPEN))
    at = "all" if same == len(signs) else str(same)
    sentences = [
        f"The run `{found.there.run.name}` measured {formats.count(len(signs), 'shape')} of this one on {there}, in "
        f"{replicate_words(found.there)}. At {at} of them the sign is that on {here}: the fastest hand-written kernel "
        "leads on both, or on neither."
    ]
    if unsure:
        sentences.append(f"At {unsure} of them an interval holds 1.")
    if differing:
        sentences.append(f"**The two runs disagree at {formats.listing(differing)}.**")
    # `kernel.best` is what the device's own tuning chose, and differs between any two.
    if changed := other_sources(found.here, found.there) - {BEST}:
        names = formats.listing([f"`{name}`" for name in sorted(changed)])
        sentences.append(
            f"Between the two, the source of {names} changed: what differs may be the kernel's and not the device's."
        )
    return Prose(" ".join(sentences))


def table(found: Carried) -> Table:
    """Both leads at each shape."""
    rows = []
    for shape, (here, there) in found.leads.items():
        row = {"shape": shape.label}
        for lead, side in ((here, found.here), (there, found.there)):
            row[_device(side)] = f"{lead.kernel} over {lead.over}"
            row[f"ratio, {_device(side)}"] = formats.stacked(lead.ratio)
        rows.append(row | {"sign": found.sign(shape)})
    caption = (
        f"The fastest hand-written kernel over the fastest of all else at each shape, on two devices; "
        f"{found.here.headline.words}."
    )
    note = "Above 1 the kernel leads. Each ratio is of one run, from rounds taken together."
    return Table(pd.DataFrame(rows), caption, note)


def _device(side: Results) -> str:
    return str(side.run.manifest["device"]["name"]).removeprefix("NVIDIA ")
