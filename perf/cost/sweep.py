"""Prices loads from 10 KB/s to 50 MB/s, steady and in bursts, by the policy `cost` and the write path's own
decisions.
"""

import json as json_format
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from agent.settings.agent_settings import AgentSettings
from agent.wiring.write_path import log_manager_limits
from cli.connection import Json
from cli.log_lines import logs_from
from cli.tables import show, table
from perf.cost.load import FOLLOWER_IDS, SHAPES, Counts, Load
from perf.cost.world import CostWorld
from plugin.prices import BYTES_PER_GB, DEFAULT_PRICES_FILE, Prices
from retention_job.cost.cost_model import Amounts, Tariff

RATES: Final = (10e3, 30e3, 100e3, 300e3, 1e6, 2e6, 5e6, 10e6, 30e6, 50e6)
"""Bytes per second to one broker."""


@dataclass(frozen=True, slots=True)
class Priced:
    """One load's counts and their price."""

    load: Load
    counts: Counts
    usd_gb: float
    """Dollars per gigabyte produced."""
    stock_usd_gb: float

    @property
    def ratio(self) -> float:
        """The cost compared with stock Kafka's."""
        return self.usd_gb / self.stock_usd_gb

    @property
    def linked_share(self) -> float:
        """The share of record bytes that followers got as links."""
        return self.counts.linked_bytes / max(self.counts.linked_bytes + self.counts.inline_bytes, 1)

    @property
    def linked_usd_gb(self) -> float:
        """The dollars per gigabyte without what looks took inline; `usd_gb` if nothing was linked."""
        linked = self.linked_share
        return (self.usd_gb - (1 - linked) * self.stock_usd_gb) / linked if linked else self.usd_gb

    def row(self) -> dict[str, Any]:
        """Return a row for JSON output: counts per second or per gigabyte."""
        counts, gb = self.counts, self.counts.produced_bytes / BYTES_PER_GB
        return {
            "bytes_per_s": self.load.bytes_per_s,
            "shape": self.load.shape,
            "acks_all": self.load.acks_all,
            "produced_bytes_per_s": counts.produced_bytes / counts.seconds,
            "objects_per_s": counts.amounts.puts / counts.seconds,
            "puts_per_gb": counts.amounts.puts / gb,
            "gets_per_gb": counts.amounts.gets / gb,
            "linked_share": self.linked_share,
            "usd_gb": self.usd_gb,
            "stock_usd_gb": self.stock_usd_gb,
            "ratio": self.ratio,
        }


def price(
    load: Load,
    seconds: float,
    prices: Prices,
    *,
    is_off: bool = False,
    is_noisy: bool = False,
    after_s: float = 0.0,
) -> Priced:
    """Run one load for this (virtual) time and price the counts.

    `is_off`: as in stock Kafka. `is_noisy`: PUTs and GETs have a heavy tail, and the machine stalls.
    What the first `after_s` bring is not counted.
    """
    world = CostWorld(load, log_manager_limits(AgentSettings()), prices, is_off=is_off, is_noisy=is_noisy)
    counts = world.run(seconds, after_s)
    tariff = Tariff(prices.s3_express, prices.zone_crossing_gb)
    stock = Amounts(crossing_bytes=len(FOLLOWER_IDS) * counts.produced_bytes)
    gb = counts.produced_bytes / BYTES_PER_GB
    usd_gb, stock_usd_gb = (sum(amounts.usd(tariff).values()) / gb for amounts in (counts.amounts, stock))
    return Priced(load, counts, usd_gb, stock_usd_gb)


def cost(
    rate: Annotated[list[float] | None, typer.Option(min=1000, help="Only these loads, in bytes per second.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of virtual time for each load.")] = 60.0,
    prices_file: Annotated[Path, typer.Option(exists=True, help="The price table.")] = DEFAULT_PRICES_FILE,
    noise: Annotated[
        bool, typer.Option(help="Give PUTs and GETs a heavy tail, 5 ms at p50 and 100 at p99, and stall all of them.")
    ] = False,
    json: Json = False,
) -> None:
    """Count requests and bytes of the write path's own decisions on a virtual clock, and price them.

    Counted are PUTs, GETs, uploaded and retrieved bytes, what goes inline, links, announcements and the replication of
    the agents' own topic, each object's storage for an hour. No broker runs; producers, followers and the store are
    models (`perf/cost/world.py`). Without frames and followers' requests, which `perf defaults` counts, stock pays for
    records alone. Exits with 1 where a load costs more than 1.03 of stock.
    """
    prices = Prices.load(prices_file)
    with logs_from(logging.ERROR):  # the write path's log lines about modelled loads are of no interest
        priced = [
            price(Load(one, shape, acks_all), seconds, prices, is_noisy=noise)
            for acks_all in (False, True)
            for shape in SHAPES
            for one in rate or RATES
        ]
    if json:
        typer.echo(json_format.dumps([one.row() for one in priced], indent=1))
    else:
        _print(priced)
    if any(one.ratio > 1.03 for one in priced):
        raise typer.Exit(1)


def _print(priced: Sequence[Priced]) -> None:
    rows = [
        (
            f"{row['bytes_per_s'] / 1e6:g}",
            row["shape"],
            "all" if row["acks_all"] else "1",
            f"{row['produced_bytes_per_s'] / 1e6:.3g}",
            f"{row['objects_per_s']:.1f}",
            f"{row['linked_share']:.0%}",
            *(f"{row[name]:.5f}" for name in ("usd_gb", "stock_usd_gb")),
            f"{row['ratio']:.3f}",
        )
        for row in (one.row() for one in priced)
    ]
    columns = (">MB/s", "shape", "acks", ">came to", ">objects/s", ">linked", ">$ per GB", ">stock", ">ratio")
    worst = max(one.ratio for one in priced)
    show(table(*columns, rows=rows, title="Replication by cost, storage for an hour included"), f"At most {worst:.3f}.")
