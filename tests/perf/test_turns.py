"""Loads in turns: one that is not kept up with is told, and the others go on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaToolError, KafkaTools
from local_cluster.object_store.store_spec import OwnStore
from local_cluster.polling import WaitTimeoutError
from local_cluster.zones import ZoneHosts
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.ladder.turns import CROSSED, STOCK, Clients, Comparison, Entrant, Rung, Turns, Workload
from perf.loads import Run

LINKS = Rung("links", OwnStore.LOCAL)


@dataclass
class Nothing:
    """Stands for a stock cluster without brokers, and for its admin and its tools."""

    broker_ids: Sequence[int] = (1,)
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    bootstrap_servers: str = ""

    @property
    def admin(self) -> "Nothing":
        return self

    @property
    def runtime(self) -> "Nothing":
        return self

    def broker(self, broker_id: int) -> "Nothing":
        return self

    def cpu_s(self) -> float:
        return 0.0

    def create_topic(self, topic: str, assignment: object) -> None: ...

    def tools(self, bootstrap_servers: str, **how: Any) -> None: ...


def load(name: str, fails: Mapping[str, Exception]) -> Workload:
    def run(_tools: KafkaTools, topic: str, _scale: float) -> dict[str, float]:
        if topic in fails:
            raise fails[topic]
        return {"MB/s": 1.0}

    return Workload(name, 1, {"MB/s": Comparison.RATIO}, run)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError("3 records"), "3 records"),
        (KafkaToolError("failed"), "failed"),
        (WaitTimeoutError("no"), "no"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_load_that_is_not_kept_up_with_does_not_end_the_run(error: Exception, reason: str) -> None:
    told: list[int] = []
    turns = Turns(1, 1.0, lambda _line: None, lambda measured: told.append(len(measured)))
    cluster = cast("LocalCluster", Nothing())
    other = Entrant(LINKS, cluster)
    turns.run([load("first", {"first-links": error}), load("second", {})], cluster, [other])
    outcomes = [(run.workload, run.rung.name, run.not_kept_up_with, bool(run.figures)) for run in turns.measured]
    assert outcomes == [
        ("first", "stock", "", True),
        ("first", "links", reason, False),
        ("second", "stock", "", True),
        ("second", "links", "", True),
    ]
    assert told == [1, 2, 3, 4]


@dataclass(frozen=True)
class Hosts:
    """Stands for hosts that a megabyte enters each time when somebody looks; the last one is no broker's."""

    entered: list[int] = field(default_factory=lambda: [0])

    def prefix(self, broker_id: int) -> tuple[str, ...]:
        return ()

    def entered_bytes(self) -> dict[int, int]:
        self.entered[0] += 1_000_000
        return {1: self.entered[0], 9: 7 * self.entered[0]}


@pytest.mark.parametrize(("store", "crossed"), [(OwnStore.LOCAL, 1.0), (OwnStore.S3_NATIVE, None)])
def test_bytes_into_zones_are_a_figure_unless_objects_are_among_them(store: OwnStore, crossed: float | None) -> None:
    cluster = cast("LocalCluster", Nothing(settings=ClusterSettings(hosts=cast("ZoneHosts", Hosts()))))
    measured = Entrant(Rung("inline", store), cluster).measure("one", load("one", {}).run, "one", 1.0)
    assert measured.figures.get(CROSSED) == crossed


def test_what_is_to_be_read_is_there_before_any_round_and_no_warm_up_reads_it() -> None:
    ran: list[str] = []

    def runs(name: str) -> Run:
        def run(_tools: KafkaTools, topic: str, _scale: float) -> dict[str, float]:
            ran.append(f"{name} {topic}")
            return {"s": 1.0}

        return run

    workload = Workload("all", 1, {"s": Comparison.RATIO}, runs("read"), runs("fill"))
    cluster = cast("LocalCluster", Nothing())
    Turns(1, 1.0, lambda _line: None, lambda _measured: None).run([workload], cluster, [Entrant(LINKS, cluster)])
    assert ran == ["fill all-stock", "fill all-links", "read all-stock", "read all-links"]


def test_rungs_share_clusters_unless_their_clients_need_other_agents() -> None:
    pairs = {clients: Rung("one", OwnStore.LOCAL, clients=clients).pair for clients in Clients}
    assert pairs[Clients.DIRECT] == pairs[Clients.HELD]
    assert len(set(pairs.values())) == len(Clients) - 1
    assert Rung(STOCK, OwnStore.S3_NATIVE).pair != pairs[Clients.DIRECT]


@pytest.mark.parametrize("policy", LinkPolicy)
def test_links_are_wanted_for_every_byte_by_one_policy(policy: LinkPolicy) -> None:
    assert Rung("one", OwnStore.LOCAL, TopicSettings(True, policy)).is_always_linked is (policy is LinkPolicy.ALWAYS)
    assert not Rung("inline", OwnStore.LOCAL).is_always_linked
