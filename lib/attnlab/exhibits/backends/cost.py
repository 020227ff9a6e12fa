"""The cost of a call, from a price per hour, and its energy by NVML."""

import math
from typing import Any

import pandas as pd

from attnlab.base.errors import UserError
from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.infer.backends.settings import Setting, best
from attnlab.infer.cases import CASE
from attnlab.infer.lookup import NotMeasured, axis_of, median_of
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape

US_PER_HOUR = 3_600_000_000
SETTLED = 0.5
"""The card has settled after this share of a load without pause."""


@exhibit("backends.cost", of="choices")
def table(results: Results, price_per_hour: float, sweep: str = "seq_len") -> Table:
    """The cost of a million sequences and of a billion tokens at each shape of a sweep, by the fastest backend there.

    Args:
        price_per_hour: price of the device in dollars.

    Raises:
        UserError: the price is not a positive number.
    """
    price = require_price(price_per_hour)
    axis = axis_of(sweep)
    settings = [best(results, shape) for shape in results.sweep(sweep) if not results.at(shape).empty]
    if not settings:
        raise NotMeasured(f"Nothing has a latency in the sweep “{sweep}”")
    rows = [
        {
            LETTERS[axis]: getattr(setting.shape, axis),
            "fastest": setting.name,
            f"call (µs) [{CI}]": formats.stacked(median_of(setting.row)),
            "$ a million sequences": _dollars(setting, price, 1e6 / setting.shape.batch),
            "$ a billion tokens": _dollars(setting, price, 1e9 / setting.shape.tokens),
        }
        for setting in settings
    ]
    note = (
        f"At {price:g} $ an hour, a parameter of this page. This is one attention call over the whole batch; a model "
        "makes one per layer, and has other work. Calls are assumed to be back to back; an idle device costs as much."
    )
    return Table(pd.DataFrame(rows), f"The cost of attention; {results.headline.words}.", note)


def require_price(price_per_hour: Any) -> float:
    """Return the price of the device in dollars an hour.

    Raises:
        UserError: it is not a positive number.
    """
    number = isinstance(price_per_hour, int | float) and not isinstance(price_per_hour, bool)
    if not number or not math.isfinite(price_per_hour) or price_per_hour <= 0:
        raise UserError(f"price_per_hour has to be a number of dollars above zero, not {price_per_hour!r}")
    return float(price_per_hour)


def _dollars(setting: Setting, price: float, calls: float) -> str:
    """The cost of a number of calls, with its interval."""
    median, scale = median_of(setting.row), price * calls / US_PER_HOUR
    estimate, low, high = (formats.number(scale * us, 4) for us in (median.estimate, median.low, median.high))
    return f"{estimate}\n[{low}, {high}]"


@exhibit("backends.energy")
def energy(results: Results) -> Table:
    """The energy of a call under a load without pause, once the card has settled."""
    slices = results.run.endurance
    slices = slices[slices["latency_us"].notna() & slices["power_w"].notna()] if not slices.empty else slices
    if slices.empty:
        raise NotMeasured("No load without pause was recorded with its power, so a call's energy is not known")
    rows = []
    for (name, *axes), load in slices.groupby(CASE, sort=False):
        settled = load[load["started_s"] >= SETTLED * load["started_s"].max()]
        shape = Shape(*axes)
        joules = float((settled["power_w"].astype(float) * settled["latency_us"]).median() / 1e6)
        rows.append(
            {
                "implementation": name,
                "shape": shape.label,
                "call (µs)": formats.number(settled["latency_us"].median(), 4),
                "power (W)": f"{settled['power_w'].astype(float).median():.0f}",
                "J a call": formats.number(joules),
                "µJ a token": formats.number(1e6 * joules / shape.tokens),
                "pJ a FLOP": formats.number(1e12 * joules / shape.flops),
            }
        )
    note = (
        "Power of the whole board times latency, in the second half of a load of one implementation without pause. "
        "NVML averages over part of a window of its own and can't separate kernels, so no energy is given for rounds, "
        "where implementations take turns."
    )
    return Table(pd.DataFrame(rows), "Energy of a call, by NVML.", note)


@exhibit("backends.unpriced", of="choices")
def unpriced(results: Results) -> Prose:
    """That verdicts on cost are those on latency."""
    return Prose(
        "Cost is the latency times a constant, so every verdict on cost is that on latency: what is not distinguished "
        "there is not distinguished here."
    )
