"""The cost of replication by the policy `cost`, compared with stock Kafka, over loads from 10 KB/s to 50 MB/s."""

import json as json_format
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.connection import Json
from cli.log_lines import logs_from
from cli.tables import show, table
from perf.cost.sweep import RATES, Priced, cases, price
from plugin.prices import DEFAULT_PRICES_FILE, Prices


def cost(
    rate: Annotated[list[float] | None, typer.Option(min=1000, help="Only these loads, in bytes per second.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of virtual time for each load.")] = 20.0,
    prices_file: Annotated[Path, typer.Option(exists=True, help="The price table.")] = DEFAULT_PRICES_FILE,
    noise: Annotated[
        bool, typer.Option(help="Give PUTs and GETs a heavy tail, 5 ms at p50 and 100 at p99, and stall all of them.")
    ] = False,
    json: Json = False,
) -> None:
    """Count requests and bytes of the write path's own decisions on a virtual clock, and price them.

    Counted are PUTs, GETs, uploaded and retrieved bytes, what goes inline, links, announcements and the replication of
    the agents' own topic, each object's storage for an hour. No broker runs; producers, followers and the store are
    models (`perf/cost/world.py`). Exits with 1 where a load costs more than 1.03 of stock.
    """
    prices = Prices.load(prices_file)
    with logs_from(logging.ERROR):  # the write path's log lines about modelled loads are of no interest
        priced = [price(case, seconds, prices, is_noisy=noise) for case in cases(rate or RATES)]
    if json:
        typer.echo(json_format.dumps([one.row() for one in priced], indent=1))
    else:
        _print(priced)
    if any(one.ratio > 1.03 for one in priced):
        raise typer.Exit(1)


def _print(priced: Sequence[Priced]) -> None:
    rows = [
        (
            f"{one.case.rate / 1e6:g}",
            one.case.shape,
            "all" if one.case.acks_all else "1",
            f"{row['produced_bytes_per_s'] / 1e6:.3g}",
            f"{row['objects_per_s']:.1f}",
            f"{row['linked_share']:.0%}",
            f"{one.usd_gb:.5f}",
            f"{one.stock_usd_gb:.5f}",
            f"{one.ratio:.3f}",
        )
        for one in priced
        for row in [one.numbers()]
    ]
    columns = (">MB/s", "shape", "acks", ">came to", ">objects/s", ">linked", ">$ per GB", ">stock", ">ratio")
    worst = max(one.ratio for one in priced)
    show(table(*columns, rows=rows, title="Replication by cost, storage for an hour included"), f"At most {worst:.3f}.")
