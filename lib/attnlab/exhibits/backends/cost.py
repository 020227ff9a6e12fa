"""The cost of a call, from a price per hour, and its energy by NVML."""

import math
from typing import Any

from attnlab.base.errors import UserError
from attnlab.exhibits import formats, quantities
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.infer.backends import settings
from attnlab.infer.cases import CASE
from attnlab.infer.lookup import median_of
from attnlab.infer.regimes import Load
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.shapes import Shape

US_PER_HOUR = 3_600_000_000


@exhibit("backends.cost")
def cost(results: Results, price_per_hour: float, choices: Results | None = None) -> Group:
    """The cost of tokens by the fastest backend at each length, and the energy of a call.

    Args:
        price_per_hour: price of the device in dollars.

    Raises:
        UserError: the price is not a positive number.
    """
    price = require_price(price_per_hour)
    return Group({"price": _priced(choices or results, price), "energy": _energy(results)})


def _priced(results: Results, price: float) -> Table:
    rows = [
        {"S": setting.shape.seq_len, "fastest": setting.name}
        | quantities.cells(setting.row, "median_us")
        | {"$ a million sequences": cost_of_call.scaled(1e6 / setting.shape.batch)}
        | {"$ a billion tokens": cost_of_call.scaled(1e9 / setting.shape.tokens)}
        for setting in settings.along(results, "seq_len")
        for cost_of_call in [median_of(setting.row).scaled(price / US_PER_HOUR)]
    ]
    note = (
        f"At {price:g} $ an hour, a parameter of this page. This is one attention call over the whole batch; a model "
        "makes one per layer, and has other work. Calls are assumed to be back to back; an idle device costs as much. "
        "Cost is the latency times a constant, so every verdict on cost is that on latency."
    )
    shows = dict.fromkeys(("$ a million sequences", "$ a billion tokens"), _print_dollars)
    return Table.of(rows, f"The cost of attention; {results.headline.words}.", note, shows=shows)


def require_price(price_per_hour: Any) -> float:
    """Return the price of the device in dollars an hour.

    Raises:
        UserError: it is not a positive number.
    """
    number = isinstance(price_per_hour, int | float) and not isinstance(price_per_hour, bool)
    if not number or not math.isfinite(price_per_hour) or price_per_hour <= 0:
        raise UserError(f"price_per_hour has to be a number of dollars above zero, not {price_per_hour!r}")
    return float(price_per_hour)


def _print_dollars(cost: Interval) -> str:
    estimate, low, high = (formats.number(dollars, 4) for dollars in (cost.estimate, cost.low, cost.high))
    return f"{estimate} [{low}, {high}]"


def _energy(results: Results) -> Table | Prose:
    """The energy of a call under a load without pause, once the card has settled."""
    slices = results.run.endurance
    slices = slices.dropna(subset=["latency_us", "power_w"])
    if slices.empty:
        return Prose("No load without pause was recorded with its power, so a call's energy is not known.")
    rows = []
    for (name, *axes), load in slices.groupby(CASE, sort=False):
        held, shape = Load(name, load), Shape(*axes)
        settled, joules = held.settled, held.joules
        rows.append(
            {
                "implementation": name,
                "shape": shape.label,
                "call (µs)": float(settled["latency_us"].median()),
                "power (W)": float(settled["power_w"].astype(float).median()),
                "J a call": joules,
                "µJ a token": 1e6 * joules / shape.tokens,
                "pJ a FLOP": 1e12 * joules / shape.flops,
            }
        )
    note = (
        "Power of the whole board times latency, in the second half of a load of one implementation without pause. "
        "NVML averages over part of a window of its own and can't separate kernels, so no energy is given for rounds, "
        "where implementations take turns."
    )
    return Table.of(rows, "Energy of a call, by NVML.", note)
