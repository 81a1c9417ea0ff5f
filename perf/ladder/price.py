"""What replication by cost comes to on a real cluster, by what the agents counted and the price table.

One producer with default settings writes at a rate to one broker, which leads all twelve partitions; the rounds of
stock and of each version's agents take turns on brokers that stay. Counted are requests to the store and their bytes,
an hour's storage of what was uploaded, and all bytes between the agents: the metadata topic's replication is among
them, its publishing is not. Stock is priced at two crossings of the border for each byte.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from cli.tables import show, table
from local_cluster.agent_metrics import Counters
from metadata_topic.settings.topic_settings import TopicSettings
from perf.cost.counts import FOLLOWERS
from perf.cost.sweep import LIFE_S
from perf.ladder.turns import STOCK, Length, Measured
from perf.ladder.versions import compare_versions
from perf.ladder.workloads import Workload, paced
from perf.options import LatencyMs, Rounds
from plugin.prices import BYTES_PER_GB, DEFAULT_PRICES_FILE, SECONDS_PER_MONTH, Prices

_BY_COST: Final = TopicSettings(enable=True)


def price(
    checkout: Annotated[
        list[Path] | None,
        typer.Argument(exists=True, file_okay=False, help="Other checkouts of this project, beside this one."),
    ] = None,
    mb: Annotated[list[float] | None, typer.Option(min=0.01, help="MB/s; 1, 5 and 25 unless given.")] = None,
    acks: Annotated[list[str] | None, typer.Option(help="Of the producer: 1 or all; both unless given.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of each load.")] = 15.0,
    rounds: Rounds = 2,
    latency_ms: LatencyMs = 5,
    results: Annotated[Path, typer.Option(dir_okay=False, help="Where the data go.")] = Path("perf/results/price.json"),
) -> None:
    """Price what agents count under a steady load on a real cluster, by cost, with the load's latencies."""
    loads = [paced(rate, one, seconds) for one in acks or ("1", "all") for rate in mb or (1, 5, 25)]
    measured = compare_versions(loads, Length(rounds, 1.0, 0.5), checkout or [], _BY_COST, latency_ms, results)
    _print(loads, measured, Prices.load(DEFAULT_PRICES_FILE))


def usd_per_gb(counted: Counters, prices: Prices) -> dict[str, float]:
    """Dollars for each gigabyte produced, by what they are paid for."""
    store, moved = prices.s3_express, counted.by("remote_wal_store_bytes_total", "operation")
    put_bytes, get_bytes = moved.get("put", 0.0), moved.get("get", 0.0)
    inline_bytes = min(counted.inline_bytes, counted.zone_bytes)
    usd = {
        "PUT": counted.puts * store.put_per_1000 / 1000,
        "GET": counted.gets * store.get_per_1000 / 1000,
        "upload": put_bytes / BYTES_PER_GB * store.upload_gb,
        "read": get_bytes / BYTES_PER_GB * (store.retrieval_gb + prices.express_cross_zone_read_gb),
        "stored": put_bytes / BYTES_PER_GB * store.storage_gb_month * LIFE_S / SECONDS_PER_MONTH,
        "inline": inline_bytes / BYTES_PER_GB * prices.zone_crossing_gb,
        "other border": (counted.zone_bytes - inline_bytes) / BYTES_PER_GB * prices.zone_crossing_gb,
    }
    produced_gb = max(counted.of("remote_wal_appended_bytes_total"), 1.0) / BYTES_PER_GB
    return {part: dollars / produced_gb for part, dollars in usd.items()}


def _print(loads: Iterable[Workload], measured: Sequence[Measured], prices: Prices) -> None:
    stock_usd = FOLLOWERS * prices.zone_crossing_gb
    priced, timed = [], []
    for load in loads:
        runs = [run for run in measured if run.workload == load.name]
        for rung in dict.fromkeys(run.rung for run in runs):
            own = [run for run in runs if run.rung == rung and run.figures]
            if not own:
                timed.append((load.title, rung, "not kept up with", "", "", ""))
                continue
            p50, p99, rate = (median(run.figures[key] for run in own) for key in ("p50 ms", "p99 ms", "MB/s"))
            counted = sum((run.agents for run in own if run.agents is not None), Counters())
            share = counted.cpu_s / max(sum(run.brokers_cpu_s for run in own), 1e-9)
            cpu = "" if rung == STOCK else f"{share:.2f}"
            timed.append((load.title, rung, f"{p50:.0f}", f"{p99:.0f}", f"{rate:.1f}", cpu))
            if rung == STOCK:
                continue
            parts, seconds = usd_per_gb(counted, prices), sum(run.seconds for run in own)
            total, puts = sum(parts.values()), max(counted.puts, 1)
            linked = counted.linked_bytes / max(counted.linked_bytes + counted.inline_bytes, 1)
            figures = (f"{total:.4f}", f"{total / stock_usd:.3f}", f"{puts / seconds:.1f}", f"{linked:.1%}")
            priced.append((load.title, rung, *figures, *(f"{usd * 1000:.2f}" for usd in parts.values())))
    parts_names = [f">{part}" for part in usd_per_gb(Counters(), prices)]
    show(
        table("load", "agents", ">p50 ms", ">p99 ms", ">MB/s", ">CPU of brokers'", rows=timed, title="Medians"),
        table(
            "load", "agents", ">$ per GB", ">of stock", ">PUT/s", ">linked", *parts_names,
            rows=priced, title="By what the agents counted; the parts in $ per 1,000 GB",
        ),
    )  # fmt: skip
