"""The ladder: the same loads against stock Kafka and against each step towards links.

Two clusters run side by side, one stock, one with agents; rungs share a pair unless their agents need other settings,
and differ in the settings of their topics. If root allows it, each broker with its agent is a zone and has a host of
its own, a network namespace, as has the store. Kafka's tools then run in the zone az1.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from local_cluster.broker_config import AgentsMode
from local_cluster.cluster_admin import LINKED
from local_cluster.kafka_tools import KafkaToolError, KafkaTools
from local_cluster.object_store.store_spec import OwnStore
from local_cluster.zones import ZoneGateways, ZoneHosts, hosts_where_allowed
from metadata_topic.settings.topic_settings import TopicSettings
from perf.clusters import STORE_HOST, LatencyMs, Rounds, Scale, object_store, started_cluster
from perf.ladder.report import line_of, print_tables, write_json
from perf.ladder.turns import WARM_UP, Clients, Comparison, Entrant, Measured, Rung, Turns, Workload
from perf.loads import RECORD_BYTES, Figures, fleet, kafka


def _end_to_end(tools: KafkaTools, topic: str, scale: float) -> Figures:
    run = tools.end_to_end_latency(topic, records=int(1_000 * scale), acks="all", record_bytes=RECORD_BYTES)
    return {"p50 ms": run.p50_ms, "p99 ms": run.p99_ms}


def _consume(tools: KafkaTools, topic: str, scale: float) -> Figures:
    """Let consumers read all of a topic that was filled. Raises KafkaToolError."""
    records, begun_s = int(_FILLED * scale), time.monotonic()
    with ThreadPoolExecutor(_CONSUMERS) as pool:
        read = list(pool.map(lambda _: tools.consume(topic, records=records), range(_CONSUMERS)))
    if min(read) < records:
        raise KafkaToolError(f"{min(read)} of {records} records were read")
    return {"s": time.monotonic() - begun_s}


def _librdkafka(records_per_s: int, *, linger: bool) -> Workload:
    """Return a load of a producer with librdkafka's defaults, or of one that sends each record at once."""
    config: Mapping[str, int] = {} if linger else {"linger.ms": 0}
    run = fleet(1, records_per_s * RECORD_BYTES / 1e6, config, seconds=10.0)
    return Workload(f"librdkafka-{records_per_s}{'' if linger else '-no-linger'}", 6, _LATENCY, run)


_FILLED: Final = 100_000
_CONSUMERS: Final = 4
_THROUGHPUT: Final = {"MB/s": Comparison.RATIO}
_LATENCY: Final = {"p50 ms": Comparison.ADDED_MS, "p99 ms": Comparison.ADDED_MS}
_ONE, _ALL = {"acks": "1"}, {"acks": "all"}
_LARGE_BATCHES: Final = _ALL | {"batch.size": "131072"}
_IN_FLIGHT: Final = _ALL | {"max.in.flight.requests.per.connection": "1"}
_AT_ONCE: Final = {"linger.ms": "0"}
_P50: Final = {"p50 ms": Comparison.ADDED_MS}

WORKLOADS: Final = (
    # Producers that are as fast as they can be.
    Workload("acks-1", 12, _THROUGHPUT, kafka(500_000, _ONE)),
    Workload("acks-all-one", 12, _THROUGHPUT, kafka(150_000, _ALL)),
    Workload("acks-all-six", 12, _THROUGHPUT, kafka(300_000, _ALL, producers=6)),
    Workload("acks-all-six-128k", 12, _THROUGHPUT, kafka(600_000, _LARGE_BATCHES, producers=6)),
    # One record in flight; each is acknowledged before the next is due.
    Workload("one-in-flight", 3, _LATENCY, kafka(1_500, _IN_FLIGHT | _AT_ONCE, records_per_s=50, warm_up=0.2)),
    # The same, to another zone, without a wait for followers.
    Workload("one-in-flight-acks-1", 1, _LATENCY, kafka(1_500, _ONE | _AT_ONCE, records_per_s=50, warm_up=0.2)),
    # One request in flight.
    Workload("small-load", 3, _LATENCY, kafka(40_000, _IN_FLIGHT, records_per_s=2_000, warm_up=0.2)),
    # From produce to consume, one record in flight.
    Workload("end-to-end", 1, _LATENCY, _end_to_end),
    Workload("consume", 12, {"s": Comparison.RATIO}, _consume, kafka(_FILLED, _LARGE_BATCHES)),
    Workload("steady", 12, _P50, kafka(500_000, _ONE, records_per_s=25_000, warm_up=0.2)),
    *(_librdkafka(rate, linger=linger) for linger in (True, False) for rate in (50, 200, 1000, 5000)),
)
_COST: Final = TopicSettings(enable=True)
RUNGS: Final = (
    Rung("inline", OwnStore.LOCAL),
    Rung("cost", OwnStore.LOCAL, _COST),
    Rung("links", OwnStore.LOCAL, LINKED),
    Rung("acks-pipelined", OwnStore.LOCAL, LINKED, Clients.HELD),
    Rung("gateway", OwnStore.LOCAL, LINKED, Clients.GATEWAY),
    Rung("gateway-objects", OwnStore.LOCAL, LINKED, Clients.OBJECTS),
    Rung("cost-s3-tls", OwnStore.S3_NATIVE, _COST),
    Rung("links-s3-tls", OwnStore.S3_NATIVE, LINKED),
    Rung("acks-pipelined-s3-tls", OwnStore.S3_NATIVE, LINKED, Clients.HELD),
)
_GATEWAYS = ZoneGateways({1: "az1", 2: "az2", 3: "az3"})
_BY_OBJECTS: Final = {
    "remote.wal.gateway.fetch.links.enable": "true",
    "remote.wal.gateway.produce.enable": "true",
}
_AGENTS: Final[Mapping[Clients, Mapping[str, str]]] = {
    Clients.GATEWAY: _BY_OBJECTS,
    Clients.OBJECTS: _BY_OBJECTS
    | {
        "remote.wal.gateway.produce.policy": "always",
        "remote.wal.gateway.fetch.serve.enable": "true",
        "remote.wal.link.watermark.wait.ms": "2",
    },
}
"""What agents are set to for these clients."""
_STOCK_HOSTS, _AGENTS_HOSTS = (ZoneHosts(network, (1, 2, 3, STORE_HOST)) for network in ("198.18", "198.19"))
"""The hosts' networks are kept free for benchmarks (RFC 2544)."""


def ladder(
    workload: Annotated[list[str] | None, typer.Option(help="Only these loads.")] = None,
    rung: Annotated[list[str] | None, typer.Option(help="Only these rungs, beside stock.")] = None,
    rounds: Rounds = 3,
    scale: Scale = 1.0,
    latency_ms: LatencyMs = 5,
    results: Annotated[Path, typer.Option(file_okay=False, help="Where the figures go.")] = Path("perf/results"),
) -> None:
    """Run Kafka's perf tools against stock and against agents in turns; print tables and write JSON.

    A load that a cluster does not keep up with is told; exits with 1 then. Where links are wanted for every byte (the
    rungs `links`) and less than 99 % is linked, figures are void.
    """
    from rich.console import Console

    workloads = [one for one in WORKLOADS if workload is None or one.name in workload]
    rungs = [one for one in RUNGS if rung is None or one.name in rung]
    if not workloads or not rungs:
        names = [*(one.name for one in WORKLOADS), *(one.name for one in RUNGS)]
        raise typer.BadParameter(f"nothing to run; there are {', '.join(names)}")
    results.mkdir(parents=True, exist_ok=True)
    about: dict[str, object] = {"rounds": rounds, "scale": scale, "warm_up": WARM_UP, "latency_ms": latency_ms}
    console = Console()

    def keep(measured: Sequence[Measured]) -> None:
        console.print(line_of(measured[-1]), soft_wrap=True)
        write_json(results / "ladder.json", workloads, measured, **about)

    with console.status("preparing") as line, hosts_where_allowed(_STOCK_HOSTS, _AGENTS_HOSTS) as have_hosts:
        turns = Turns(rounds, scale, line.update, keep)
        about["hosts"] = (
            "Each broker with its agent, and a native store, has a network namespace of its own."
            if have_hosts
            else "Brokers, agents and the store share this host, and its loopback."
        )
        console.print(about["hosts"])
        for pair in dict.fromkeys(one.pair for one in rungs):
            _climb(turns, [one for one in rungs if one.pair == pair], workloads, latency_ms, have_hosts=have_hosts)
    print_tables(workloads, turns.measured)
    console.print(f"written: {results / 'ladder.json'}")
    if any(run.not_kept_up_with for run in turns.measured):
        raise typer.Exit(1)


def _climb(
    turns: Turns, rungs: Sequence[Rung], workloads: Sequence[Workload], latency_ms: int, *, have_hosts: bool
) -> None:
    """Measure the rungs of one pair of clusters."""
    kind, clients = rungs[0].pair
    on_stock, on_agents = (_STOCK_HOSTS, _AGENTS_HOSTS) if have_hosts else (None, None)
    is_held = clients is Clients.HELD
    network = on_agents.network if on_agents else _GATEWAYS.network
    gateways = replace(_GATEWAYS, network=network, durable=is_held, pipelined=is_held)
    are_wanted = any(one.clients is not Clients.DIRECT for one in rungs)
    with (
        tempfile.TemporaryDirectory(prefix="remote-wal-perf-") as directory,
        object_store(kind, latency_ms, on_agents) as store,
        started_cluster(Path(directory) / "stock", None, hosts=on_stock) as stock,
        started_cluster(
            Path(directory) / "agents",
            AgentsMode(
                store,
                _AGENTS.get(clients, {}),
                tls=kind is OwnStore.S3_NATIVE,
                gateways=gateways if are_wanted else None,
            ),
            hosts=on_agents,
        ) as agents,
    ):
        by_agents = gateways.bootstrap_servers(agents.layout, "az1")
        entrants = [Entrant(one, agents, "" if one.clients is Clients.DIRECT else by_agents) for one in rungs]
        turns.run(workloads, stock, entrants)
