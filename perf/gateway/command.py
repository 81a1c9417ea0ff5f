"""Compares the zone gateway with clients that connect to the brokers themselves, in one run on the same brokers.

Bytes are those that the kernel counts into the zones, less the bytes of an equal time without clients; their topics
have one replica, or were replicated before, so that nothing else crosses. Latencies are of one client in one zone, with
a leader in another; both ways take turns. A way's agents are restarted with its settings.
"""

import json
import tempfile
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from cli.tables import show, table
from local_cluster.agent_metrics import Counters
from local_cluster.topic_switch import LINKED, LINKED_AND_KEPT, set_topics
from local_cluster.zone_hosts import CAN_MAKE
from perf.clusters import object_store
from perf.gateway.world import (
    BY_COST,
    BY_LINKS,
    BY_OBJECTS,
    CLIENTS,
    DIRECT,
    GATEWAY,
    LEADER,
    RELAYED,
    TOLD_SOON,
    Used,
    Way,
    World,
    quantile,
    three_zones,
)
from perf.options import LatencyMs, Rounds, Scale

_RECORD_BYTES = 1000
_MB_RECORDS = 1000
_READ_TOPIC, _ALONE_TOPIC = "read", "read-alone"
_SEEN_TOPIC, _PLAIN_TOPIC = "seen", "seen-plain"
_RACK = f"az{CLIENTS}"
_LARGE_BATCHES = {"batch.size": "131072", "linger.ms": "5"}


class Part(StrEnum):
    """The parts of the measurement."""

    LATENCY = "latency"
    """The latency of produce."""
    PRODUCE = "produce"
    """Bytes of produce across zones."""
    CONSUME = "consume"
    """Bytes of consume across zones."""
    THROUGHPUT = "throughput"
    SEEN = "seen"
    """The time from the leader's append to another zone's consumer."""


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison; medians of the rounds."""

    figure: str
    way: str
    direct: float
    gateway: float
    compared: float
    unit: str
    """The unit of `compared`."""
    goal: float | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; None without a goal.

        A share of throughput must reach it, all else must not exceed it.
        """
        if self.goal is None:
            return None
        return self.compared >= self.goal if self.unit == "x" else self.compared <= self.goal


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a load."""

    load: str
    way: str
    mb_per_s: float
    puts: float
    gets: float
    agents_cpu: float
    """Processor seconds of all agents for each second of the brokers."""
    linked_share: float
    """The share of the clients' frames through a gateway for produce that went by object storage."""


class Measurement:
    """All of a run; `rows` and `costs` grow."""

    def __init__(self, world: World, rounds: int, scale: float, tell: Callable[[str], None]) -> None:
        self.rows: list[Row] = []
        self.costs: list[Cost] = []
        self.store_ms: tuple[float, float] = (0.0, 0.0)
        """The times of a PUT and a GET in this run."""
        self._world = world
        self._rounds = rounds
        self._scale = scale
        self._tell = tell
        self._idle_bytes_per_s = 0.0

    def run(self, ways: Iterable[Way], parts: Container[Part]) -> None:
        """Measure one way after the other."""
        world = self._world
        world.create(_READ_TOPIC, LEADER, replicas=3)
        world.create(_ALONE_TOPIC, LEADER)
        set_topics(world.cluster.bootstrap_servers, [_ALONE_TOPIC], LINKED_AND_KEPT)
        for topic in (_READ_TOPIC, _ALONE_TOPIC):
            self._tell(f"filling the topic {topic}")
            world.tools(LEADER, DIRECT).produce(topic, records=self._records(50), config={"acks": "all"})
        self._tell("the store alone")
        self.store_ms = world.store_ms(_RECORD_BYTES)
        self._tell("nobody's bytes")
        with world.used() as found:
            threading.Event().wait(10.0)
        self._idle_bytes_per_s = found[0].entered_bytes / found[0].seconds
        for way in ways:
            self._tell(f"{way.name}: agents start anew")
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

    def _latency(self, way: Way) -> None:
        topic = f"latency-{way.name.replace(' ', '-')}"
        self._world.create(topic, LEADER)
        took: dict[str, list[float]] = {DIRECT: [], GATEWAY: []}
        for number in range(self._rounds + 1):
            for one in took:
                self._tell(f"{way.name}: one record in flight, {one}, {number} of {self._rounds}")
                found = self._world.latencies_ms("produce", one, topic, int(200 * self._scale), 50)
                took[one] += found if number else []  # the first one warms up
        put_and_get_ms = sum(self.store_ms)
        added_ms = put_and_get_ms + 6.0 if way is BY_OBJECTS else 1.5
        for fraction in (0.5, 0.99):
            direct, gateway = (quantile(took[one], fraction) for one in (DIRECT, GATEWAY))
            goal = added_ms if fraction == 0.5 else None
            name = f"produce, one record in flight, p{fraction * 100:g} ms"
            self.rows.append(Row(name, way.name, direct, gateway, gateway - direct, "ms", goal))

    def _bytes_of_produce(self, way: Way) -> None:
        topic = f"bytes-{way.name.replace(' ', '-')}"
        self._world.create(topic, LEADER)
        entered: dict[str, float] = {}
        for one in (DIRECT, GATEWAY):
            self._tell(f"{way.name}: bytes of produce, {one}")
            with self._world.used() as found:
                config = {"acks": "1", **_LARGE_BATCHES}
                self._world.tools(CLIENTS, one).produce(topic, records=self._records(50), config=config)
            entered[one] = self._clients_bytes(found[0])
        goal = None if way is RELAYED else 0.01
        self._compare_bytes("bytes across zones, produce, MB", way.name, entered[DIRECT], entered[GATEWAY], goal)

    def _bytes_of_consume(self, way: Way) -> None:
        told = "bytes across zones, consume"
        stock = self._consumed_bytes(DIRECT, _READ_TOPIC)
        by_gateway, with_rack = (self._consumed_bytes(GATEWAY, _READ_TOPIC, rack) for rack in ("", _RACK))
        self._compare_bytes(f"{told}, MB", way.name, stock, by_gateway, 0.01)
        self._compare_bytes(f"{told} with client.rack, MB", way.name, stock, with_rack, 0.01)
        if way is RELAYED:
            free = self._consumed_bytes(DIRECT, _READ_TOPIC, _RACK)
            self._compare_bytes(f"{told} with client.rack, MB", DIRECT, stock, free)
        else:
            stock, by_links = (self._consumed_bytes(one, _ALONE_TOPIC) for one in (DIRECT, GATEWAY))
            self._compare_bytes(f"{told} from another zone's only replica, MB", way.name, stock, by_links, 0.01)

    def _consumed_bytes(self, one: str, topic: str, rack: str = "") -> float:
        self._tell(f"bytes of consume, {topic}, {one}, {rack or 'no rack'}")
        config = {"client.rack": rack} if rack else {}
        with self._world.used() as found:
            self._world.tools(CLIENTS, one).consume(topic, records=self._records(50), config=config)
        return self._clients_bytes(found[0])

    def _clients_bytes(self, used: Used) -> float:
        return max(used.entered_bytes - self._idle_bytes_per_s * used.seconds, 0.0)

    def _compare_bytes(self, figure: str, way: str, direct: float, gateway: float, goal: float | None = None) -> None:
        self.rows.append(Row(figure, way, direct / 1e6, gateway / 1e6, gateway / direct, "of direct", goal))

    def _throughput(self, way: Way) -> None:
        topic = f"six-{way.name.replace(' ', '-')}"
        self._world.create(topic, *([1, 2, 3] * 4), replicas=3)
        rates: dict[str, list[float]] = {DIRECT: [], GATEWAY: []}
        used: dict[str, list[Used]] = {DIRECT: [], GATEWAY: []}
        for number in range(self._rounds + 1):
            for one in (DIRECT, GATEWAY):
                self._tell(f"{way.name}: six producers, {one}, {number} of {self._rounds}")
                with self._world.used() as found:
                    runs = self._world.produce_everywhere(one, topic, self._records(120), {"acks": "all"})
                if number:  # the first one warms up
                    rates[one].append(sum(run.records_per_s for run in runs) * _RECORD_BYTES / 1e6)
                    used[one] += found
        shares = [mine / other for mine, other in zip(rates[GATEWAY], rates[DIRECT], strict=True)]
        direct, gateway = median(rates[DIRECT]), median(rates[GATEWAY])
        self.rows.append(Row("six producers, acks=all, MB/s", way.name, direct, gateway, median(shares), "x", 0.6))
        for one, name in ((DIRECT, DIRECT), (GATEWAY, way.name)):
            self.costs.append(_cost("six producers, acks=all", name, median(rates[one]), used[one]))

    def _seen(self) -> None:
        """Measure the delay: at the leader itself, at the zone's replica, and through the gateway from the leader.

        Kafka sends followers a new high watermark with the next records, or after replica.fetch.wait.max.ms; sooner if
        agents are configured for it.
        """
        world = self._world
        stamped = {"message.timestamp.type": "LogAppendTime"}
        for topic in (_SEEN_TOPIC, _PLAIN_TOPIC):
            world.create(topic, LEADER, replicas=3, config=stamped)
        set_topics(world.cluster.bootstrap_servers, [_SEEN_TOPIC], LINKED)
        leader = _Reader("the leader", DIRECT, _PLAIN_TOPIC)
        others = (
            _Reader("the zone's replica, inline", DIRECT, _PLAIN_TOPIC, _RACK),
            _Reader("the zone's replica, links", DIRECT, _SEEN_TOPIC, _RACK),
            _Reader("the leader by the gateway, links", GATEWAY, _SEEN_TOPIC),
            _Reader("the zone's replica, links, told soon", DIRECT, _SEEN_TOPIC, _RACK, TOLD_SOON),
            _Reader("the leader by the gateway, links, told soon", GATEWAY, _SEEN_TOPIC, agents=TOLD_SOON),
        )
        took: dict[str, list[float]] = {one.name: [] for one in (leader, *others)}
        for number in range(self._rounds + 1):
            agents: Way | None = None
            for one in (leader, *others):
                if one.agents is not agents:
                    agents = one.agents
                    world.go(agents)
                self._tell(f"append to another zone's consumer, {one.name}, {number} of {self._rounds}")
                found = world.seen_ms(one.way, one.topic, int(200 * self._scale), 50, one.rack)
                took[one.name] += found if number else []
        for one in others:
            for fraction, goal in ((0.5, None), (0.99, sum(self.store_ms) + 20.0)):
                direct, gateway = (quantile(took[name], fraction) for name in (leader.name, one.name))
                figure = f"append to another zone's consumer, p{fraction * 100:g} ms"
                self.rows.append(Row(figure, one.name, direct, gateway, gateway, "ms", goal))


@dataclass(frozen=True, slots=True)
class _Reader:
    """A consumer that waits for records."""

    name: str
    way: str
    topic: str
    rack: str = ""
    agents: Way = BY_LINKS


def _cost(load: str, way: str, mb_per_s: float, used: Sequence[Used]) -> Cost:
    counted = sum((one.counted for one in used), Counters())
    frames = counted.by("remote_wal_gateway_produce_requests_total", "way")
    cpu = counted.cpu_s / max(sum(one.brokers_cpu_s for one in used), 1e-9)
    linked = frames.get("linked", 0.0) / max(sum(frames.values()), 1.0)
    return Cost(load, way, mb_per_s, counted.puts, counted.gets, cpu, linked)


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
    console = Console()
    with (
        console.status("preparing") as line,
        tempfile.TemporaryDirectory(prefix="remote-wal-gateway-") as directory,
        object_store("directory", latency_ms) as store,
        three_zones(Path(directory) / "cluster", store) as world,
    ):
        measured = Measurement(world, rounds, scale, line.update)
        try:
            measured.run((RELAYED, BY_COST, BY_OBJECTS), part or tuple(Part))
        finally:  # a run that is cut short leaves its part
            if json_file is not None:
                json_file.write_text(_as_json(measured))
    _print(measured)


def _as_json(measured: Measurement) -> str:
    rows = [{**asdict(row), "is_met": row.is_met} for row in measured.rows]
    put_ms, get_ms = measured.store_ms
    document = {"put_ms": put_ms, "get_ms": get_ms, "rows": rows, "costs": [asdict(cost) for cost in measured.costs]}
    return json.dumps(document, indent=1) + "\n"


def _print(measured: Measurement) -> None:
    rows, costs = [], []
    for row in measured.rows:
        sign = "+" if row.unit == "ms" and row.goal != row.compared else ""
        compared = f"{row.compared:.2%}" if row.unit == "of direct" else f"{row.compared:{sign}.2f} {row.unit}"
        goal = "" if row.goal is None else f"{row.goal:.2%}" if row.unit == "of direct" else f"{row.goal:.2f}"
        met = {None: "", True: "yes", False: "no"}[row.is_met]
        rows.append((row.figure, row.way, f"{row.direct:.2f}", f"{row.gateway:.2f}", compared, goal, met))
    for cost in measured.costs:
        figures = (f"{cost.mb_per_s:.1f}", f"{cost.puts:,.0f}", f"{cost.gets:,.0f}", f"{cost.linked_share:.1%}")
        costs.append((cost.load, cost.way, *figures, f"{cost.agents_cpu:.2f}"))
    put_ms, get_ms = measured.store_ms
    show(
        table(
            "figure", "way", ">direct", ">gateway", ">compared", ">goal", "met",
            rows=rows, title=f"By the gateway, beside direct (medians; a PUT {put_ms:.1f} ms, a GET {get_ms:.1f} ms)",
        )
    )  # fmt: skip
    if costs:
        show(
            table(
                "load", "way", ">MB/s", ">PUT", ">GET", ">linked", ">agents' CPU of brokers'",
                rows=costs, title="What it took, of all rounds",
            )
        )  # fmt: skip
