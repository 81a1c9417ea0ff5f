"""Measures what the default policy links on real brokers: fleets of producers first, compared with inline and `always`.

Each load runs on some topics of one cluster, one after the other, so that a change of the machine's speed affects all.
`plain` is inline without packing. Linked shares, requests, dollars and CPU leave the first seconds of each run out.
"""

import json as json_format
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.connection import Json
from cli.tables import show, table
from local_cluster.agent_metrics import Counters, scrape_all
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED
from local_cluster.object_store.store_spec import OwnStore
from metadata_topic.settings.topic_settings import TopicSettings
from perf.clusters import LatencyMs, object_store, started_cluster
from perf.ladder.turns import NOT_KEPT_UP, Entrant, Rung
from perf.loads import RECORD_BYTES, Figures, Run, beside, fleet, kafka
from plugin.prices import BYTES_PER_GB, EXPRESS, STANDARD, PriceTable
from retention_job.cost.cost_model import Amounts, Tariff

if TYPE_CHECKING:
    from rich.table import Table

_PARTITIONS: Final = 12
_FOLLOWERS: Final = 2
_BEGIN_S: Final = 10.0
_WARM_UP_S: Final = 20.0
_DRAINED_S: Final = 60
_LIFE_S: Final = 3600.0
_PACKED: Final = "remote_wal_packed_bytes_total"
_COMPARED: Final = {"inline": None, "always": LINKED, "default": TopicSettings(enable=True)}
_TOPICS: Final = {**_COMPARED, "plain": TopicSettings(pack=False)}
"""The settings of the topics."""


def java(mb_per_s: float, acks: str, producers: int = 1, **config: str) -> Run:
    """Return a load of Kafka's own producers, together at this rate, for as many seconds as its scale; at rate 0 as
    fast as they can, with 20 MB (acks=1: 30 MB) for each unit of the scale, which takes inline about a second."""
    each_per_s = round(mb_per_s * 1e6 / RECORD_BYTES / producers)
    settings = {"acks": acks} | {name.replace("_", "."): value for name, value in config.items()}
    records = each_per_s * producers or (30_000 if acks == "1" else 20_000)
    return kafka(records, settings, producers=producers, records_per_s=each_per_s or -1)


ALL: Final = {"acks": "all"}
IDEMPOTENT: Final = {"enable.idempotence": "true"}
LEADER: Final = {"acks": "1"}
LOADS: Final[Mapping[str, Run]] = {
    "40 producers, 6 MB/s, acks=all": fleet(40, 6, ALL),
    "40 producers, 6 MB/s, idempotent": fleet(40, 6, IDEMPOTENT),
    "40 producers, 6 MB/s, acks=1": fleet(40, 6, LEADER),
    "40 producers, 6 MB/s, acks=all, JSON": fleet(40, 6, ALL, is_json=True),
    "20 Java producers, 4 MB/s, acks=all": java(4, "all", 20),
    "40 Java producers, 6 MB/s, acks=all": java(6, "all", 40),
    "200 producers, 10 MB/s, acks=all": fleet(200, 10, ALL),
    "40 producers, 1.5 MB/s, acks=all": fleet(40, 1.5, ALL),
    "one producer, 4 MB/s, acks=all": java(4, "all"),
    "one producer, 10 MB/s, acks=all": java(10, "all"),
    "one producer, as fast as it goes, acks=all": java(0, "all"),
    "one producer, 128 KB batches, 10 MB/s, acks=all": java(10, "all", linger_ms="20", batch_size="131072"),
    "one producer, 10 MB/s, acks=1": java(10, "1"),
    "one producer, as fast as it goes, acks=1": java(0, "1"),
    "one producer, one record a request, 2,000/s, acks=all": fleet(1, 2, {"linger.ms": 0, **ALL}),
    "one producer of two topics, 10 MB/s, acks=all": fleet(1, 10, ALL, topics=2),
    "40 producers, 4 MB/s, acks=1, beside another topic's as fast as it goes, acks=all": beside(
        fleet(40, 4, LEADER), java(0, "all")
    ),
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """The result of one load on one topic."""

    load: str
    topic: str
    figures: Figures
    grown: Counters
    """What the agents' counters grew by after the first seconds."""
    not_kept_up_with: str = ""

    def row(self, tariff: Tariff) -> dict[str, Any]:
        """Return the result as a row of the output."""
        grown = self.grown
        produced = (grown.linked_bytes + grown.inline_bytes) / _FOLLOWERS
        amounts = Amounts(
            puts=grown.puts,
            gets=grown.gets,
            uploaded_bytes=(uploaded := grown.of("remote_wal_uploaded_bytes_total")),
            retrieved_bytes=grown.linked_bytes,
            stored_byte_s=uploaded * _LIFE_S,
            entries=grown.puts * _PARTITIONS / 3,
            crossing_bytes=grown.zone_bytes,
        )
        return {
            "load": self.load,
            "topic": self.topic,
            **{name: self.figures.get(name) for name in ("MB/s", "p50 ms", "p99 ms")},
            "linked": grown.topics_linked_share,
            "linked by topic": grown.linked_share_by_topic,
            "crossed": grown.zone_bytes / max(grown.stock_bytes, 1.0),
            "packed": grown.of(_PACKED, form="after") / max(grown.of(_PACKED, form="before"), 1.0),
            "CPU ms per MB": 1e9 * grown.cpu_s / max(produced, 1.0),
            "$ per GB": sum(amounts.usd(tariff).values()) / max(produced, 1.0) * BYTES_PER_GB,
            "inline": {
                why: size for why, size in grown.sum_by("remote_wal_inline_bytes_total", "reason").items() if size
            },
            "object bytes": uploaded / max(grown.puts, 1.0),
            "looks": {found: int(times) for found, times in grown.sum_by("remote_wal_looks_total", "found").items()},
            "not_kept_up_with": self.not_kept_up_with,
        }


def defaults(
    load: Annotated[list[str] | None, typer.Option(help="Only loads that have this in their name.")] = None,
    topic: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(_TOPICS)}; all but the last by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=2, help="For each load on each topic.")] = 120.0,
    latency_ms: LatencyMs = 5,
    store: OwnStore = OwnStore.LOCAL,
    front: Annotated[bool, typer.Option("--front", help="Clients come by agents, which hold the answers.")] = False,
    busy: Annotated[bool, typer.Option("--busy", help="Beside a busy loop, which takes a core.")] = False,
    json: Json = False,
) -> None:
    """Run fleets and single producers against topics that are inline, always linked and by the default policy."""
    loads = {name: run for name, run in LOADS.items() if load is None or any(part in name for part in load)}
    rungs = [Rung(name, store, settings) for name, settings in _TOPICS.items() if name in (topic or _COMPARED)]
    # Each store at the prices that its agents calculate with.
    measured, tariff = (
        list[Defaults](),
        Tariff.of(PriceTable.load(), STANDARD if store is OwnStore.S3_NATIVE else EXPRESS),
    )
    with (
        _busy_loop() if busy else nullcontext(),
        tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
        object_store(store, latency_ms) as spec,
        started_cluster(Path(directory) / "agents", AgentsMode(spec, front=front)) as cluster,
    ):
        entrants = [Entrant(one, cluster) for one in rungs]
        for one in entrants:
            for name in (one.rung.name, f"{one.rung.name}-2"):
                one.create_topic(name, _PARTITIONS)
        for one in entrants:
            # On brokers whose code was not compiled yet, a fleet fell behind that kept up later.
            with suppress(*NOT_KEPT_UP):
                one.load(fleet(40, 6, IDEMPOTENT), one.rung.name, _WARM_UP_S)
        for name, run in loads.items():
            for one in entrants:
                measured.append(_measure(cluster, name, run, one, seconds))
                if json:  # a line for each, so that an interrupted run leaves its part
                    typer.echo(json_format.dumps(measured[-1].row(tariff)))
                else:
                    show(as_table(measured[-1:], tariff))
    if not json:
        show(as_table(measured, tariff))


@contextmanager
def _busy_loop() -> Iterator[None]:
    """Keep one core busy with other work."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def _measure(cluster: LocalCluster, name: str, run: Run, one: Entrant, seconds: float) -> Defaults:
    """Run a load against a topic, and note what came of it."""
    begun: list[Counters] = []
    timer = threading.Timer(min(_BEGIN_S, seconds / 4), lambda: begun.append(scrape_all(cluster)))
    timer.start()
    figures, reason = {}, ""
    try:
        figures = dict(one.load(run, one.rung.name, seconds))
    except NOT_KEPT_UP as error:
        reason = str(error) or type(error).__name__
    timer.join()
    return Defaults(name, one.rung.name, figures, _drained(cluster).subtract(begun[0]), reason)


def _drained(cluster: LocalCluster) -> Counters:
    """Return the counters once followers have all, so that the next run begins without their catching up."""
    pause, before = threading.Event().wait, scrape_all(cluster)
    for _ in range(_DRAINED_S):
        pause(1.0)
        before, now = scrape_all(cluster), before
        if before.linked_bytes + before.inline_bytes <= now.linked_bytes + now.inline_bytes + RECORD_BYTES:
            break
    return before


_SHOWN: Final = {
    "MB/s": ".1f", "p50 ms": ".1f", "p99 ms": ".1f", "linked": ".1%", "crossed": ".1%", "packed": ".1%",
    "CPU ms per MB": ".1f", "$ per GB": ".4f",
}  # fmt: skip
"""Columns of the table, and how their numbers are written."""


def as_table(measured: Sequence[Defaults], tariff: Tariff) -> "Table":
    """Return a table for people with a row for each load on each topic."""
    rows = (
        (
            one.load,
            one.topic,
            *("-" if row[name] is None else format(row[name], form) for name, form in _SHOWN.items()),
            one.not_kept_up_with or " ".join(f"{times} {found}" for found, times in row["looks"].items() if times),
        )
        for one in measured
        for row in [one.row(tariff)]
    )
    columns = ("load", "topic", *(f">{name}" for name in _SHOWN), "looks")
    return table(*columns, rows=rows, title="Loads inline, always linked and by the default policy")
