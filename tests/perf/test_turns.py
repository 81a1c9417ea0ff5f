"""Loads in turns: one that is not kept up with is told, and the others go on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaToolError, KafkaTools
from local_cluster.polling import WaitTimeoutError
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.ladder.turns import Entrant, Length, Turns, turned
from perf.ladder.workloads import Comparison, Workload


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

    return Workload(name, "", 1, {"MB/s": Comparison.RATIO}, run)


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
    turns = Turns(Length(1, 1.0, 0.5), lambda _line: None, lambda measured: told.append(len(measured)))
    cluster = cast("LocalCluster", Nothing())
    other = Entrant("links", cluster, "links")
    turns.run([load("first", {"first-links": error}), load("second", {})], "directory", cluster, [other])
    outcomes = [(run.workload, run.rung, run.not_kept_up_with, bool(run.figures)) for run in turns.measured]
    assert outcomes == [
        ("first", "stock", "", True),
        ("first", "links", reason, False),
        ("second", "stock", "", True),
        ("second", "links", "", True),
    ]
    assert told == [1, 2, 3, 4]


def test_a_defect_of_the_benchmark_ends_it() -> None:
    turns = Turns(Length(1, 1.0, 0.0), lambda _line: None, lambda _measured: None)
    cluster = cast("LocalCluster", Nothing())
    with pytest.raises(KeyError):
        turns.run([load("first", {"first-links": KeyError()})], "", cluster, [Entrant("links", cluster, "links")])


def test_each_entrant_is_first_in_its_round() -> None:
    entrants = [Entrant(name, cast("LocalCluster", Nothing()), "links") for name in "abc"]
    orders = ["".join(one.name for one in turned(entrants, number)) for number in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


@pytest.mark.parametrize("policy", LinkPolicy)
def test_links_are_wanted_for_every_byte_by_one_policy(policy: LinkPolicy) -> None:
    cluster = cast("LocalCluster", Nothing())
    entrant = Entrant("one", cluster, "one", TopicSettings(enable=True, link_policy=policy))
    assert entrant.is_always_linked is (policy is LinkPolicy.ALWAYS)
    assert not Entrant("inline", cluster, "inline").is_always_linked
