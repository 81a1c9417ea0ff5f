"""Measures what packing saves across zones, and what it costs: the same loads on a topic that is packed and on one that
is not, in turns on the same brokers.

Each broker with its agent has a host of its own, a network namespace. The first leads all partitions, so the bytes that
the kernel counts into the two other zones are replication. Latencies are from send to acknowledgement.
"""

import json as json_format
import random
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer

from cli.connection import Json
from cli.tables import show, table
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.workload.json_events import json_event
from local_cluster.zones import ZoneHosts
from metadata_topic.settings.topic_settings import TopicSettings
from perf.clusters import LARGE_SEGMENTS, Rounds, Store, object_store, started_cluster, used_by
from perf.loads import librdkafka_latencies, quantiles

_LEADER: Final = 1
_PARTITIONS: Final = 3
_DISTINCT_BYTES: Final = 24_000_000
"""Records repeat after so many bytes, which is far beyond zstd's windows."""
_LINES: Final = (
    '{ip} - - [28/Nov/2026:10:{a:02d}:{b:02d} +0000] "GET /static/{a}/{c}.html HTTP/1.1" 200 {c} "-" "curl/8.5.0"\n'
)
_PAYLOADS: Final[Mapping[str, Mapping[str, str]]] = {
    "json": {}, "log lines": {}, "random": {}, "json, lz4": {"compression.type": "lz4"},
    "json, zstd": {"compression.type": "zstd"},
}  # fmt: skip
"""What is sent, and by which settings of the producer."""
_PACKED, _PLAIN = "packed", "plain"


def _piece(payload: str, source: random.Random, number: int) -> bytes:
    if payload.startswith("json"):
        return json_event(source, number) + b"\n"
    if payload == "random":
        return source.randbytes(512)
    a, b, c = source.randrange(60), source.randrange(60), source.randrange(100_000)
    return _LINES.format(ip=f"10.{a}.{b}.{c % 256}", a=a, b=b, c=c).encode()


@cache
def records_of(payload: str, record_bytes: int) -> list[bytes]:
    """Return records of about this size, all different."""
    source, records, size = random.Random(payload), list[bytes](), 0  # noqa: S311 (figures that can be repeated)
    record, number = bytearray(), 0
    while size < _DISTINCT_BYTES:
        record += _piece(payload, source, number)
        number += 1
        if len(record) >= record_bytes:
            records.append(bytes(record))
            size += len(record)
            record.clear()
    return records


@dataclass(frozen=True, slots=True)
class Load:
    payload: str
    mb_per_s: int
    acks: str
    links: bool

    @property
    def record_bytes(self) -> int:
        """The size of a record, larger at high rates, so that this machine's one producer does not limit the
        measurement."""
        return 500 if self.mb_per_s <= 10 else 4_000

    def topic(self, entrant: str) -> str:
        """Return the topic's name; loads with other acks have other topics, because verdicts on links are per topic."""
        return f"{'linked' if self.links else 'inline'}-{self.acks}-{entrant}"

    @property
    def name(self) -> str:
        return f"{self.payload}, {self.mb_per_s} MB/s, acks={self.acks}{', links' if self.links else ''}"


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one load on one topic in one round."""

    load: Load
    entrant: str
    produced_mb: float
    crossed_mb: float
    """Bytes into the followers' zones."""
    p50_ms: float
    p99_ms: float
    agents_cpu_s: float
    packed_ratio: float
    """By the agents' own count; 0 if nothing was packed."""
    linked_share: float
    machine_load: float


def _measure(
    cluster: LocalCluster, hosts: ZoneHosts, load: Load, entrant: str, records: Sequence[bytes], seconds: float
) -> Measured:
    def crossed() -> int:
        return sum(count for one, count in hosts.entered_bytes().items() if one != _LEADER)

    def produce() -> tuple[list[float], int]:
        before = crossed()
        rate = load.mb_per_s * 1e6 / (sum(map(len, records)) / len(records))
        config: dict[str, str | int] = {
            "acks": load.acks,
            "batch.size": 16384,
            "linger.ms": 20,
            "queue.buffering.max.messages": 2_000_000,
            **_PAYLOADS[load.payload],
        }
        taken_ms = librdkafka_latencies(
            cluster.bootstrap_servers, load.topic(entrant), round(rate), seconds, config, _PARTITIONS, values=records
        )
        threading.Event().wait(1.0)  # with acks=1, the followers' last fetches
        return taken_ms, crossed() - before

    (taken_ms, crossed_bytes), usage = used_by(cluster, produce)
    counted, figures = usage.counted, quantiles(taken_ms)
    after = counted.of("remote_wal_packed_bytes_total", form="after")
    return Measured(
        load, entrant, load.mb_per_s * seconds, crossed_bytes / 1e6, figures["p50 ms"], figures["p99 ms"],
        counted.cpu_s, counted.of("remote_wal_packed_bytes_total", form="before") / after if after else 0.0,
        counted.topics_linked_share, usage.machine_load,
    )  # fmt: skip


def pack(
    payload: Annotated[list[str] | None, typer.Option(help=f"Only these: {'; '.join(_PAYLOADS)}.")] = None,
    mb_per_s: Annotated[list[int] | None, typer.Option(help="Rates. Default: 1, 10, 30.")] = None,
    acks: Annotated[list[str] | None, typer.Option(help="1, all. Default: both.")] = None,
    links: Annotated[list[str] | None, typer.Option(help="off, on. Default: both.")] = None,
    seconds: Annotated[float, typer.Option(min=3, help="For each load on each topic.")] = 15.0,
    rounds: Rounds = 1,
    latency_ms: Annotated[int, typer.Option(min=0, help="The store's latency for PUT and for GET.")] = 5,
    json: Json = False,
) -> None:
    """Compare packed topics with plain ones: bytes across zones, latencies, and the agents' CPU. Needs root."""
    loads = [
        Load(one, rate, acked, linked == "on")
        for linked in links or ("off", "on")
        for one in payload or _PAYLOADS
        for rate in mb_per_s or (1, 10, 30)
        for acked in acks or ("1", "all")
    ]
    measured: list[Measured] = []
    with (
        tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
        object_store(Store.DIRECTORY, latency_ms) as store,
        ZoneHosts("198.18").make() as hosts,
        started_cluster(
            Path(directory) / "agents", AgentsMode(store), overrides=LARGE_SEGMENTS, hosts=hosts
        ) as cluster,
    ):
        _create_topics(cluster, loads)
        for load in loads:
            records = records_of(load.payload, load.record_bytes)
            warm_up_s = 5.0 if load is not loads[0] else 30.0  # brokers that just started compile what they run often
            for number in range(rounds + 1):
                try:
                    these = [
                        _measure(cluster, hosts, load, entrant, records, seconds if number else warm_up_s)
                        for entrant in ((_PACKED, _PLAIN) if number % 2 else (_PLAIN, _PACKED))
                    ]
                except TimeoutError as error:
                    typer.echo(f"{load.name}: this machine does not carry it: {error}", err=True)
                    break
                measured += these if number else []
            if not json and (of_load := [one for one in measured if one.load == load]):
                _print(of_load)
    if json:
        typer.echo(json_format.dumps([asdict(one) for one in measured], indent=1))
    else:
        _print(measured)


def _create_topics(cluster: LocalCluster, loads: Sequence[Load]) -> None:
    ids = cluster.broker_ids
    assignment = [[_LEADER, *(one for one in ids if one != _LEADER)]] * _PARTITIONS
    for load in {(load.links, load.acks): load for load in loads}.values():
        for entrant in (_PACKED, _PLAIN):
            cluster.admin.create_topic(load.topic(entrant), assignment=assignment)
            settings = TopicSettings(enable=load.links, pack=entrant == _PACKED)
            set_topics(cluster.bootstrap_servers, [load.topic(entrant)], settings)
    cluster.wait_until_ready()


def _print(measured: Sequence[Measured]) -> None:
    rows = [
        _row(load, [one for one in measured if one.load == load])
        for load in dict.fromkeys(one.load for one in measured)
    ]
    columns = (
        "load", ">bytes, of plain", ">a produced byte", ">plain", ">p50 ms", ">plain", ">p99 ms", ">plain",
        ">CPU ms/MB", ">plain", ">ratio", ">linked", ">machine",
    )  # fmt: skip
    show(table(*columns, rows=rows, title="Packed topics, and plain ones: for each follower"))


def _row(load: Load, measured: Sequence[Measured]) -> tuple[str, ...]:
    def of(entrant: str, figure: Callable[[Measured], float]) -> float:
        return median(figure(one) for one in measured if one.entrant == entrant)

    def both(figure: Callable[[Measured], float], form: str = ".1f") -> tuple[str, ...]:
        return tuple(f"{of(entrant, figure):{form}}" for entrant in (_PACKED, _PLAIN))

    return (
        load.name,
        f"{of(_PACKED, lambda one: one.crossed_mb) / of(_PLAIN, lambda one: one.crossed_mb):.2f}",
        *both(lambda one: one.crossed_mb / one.produced_mb / 2, ".3f"),
        *both(lambda one: one.p50_ms),
        *both(lambda one: one.p99_ms),
        *both(lambda one: 1000 * one.agents_cpu_s / one.produced_mb / 2),
        f"{of(_PACKED, lambda one: one.packed_ratio):.1f}",
        f"{of(_PACKED, lambda one: one.linked_share):.0%}",
        f"{of(_PACKED, lambda one: one.machine_load):.0f}",
    )
