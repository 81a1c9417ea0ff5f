"""Compares the zone gateway with clients that connect to the brokers themselves, in one run on the same brokers.

Bytes are those that the kernel counts into the zones, less the bytes of an equal time without clients; their topics
have one replica, or were replicated before, so that nothing else crosses. Latencies are of one client in one zone, with
a leader in another; both ways take turns. A way's agents are restarted with its settings.
"""

import json
import tempfile
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated, Final, TypeVar

import typer

from cli.tables import show, table
from local_cluster.agent_metrics import Counters
from local_cluster.cluster_admin import LINKED, LINKED_AND_KEPT, set_topics
from local_cluster.zones import CAN_MAKE
from perf.clusters import LatencyMs, Rounds, Scale, Store, Usage, object_store, used_by
from perf.gateway.world import (
    BY_COST,
    BY_LINKS,
    BY_OBJECTS,
    CLIENTS,
    DIRECT,
    GATEWAY,
    LEADER,
    RACK,
    RELAYED,
    SERVED,
    TOLD_SOON,
    Way,
    World,
    three_zones,
)
from perf.loads import RECORD_BYTES

_MB_RECORDS: Final = 1_000_000 // RECORD_BYTES
_READ_TOPIC, _ALONE_TOPIC = "read", "read-alone"
_SEEN_TOPIC, _PLAIN_TOPIC = "seen", "seen-plain"
_LARGE_BATCHES: Final = {"acks": "1", "batch.size": "131072", "linger.ms": "5"}
T = TypeVar("T")


class Part(StrEnum):
    LATENCY = "latency"
    PRODUCE = "produce"
    """Bytes of produce across zones."""
    CONSUME = "consume"
    """Bytes of consume across zones."""
    THROUGHPUT = "throughput"
    SEEN = "seen"
    """The time from the leader's append to another zone's consumer."""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison in the output; medians of the rounds."""

    figure: str
    way: str
    direct: float
    gateway: float
    compared: float
    unit: str
    """The unit of `compared`."""

    def cells(self) -> tuple[str, ...]:
        forms = {"ms": f"{self.compared:+.2f} ms", "x": f"{self.compared:.2f} x", "of direct": f"{self.compared:.2%}"}
        return self.figure, self.way, f"{self.direct:.2f}", f"{self.gateway:.2f}", forms[self.unit]


@dataclass(frozen=True, slots=True)
class Cost:
    """What six producers with acks=all cost."""

    way: str
    mb_per_s: float
    puts: float
    gets: float
    agents_cpu: float
    """Processor seconds of all agents for each second of the brokers."""
    linked_share: float
    """The share of the clients' frames through a gateway for produce that went by object storage."""

    def cells(self) -> tuple[str, ...]:
        """Return the costs as the cells of a table's row."""
        figures = (f"{self.mb_per_s:.1f}", f"{self.puts:,.0f}", f"{self.gets:,.0f}", f"{self.linked_share:.1%}")
        return self.way, *figures, f"{self.agents_cpu:.2f}"


@dataclass(frozen=True, slots=True)
class _Reader:
    """A consumer that waits for records."""

    name: str
    way: str
    topic: str
    rack: str = ""
    agents: Way = BY_LINKS


class Measurement:
    """All measurements of a run; `rows` and `costs` grow."""

    def __init__(self, world: World, rounds: int, scale: float, tell: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self.costs: list[Cost] = []
        self._world = world
        self._rounds = rounds
        self._scale = scale
        self._tell = tell

    def run(self, ways: Iterable[Way], parts: Container[Part]) -> None:
        """Measure each way of reaching brokers, one after the other."""
        world = self._world
        world.create(_READ_TOPIC, LEADER, replicas=3)
        world.create(_ALONE_TOPIC, LEADER)
        set_topics(world.cluster.bootstrap_servers, [_ALONE_TOPIC], LINKED_AND_KEPT)
        for topic in (_READ_TOPIC, _ALONE_TOPIC):
            self._tell(f"filling the topic {topic}")
            world.tools(LEADER, DIRECT).produce(topic, records=self._records(50), config={"acks": "all"})
        self._tell("nobody's bytes")
        world.measure_idle()
        for way in ways:
            self._tell(f"{way.name}: agents restart")
            world.go(way)
            if Part.LATENCY in parts:
                self._latency(way)
            if Part.PRODUCE in parts:
                self._bytes_of_produce(way)
            if Part.CONSUME in parts:
                self._bytes_of_consume(way)
            if Part.THROUGHPUT in parts and way is not RELAYED:
                self._throughput(way)
        if Part.SEEN in parts:
            self._seen()

    def _records(self, megabytes: float) -> int:
        return int(megabytes * _MB_RECORDS * self._scale)

    def _topic(self, part: str, way: Way, *leaders: int, replicas: int = 1) -> str:
        name = f"{part}-{way.name.replace(' ', '-')}"
        self._world.create(name, *leaders, replicas=replicas)
        return name

    def _turns(self, what: str, names: Sequence[str], measure: Callable[[str], Sequence[T]]) -> dict[str, list[T]]:
        """Measure one after the other in each round; a first round warms up and does not count."""
        found: dict[str, list[T]] = {one: [] for one in names}
        for number in range(self._rounds + 1):
            for one in names:
                self._tell(f"{what}, {one}, {number} of {self._rounds}")
                values = measure(one)
                found[one] += values if number else ()
        return found

    def _latency(self, way: Way) -> None:
        topic, records = self._topic("latency", way, LEADER), int(200 * self._scale)
        took_ms = self._turns(
            f"{way.name}: one record in flight",
            (DIRECT, GATEWAY),
            lambda one: self._world.produced_ms(one, topic, records, 50),
        )
        self._compare_ms("produce, one record in flight", way.name, took_ms[DIRECT], took_ms[GATEWAY])

    def _bytes_of_produce(self, way: Way) -> None:
        topic, records = self._topic("bytes", way, LEADER), self._records(50)

        def crossed(one: str) -> float:
            self._tell(f"{way.name}: bytes of produce, {one}")
            tools = self._world.tools(CLIENTS, one)
            return self._world.clients_bytes(lambda: tools.produce(topic, records=records, config=_LARGE_BATCHES))

        self._compare_bytes("produce", way.name, crossed(DIRECT), crossed(GATEWAY))

    def _bytes_of_consume(self, way: Way) -> None:
        stock = self._consumed_bytes(DIRECT, _READ_TOPIC)
        by_gateway, with_rack = (self._consumed_bytes(GATEWAY, _READ_TOPIC, rack) for rack in ("", RACK))
        self._compare_bytes("consume", way.name, stock, by_gateway)
        self._compare_bytes("consume with client.rack", way.name, stock, with_rack)
        if way is RELAYED:
            free = self._consumed_bytes(DIRECT, _READ_TOPIC, RACK)
            self._compare_bytes("consume with client.rack", DIRECT, stock, free)
        else:
            stock, by_links = (self._consumed_bytes(one, _ALONE_TOPIC) for one in (DIRECT, GATEWAY))
            self._compare_bytes("consume from another zone's only replica", way.name, stock, by_links)

    def _consumed_bytes(self, one: str, topic: str, rack: str = "") -> float:
        self._tell(f"bytes of consume, {topic}, {one}, {rack or 'no rack'}")
        tools, records = self._world.tools(CLIENTS, one), self._records(50)
        config = {"client.rack": rack} if rack else {}
        return self._world.clients_bytes(lambda: tools.consume(topic, records=records, config=config))

    def _compare_bytes(self, what: str, way: str, direct: float, gateway: float) -> None:
        figure = f"bytes across zones, {what}, MB"
        self.rows.append(Row(figure, way, direct / 1e6, gateway / 1e6, gateway / direct, "of direct"))

    def _compare_ms(self, what: str, way: str, direct_ms: Sequence[float], gateway_ms: Sequence[float]) -> None:
        for fraction in (0.5, 0.99):
            direct, gateway = (quantile(took_ms, fraction) for took_ms in (direct_ms, gateway_ms))
            self.rows.append(Row(f"{what}, p{fraction * 100:g} ms", way, direct, gateway, gateway - direct, "ms"))

    def _throughput(self, way: Way) -> None:
        world, records = self._world, self._records(120)
        topic = self._topic("six", way, *([1, 2, 3] * 4), replicas=3)
        runs = self._turns(
            f"{way.name}: six producers",
            (DIRECT, GATEWAY),
            lambda one: [used_by(world.cluster, lambda: world.produce_everywhere(one, topic, records))],
        )
        mb_per_s = {one: [per_s * RECORD_BYTES / 1e6 for per_s, _ in found] for one, found in runs.items()}
        shares = [mine / other for mine, other in zip(mb_per_s[GATEWAY], mb_per_s[DIRECT], strict=True)]
        direct, gateway = median(mb_per_s[DIRECT]), median(mb_per_s[GATEWAY])
        self.rows.append(Row("six producers, acks=all, MB/s", way.name, direct, gateway, median(shares), "x"))
        for one, name, rate in ((DIRECT, DIRECT, direct), (GATEWAY, way.name, gateway)):
            self.costs.append(_cost(name, rate, [usage for _, usage in runs[one]]))

    def _seen(self) -> None:
        """Measure the delay: at the leader itself, at the zone's replica, and through the gateway from the leader.

        Kafka sends followers a new high watermark with the next records, or after replica.fetch.wait.max.ms; sooner if
        agents are configured for it.
        """
        world, records = self._world, int(200 * self._scale)
        for topic in (_SEEN_TOPIC, _PLAIN_TOPIC):
            world.create(topic, LEADER, replicas=3, config={"message.timestamp.type": "LogAppendTime"})
        set_topics(world.cluster.bootstrap_servers, [_SEEN_TOPIC], LINKED)
        leader, *others = readers = (
            _Reader("the leader", DIRECT, _PLAIN_TOPIC),
            _Reader("the zone's replica, inline", DIRECT, _PLAIN_TOPIC, RACK),
            _Reader("the zone's replica, links", DIRECT, _SEEN_TOPIC, RACK),
            _Reader("the leader by the gateway, links", GATEWAY, _SEEN_TOPIC),
            _Reader("the zone's replica, links, told soon", DIRECT, _SEEN_TOPIC, RACK, TOLD_SOON),
            _Reader("the leader by the gateway, links, told soon", GATEWAY, _SEEN_TOPIC, agents=TOLD_SOON),
            _Reader("the gateway itself, told soon", GATEWAY, _SEEN_TOPIC, agents=SERVED),
        )
        named = {one.name: one for one in readers}

        def see(name: str) -> list[float]:
            reader = named[name]
            world.go(reader.agents)
            return world.seen_ms(reader.way, reader.topic, records, 50, reader.rack)

        took_ms = self._turns("append to another zone's consumer", list(named), see)
        for one in others:
            self._compare_ms("append to another zone's consumer", one.name, took_ms[leader.name], took_ms[one.name])


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return a quantile of these values, by rank."""
    ordered = sorted(values)
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]


def _cost(way: str, mb_per_s: float, used: Sequence[Usage]) -> Cost:
    counted = sum((one.counted for one in used), Counters())
    frames = counted.sum_by("remote_wal_gateway_produce_requests_total", "way")
    cpu = counted.cpu_s / max(sum(one.brokers_cpu_s for one in used), 1e-9)
    linked = frames.get("linked", 0.0) / max(sum(frames.values()), 1.0)
    return Cost(way, mb_per_s, counted.puts, counted.gets, cpu, linked)


def gateway(
    part: Annotated[list[Part] | None, typer.Option(help="Only these.")] = None,
    rounds: Rounds = 3,
    scale: Scale = 1.0,
    latency_ms: LatencyMs = 5,
    json_file: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Where the figures go.")] = None,
) -> None:
    """Measure clients by the gateways of their zones beside clients at the brokers; needs root, for three zones that
    are network namespaces.
    """
    from rich.console import Console

    if not CAN_MAKE:
        raise typer.BadParameter("network namespaces need root and iproute2")
    with (
        Console().status("preparing") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-gateway-") as directory,
        object_store(Store.DIRECTORY, latency_ms) as store,
        three_zones(Path(directory) / "cluster", store) as world,
    ):
        measured = Measurement(world, rounds, scale, line.update)
        try:
            measured.run((RELAYED, BY_COST, BY_OBJECTS), part or tuple(Part))
        finally:  # a run that is cut short leaves its part
            if json_file is not None:
                rows, costs = ([asdict(one) for one in found] for found in (measured.rows, measured.costs))
                document = {"latency_ms": latency_ms, "rows": rows, "costs": costs}
                json_file.write_text(json.dumps(document, indent=1) + "\n")
    title = f"By the gateway, beside direct (medians; a PUT and a GET {latency_ms} ms each)"
    columns = ("figure", "way", ">direct", ">gateway", ">compared")
    show(table(*columns, rows=[row.cells() for row in measured.rows], title=title))
    if measured.costs:
        of_costs = ("way", ">MB/s", ">PUT", ">GET", ">linked", ">agents' CPU of brokers'")
        show(
            table(
                *of_costs,
                rows=[one.cells() for one in measured.costs],
                title="What six producers with acks=all took, of all rounds",
            )
        )
