"""What a call costs, from a price per hour, and what energy it takes, as far as NVML can say."""

import math
from typing import Any

import pandas as pd

from attnlab.analyse import formats
from attnlab.analyse.backends import Setting, best
from attnlab.analyse.display import Prose, Table, telling
from attnlab.analyse.results import CASE, NotMeasured, Results, axis_of, median_of
from attnlab.analyse.tables import LETTERS
from attnlab.errors import UserError
from attnlab.shapes import Shape

US_PER_HOUR = 3_600_000_000
SETTLED = 0.5
"""Of a load without pause, the part at whose end the card has settled."""


@telling
def table(results: Results, price_per_hour: float, sweep: str = "seq_len") -> Table:
    """What a million sequences and a billion tokens cost at each shape of a sweep, by the fastest backend there.

    Args:
        price_per_hour: of the device, in dollars.

    Raises:
        UserError: the price is no positive number.
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
            "call (µs) [95 %]": formats.stacked(median_of(setting.row)),
            "$ a million sequences": _dollars(setting, price, 1e6 / setting.shape.batch),
            "$ a billion tokens": _dollars(setting, price, 1e9 / setting.shape.tokens),
        }
        for setting in settings
    ]
    note = (
        f"At {price:g} $ an hour, a parameter of this page. One attention call over the whole batch is counted, as one "
        "layer makes it: a model makes one a layer, and does other things besides. Back-to-back calls are taken for "
        "granted; an idle device costs as much."
    )
    return Table(pd.DataFrame(rows), "cost", f"What attention costs; {results.headline.words}.", note)


def require_price(price_per_hour: Any) -> float:
    """Return the price of the device in dollars an hour.

    Raises:
        UserError: it is no positive number.
    """
    number = isinstance(price_per_hour, int | float) and not isinstance(price_per_hour, bool)
    if not number or not math.isfinite(price_per_hour) or price_per_hour <= 0:
        raise UserError(f"price_per_hour has to be a number of dollars above zero, not {price_per_hour!r}")
    return float(price_per_hour)


def _dollars(setting: Setting, price: float, calls: float) -> str:
    """What so many calls cost, with its 95 % interval."""
    median, scale = median_of(setting.row), price * calls / US_PER_HOUR
    estimate, low, high = (formats.number(scale * us, 4) for us in (median.estimate, median.low, median.high))
    return f"{estimate}\n[{low}, {high}]"


@telling
def energy(results: Results) -> Table:
    """What a call takes of energy under a load without pause, once the card has settled."""
    slices = results.run.endurance
    slices = slices[slices["latency_us"].notna() & slices["power_w"].notna()] if not slices.empty else slices
    if slices.empty:
        raise NotMeasured("No load without pause was recorded with its power, so a call's energy can't be told")
    rows = []
    for (name, *axes), load in slices.groupby(CASE, sort=False):
        settled = load[load["started_s"] >= SETTLED * load["started_s"].max()]
        shape = Shape(*axes)
        joules = float((settled["power_w"].astype(float) * settled["latency_us"]).median() / 1e6)
        rows.append(
            {
                "implementation": name,
                "shape": formats.shape(shape),
                "call (µs)": formats.number(settled["latency_us"].median(), 4),
                "power (W)": f"{settled['power_w'].astype(float).median():.0f}",
                "J a call": formats.number(joules),
                "µJ a token": formats.number(1e6 * joules / shape.tokens),
                "pJ a FLOP": formats.number(1e12 * joules / shape.flops),
            }
        )
    note = (
        "One implementation without pause, the second half of its load: power times latency, of the whole board. "
        "NVML's reading is an average over a window of its own, of which it samples only part, and it can't be told "
        "apart by kernel: where implementations take turns, as in the rounds, no energy is given."
    )
    return Table(pd.DataFrame(rows), "energy", "Energy of a call, as far as NVML tells.", note)


def unpriced(results: Results) -> Prose:
    """That cost follows latency, so that its verdicts do."""
    return Prose(
        "Cost is the latency times a constant, so every verdict on it is that of the latency: what can't be told apart "
        "there can't be told apart here."
    )
