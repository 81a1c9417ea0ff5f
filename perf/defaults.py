"""Measures what the default policy links on real brokers: plain loads with it, compared with inline and with `always`.

Each load runs on three topics of one cluster, one after the other, so that a change of the machine's speed affects all.
"""

import json as json_format
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.connection import Json
from cli.tables import show, table
from local_cluster.broker_config import AgentsMode
from metadata_topic.settings.topic_settings import LinkPolicy
from perf.clusters import LARGE_SEGMENTS, LatencyMs, Store, object_store, started_cluster
from perf.ladder.turns import Entrant, Measured, Rung
from perf.loads import RECORD_BYTES, Run, kafka, librdkafka

_PARTITIONS: Final = 12
_INLINE: Final = "inline"
_POLICIES: Final = {_INLINE: None, "cost": LinkPolicy.COST, "always": LinkPolicy.ALWAYS}
"""By name, the policies of the topics that are compared."""


def java(mb_per_s: float, acks: str, producers: int = 1, **config: str) -> Run:
    """Run Kafka's producers, at this rate together, for as many seconds as the load is large; 0: as fast as they can,
    with as many records as 30 MB/s would send.
    """
    each_per_s = round(mb_per_s * 1e6 / RECORD_BYTES / producers)
    settings = {"acks": acks} | {name.replace("_", "."): value for name, value in config.items()}
    records = each_per_s * producers or 30_000
    return kafka(records, settings, producers=producers, records_per_s=each_per_s or -1)


def sent_at_once(records_per_s: int) -> Run:
    """Run one librdkafka producer that sends each record at once, with acks=all."""
    return librdkafka(records_per_s, {"linger.ms": 0}, partitions=_PARTITIONS)


LOADS: Final[Mapping[str, Run]] = {
    "acks=1, 3 MB/s": java(3, "1"),
    "acks=1, 10 MB/s": java(10, "1"),
    "acks=1, as fast as it can": java(0, "1"),
    "acks=all, 4 MB/s": java(4, "all"),
    "acks=all, 10 MB/s": java(10, "all"),
    "acks=all, 128 KB batches, 10 MB/s": java(10, "all", linger_ms="20", batch_size="131072"),
    "acks=all, six producers, 12 MB/s": java(12, "all", 6),
    "acks=all, librdkafka, linger 0, 900/s": sent_at_once(900),
    "acks=all, librdkafka, linger 0, 2,000/s": sent_at_once(2000),
    "acks=all, librdkafka, linger 0, 5,000/s": sent_at_once(5000),
}


def defaults(
    load: Annotated[list[str] | None, typer.Option(help="Only loads that have this in their name.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Only these: inline, cost, always.")] = None,
    seconds: Annotated[float, typer.Option(min=2, help="For each load on each topic.")] = 15.0,
    latency_ms: LatencyMs = 5,
    store: Store = Store.DIRECTORY,
    json: Json = False,
) -> None:
    """Run plain producers against topics that are inline, by cost (the default) and always linked."""
    loads = {name: run for name, run in LOADS.items() if load is None or any(part in name for part in load)}
    rungs = [Rung(name, store, policy) for name, policy in _POLICIES.items() if topic is None or name in topic]
    measured = list[Measured]()
    with (
        tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
        object_store(store, latency_ms) as spec,
        started_cluster(Path(directory) / "agents", AgentsMode(spec), overrides=LARGE_SEGMENTS) as cluster,
    ):
        entrants = [Entrant(one, cluster) for one in rungs]
        for one in entrants:
            one.create_topic(one.rung.name, _PARTITIONS)
        for one in entrants:
            one.load(java(5, "1"), one.rung.name, 5.0)  # warms up
        for name, run in loads.items():
            for one in entrants:
                measured.append(one.measure(name, run, one.rung.name, seconds))
                if not json:
                    _print(measured[-1:])
    if json:
        typer.echo(json_format.dumps([_row(one) for one in measured], indent=1))
    else:
        _print(measured)


def _row(one: Measured) -> dict[str, Any]:
    return {
        "load": one.workload,
        "topic": one.rung.name,
        "figures": dict(one.figures),
        "linked_shares": _linked_shares(one),
        "machine_load": one.usage.machine_load,
        "not_kept_up_with": one.not_kept_up_with,
    }


def _linked_shares(one: Measured) -> list[float]:
    """Return linked shares of the record bytes that followers got: of all leaders together first, then by leader."""
    return [counted.topics_linked_share for counted in (one.usage.counted, *(one.usage.agents or {}).values())]


def _print(measured: Sequence[Measured]) -> None:
    rows = []
    for one in measured:
        total, *by_leader = (f"{share:.1%}" for share in _linked_shares(one))
        rows.append(
            (
                one.workload,
                one.rung.name,
                *(f"{one.figures[name]:.1f}" if one.figures else "-" for name in ("MB/s", "p50 ms", "p99 ms")),
                *(("", "") if one.rung.name == _INLINE else (total, " ".join(by_leader))),
                one.not_kept_up_with or f"{one.usage.machine_load:.1f}",
            )
        )
    columns = ("load", "topic", ">MB/s", ">p50 ms", ">p99 ms", ">linked", "by leader", ">machine")
    show(table(*columns, rows=rows, title="Plain loads by the default policy, inline and always linked"))
