"""Loads in turns: one that is not kept up with is told, and the others go on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaToolError, KafkaTools
from local_cluster.polling import WaitTimeoutError
from metadata_topic.settings.topic_settings import LinkPolicy
from perf.clusters import Store
from perf.ladder.turns import Comparison, Entrant, Rung, Turns, Workload

LINKS = Rung("links", Store.DIRECTORY)


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


@pytest.mark.parametrize("policy", LinkPolicy)
def test_links_are_wanted_for_every_byte_by_one_policy(policy: LinkPolicy) -> None:
    assert Rung("one", Store.DIRECTORY, policy).is_always_linked is (policy is LinkPolicy.ALWAYS)
    assert not Rung("inline", Store.DIRECTORY).is_always_linked
