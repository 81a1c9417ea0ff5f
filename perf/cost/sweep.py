"""Prices loads from 10 KB/s to 50 MB/s, steady and in bursts, by the policy `cost` and the write path's own
decisions.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.settings.agent_settings import AgentSettings
from agent.wiring.storage_run import log_manager_limits
from perf.cost.counts import FOLLOWERS, Counts
from perf.cost.load import Assigned, Load
from perf.cost.world import CostWorld
from plugin.prices import BYTES_PER_GB, Prices
from rlm.write_path.commit.link_costs import LinkCosts
from rlm.write_path.commit.link_policy import CostLimits

RATES: Final = (10e3, 30e3, 100e3, 300e3, 1e6, 2e6, 5e6, 10e6, 30e6, 50e6)
"""Bytes per second to one broker."""
SHAPES: Final = {"steady": (0.0, 0.0), "0.1 s of 1 s": (0.1, 1.0), "2 s of 10 s": (2.0, 10.0)}
"""The active time and the period of each shape; the rate is higher in the active time."""
LIFE_S: Final = 3600.0
"""The objects' life time: an hour."""


@dataclass(frozen=True, slots=True)
class Case:
    """One cell of the sweep."""

    rate: float
    shape: str
    acks_all: bool

    @property
    def load(self) -> Load:
        """The load of this case."""
        return Load(self.rate, *SHAPES[self.shape], acks_all=self.acks_all)


@dataclass(frozen=True, slots=True)
class Priced:
    """The result of one case."""

    case: Case
    counts: Counts
    usd_gb: float
    """Dollars per gigabyte produced."""
    stock_usd_gb: float

    @property
    def ratio(self) -> float:
        """The cost compared with stock Kafka's."""
        return self.usd_gb / self.stock_usd_gb

    def numbers(self) -> dict[str, float]:
        """Return the counts per second or per gigabyte."""
        counts, gb = self.counts, self.counts.produced_bytes / BYTES_PER_GB
        return {
            "produced_bytes_per_s": counts.produced_bytes / counts.seconds,
            "objects_per_s": counts.puts / counts.seconds,
            "puts_per_gb": counts.puts / gb,
            "gets_per_gb": counts.gets / gb,
            "uploaded_share": counts.uploaded_bytes / counts.produced_bytes,
            "linked_share": counts.linked_bytes / max(counts.linked_bytes + counts.inline_bytes, 1),
            "retrieved_share": counts.retrieved_bytes / counts.produced_bytes / FOLLOWERS,
            "metadata_bytes_per_gb": counts.metadata_bytes / gb,
            "usd_gb": self.usd_gb,
            "stock_usd_gb": self.stock_usd_gb,
            "ratio": self.ratio,
        }

    def row(self) -> dict[str, float | str | bool]:
        """Return a row for JSON output."""
        case = self.case
        return {"bytes_per_s": case.rate, "shape": case.shape, "acks_all": case.acks_all, **self.numbers()}


def cases(rates: Iterable[float] = RATES) -> Iterator[Case]:
    """Return all cases."""
    return (Case(rate, shape, acks) for acks in (False, True) for shape in SHAPES for rate in rates)


def price(
    case: Case,
    seconds: float,
    prices: Prices,
    assigned: Assigned | None = None,
    *,
    is_noisy: bool = False,
) -> Priced:
    """Run one case for this (virtual) time and price the counts; see `count`."""
    assigned = assigned or Assigned(object_life_s=LIFE_S)
    counts = count(case.load, seconds, prices, assigned, is_noisy=is_noisy)
    gb = counts.produced_bytes / BYTES_PER_GB
    return Priced(case, counts, counts.usd(prices, LIFE_S) / gb, counts.stock_usd(prices) / gb)


def count(
    load: Load,
    seconds: float,
    prices: Prices,
    assigned: Assigned,
    *,
    is_off: bool = False,
    is_noisy: bool = False,
) -> Counts:
    """Run one load and return its counts.

    `is_off`: as in stock Kafka. `is_noisy`: PUTs and GETs have a heavy tail, and the machine stalls.
    """
    limits = log_manager_limits(AgentSettings())
    costs = LinkCosts(prices, prices.s3_express)
    break_even = prices.break_even_bytes(FOLLOWERS, prices.s3_express)
    cost_limits = CostLimits(break_even, limits.commit.interval_s)
    world = CostWorld(load, limits, cost_limits, costs, assigned, is_noisy=is_noisy)
    world.decider.is_off = lambda: is_off
    return world.run(seconds)
