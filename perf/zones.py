"""Three real brokers in each of three zones: how many GETs an object takes, where agents of a zone read for each other.

az1: brokers 1 to 3, az2: 4 to 6, az3: 7 to 9; the first of each zone leads. A partition has a replica in each zone, and
each pair of followers has one, so an object of all of a leader's partitions is read by six brokers of two zones.

Three turns on one cluster: each agent reads for itself; agents read for their zone; the same, and one that reads for
others is killed in the middle. Counted is what agents count.
"""

import json as json_format
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.tables import show, table
from local_cluster.agent_metrics import Counters, scrape
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.brokers_in_zones import in_zones
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import LocalDirectoryStore
from local_cluster.polling import wait_until
from local_cluster.topic_switch import LINKED, set_topics
from local_cluster.workload.ledger import ProducerPlan
from local_cluster.workload.ledger_workload import LedgerWorkload
from local_cluster.workload.replica_comparison import compare_replicas
from perf.clusters import directory_in_memory

ZONES: Final[Mapping[int, str]] = {broker: f"az{1 + (broker - 1) // 3}" for broker in range(1, 10)}
LEADERS: Final = (1, 4, 7)
_SHARE: Final = "remote.wal.hydration.share.min.readers"
_KILLED: Final = 5
"""A follower, so that no partition changes its leader."""
_BEGUN_OBJECTS: Final = 20
_PATIENCE_S: Final = 240.0
_AGENTS: Final = {
    "remote.wal.log.manager.combiner.thread.pool.size": "1",
    # A neighbour has a share of it, and nine brokers on few cores take their time.
    "remote.wal.hydration.timeout.ms": "8000",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """What is measured, and how."""

    name: str
    min_readers: int
    """`remote.wal.hydration.share.min.readers`"""
    kills: bool = False


TURNS: Final = (
    Turn("each for itself", 0),
    Turn("one for each zone", 2),
    Turn("an agent killed", 2, kills=True),
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Of one turn, by all agents together."""

    turn: str
    seconds: float
    objects: float
    other_zones: int
    """That an object is read in."""
    readers: float
    """Brokers that were told of an object, in the mean."""
    gets: float
    """Of an object."""
    given: float
    """Ranges of an object that neighbours gave, of those that were asked for."""
    refused: float
    """And that they did not, so that they were read from the store after all."""
    cpu_ms: float
    """Of all agents with all that they do, for an object and reader."""
    present_p50_ms: float
    """From a linked response's arrival until all its bytes are there."""
    present_p99_ms: float
    linked_share: float
    replicas_identical: bool
    lost: int
    """Records that were acknowledged and are in no log."""

    @property
    def is_sound(self) -> bool:
        return self.replicas_identical and not self.lost


def counted(turn: str, seconds: float, grown: Counters) -> Counted:
    """From what counters have grown by; nothing is known of replicas then."""
    objects = max(grown.puts, 1.0)
    readers = grown.of("remote_wal_announcements_total") / objects
    given = grown.of("remote_wal_shared_ranges_total", role="asker", outcome="given")
    asked = grown.of("remote_wal_shared_ranges_total", role="asker")
    present = grown.stages_ms().get("hydrated", {})
    return Counted(
        turn,
        seconds,
        grown.puts,
        len(set(ZONES.values())) - 1,
        readers,
        grown.gets / objects,
        given / objects,
        (asked - given) / objects,
        1000 * grown.cpu_s / objects / max(readers, 1.0),
        present.get("p50", 0.0),
        present.get("p99", 0.0),
        grown.topics_linked_share,
        replicas_identical=False,
        lost=0,
    )


def assignment() -> list[list[int]]:
    """Replicas of each partition, the leader first: each leader with each pair of brokers of the other zones."""
    found = []
    for leader in LEADERS:
        one, other = (
            [broker for broker, zone in ZONES.items() if zone == of]
            for of in sorted(set(ZONES.values()) - {ZONES[leader]})
        )
        found += [[leader, first, second] for first in one for second in other]
    return found


def zones(
    seconds: Annotated[float, typer.Option(min=3.0, help="Of each turn.")] = 20.0,
    records_per_s: Annotated[float, typer.Option(min=10.0, help="Of 1 KB each.")] = 900.0,
    put_ms: Annotated[int, typer.Option(min=0, help="The store's latency for PUT.")] = 50,
    get_ms: Annotated[int, typer.Option(min=0, help="And for GET.")] = 3,
    json: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the figures to this file.")] = None,
) -> None:
    """Measure what nine real brokers in three zones ask of the store, each for itself and one for each zone.

    Exits with 1 when replicas differ in the end, or a record that was acknowledged is lost.
    """
    from rich.console import Console

    found: list[Counted] = []
    with Console().status("starting nine brokers") as line, _nine_brokers(put_ms, get_ms) as (cluster, agents):
        for turn in TURNS:
            line.update(turn.name)
            found.append(_take(cluster, agents, turn, seconds, records_per_s))
            if json is not None:
                json.write_text(json_format.dumps([asdict(one) for one in found], indent=1) + "\n")
    columns = (f">{one.turn}" for one in found)
    show(table("", *columns, rows=rows(found), title="Nine brokers in three zones"))
    raise typer.Exit(int(not all(one.is_sound for one in found)))


def rows(found: Sequence[Counted]) -> list[tuple[str, ...]]:
    """For people: a figure, and what it is in each turn."""
    figures: tuple[tuple[str, Callable[[Counted], str]], ...] = (
        ("objects", lambda one: f"{one.objects:,.0f}"),
        ("other zones", lambda one: str(one.other_zones)),
        ("readers of an object", lambda one: f"{one.readers:.2f}"),
        ("GETs of an object", lambda one: f"{one.gets:.2f}"),
        ("ranges given by neighbours, of an object", lambda one: f"{one.given:.2f}"),
        ("not given, and read after all", lambda one: f"{one.refused:.3f}"),
        ("CPU for an object and reader, ms", lambda one: f"{one.cpu_ms:.1f}"),
        ("a range is there after, p50, p99 ms", lambda one: f"{one.present_p50_ms:.1f}, {one.present_p99_ms:.0f}"),
        ("record bytes by links", lambda one: f"{one.linked_share:.1%}"),
        ("replicas", lambda one: "identical" if one.replicas_identical else "DIFFERENT"),
        ("acknowledged records lost", lambda one: str(one.lost)),
    )
    return [(name, *(of(one) for one in found)) for name, of in figures]


@contextmanager
def _nine_brokers(put_ms: int, get_ms: int) -> Iterator[tuple[LocalCluster, AgentsMode]]:
    with tempfile.TemporaryDirectory(prefix="remote-wal-zones-") as directory, directory_in_memory() as objects:
        agents = AgentsMode(LocalDirectoryStore(put_ms, get_ms, objects), _AGENTS, tls=True)
        settings = ClusterSettings(agents, heap_mb=192)
        with LocalCluster.create(Path(directory) / "cluster", brokers=len(ZONES)) as cluster:
            cluster.settings = in_zones(settings, cluster.layout, ZONES, LEADERS)
            cluster.configure(agents)
            cluster.start(_PATIENCE_S)
            yield cluster, agents


def _take(cluster: LocalCluster, agents: AgentsMode, turn: Turn, seconds: float, records_per_s: float) -> Counted:
    """One turn on a topic of its own, from agents that have just been started."""
    _restart_agents(cluster, agents, turn.min_readers)
    topic = turn.name.replace(" ", "-").replace(",", "")
    cluster.admin.create_topic(topic, assignment=assignment())
    set_topics(cluster.bootstrap_servers, [topic], LINKED)
    # It does not wait, so all partitions get records all the time, and each object is of all of them.
    plan = ProducerPlan("quick", acks="1", records_per_s=records_per_s)
    with LedgerWorkload(cluster.bootstrap_servers, topic, [plan]) as workload:
        grown = _measure(cluster, turn, seconds)
        cluster.start_agent(_KILLED, timeout_s=_PATIENCE_S)
        cluster.admin.wait_for_full_isr(topic, timeout_s=_PATIENCE_S)
        report = workload.finish(_PATIENCE_S)
    same = compare_replicas(cluster, topic, _PATIENCE_S).identical
    return replace(counted(turn.name, seconds, grown), replicas_identical=same, lost=report.lost)


def _restart_agents(cluster: LocalCluster, agents: AgentsMode, min_readers: int) -> None:
    for one in cluster.broker_ids:
        cluster.agent(one).request_exit()
    for one in cluster.broker_ids:
        cluster.agent(one).finish_exit(_PATIENCE_S)
    cluster.configure(replace(agents, overrides={**agents.overrides, _SHARE: str(min_readers)}))
    cluster.start(_PATIENCE_S)


def _measure(cluster: LocalCluster, turn: Turn, seconds: float) -> Counters:
    """What the agents' counters grow by in so many seconds; of one that is killed, until then."""
    pause = threading.Event().wait
    started = _scrape(cluster)
    wait_until(
        lambda: _scrape(cluster).since(started).of("remote_wal_announcements_total") > _BEGUN_OBJECTS,
        "objects are made and read",
        _PATIENCE_S,
    )
    before = {one: scrape(cluster, one).counters for one in cluster.broker_ids}
    after = {}
    if turn.kills:
        pause(seconds / 3)
        after[_KILLED] = scrape(cluster, _KILLED).counters
        cluster.agent(_KILLED).kill()
        seconds *= 2 / 3
    pause(seconds)
    after |= {one: scrape(cluster, one).counters for one in cluster.broker_ids if one not in after}
    return sum((after[one].since(before[one]) for one in after), Counters())


def _scrape(cluster: LocalCluster) -> Counters:
    return sum((scrape(cluster, one).counters for one in cluster.broker_ids), Counters())
