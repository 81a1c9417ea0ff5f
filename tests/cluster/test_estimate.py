"""`remote-wal estimate` beside what agents count of the same load, priced by the same table."""

import json
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import ProducerPlan
from metadata_topic.settings.topic_settings import TopicSettings
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters, read_metrics
from tests.cluster.recovery_commands import ask_cluster
from tests.cluster.script import PATIENCE_S, Script

LOAD = ProducerPlan("load", acks="1", payload_bytes=10_000, records_per_s=400)
"""4 MB/s to two leaders, from a producer that waits for nobody."""
SECONDS = 40.0
MONTH_S = 30 * 86_400


Counted = dict[int, tuple[float, dict[str, float]]]
"""By agent: when it was asked, and its dollars by what they are of."""


def dollars(cluster: LocalCluster) -> Counted:
    found: Counted = {}

    def is_told(broker_id: int) -> bool:
        with suppress(OSError):  # the machine may be busy
            told = read_metrics(cluster, broker_id).items()
            usd = {dict(labels)["of"]: one for (name, labels), one in told if name == "remote_wal_dollars_total"}
            found[broker_id] = time.monotonic(), usd
        return broker_id in found

    for one in cluster.broker_ids:
        wait_until(partial(is_told, one), f"agent {one} tells its dollars", PATIENCE_S)
    return found


def a_month(before: Counted, after: Counted, of: str) -> float:
    return sum((usd[of] - before[one][1][of]) / (at_s - before[one][0]) * MONTH_S for one, (at_s, usd) in after.items())


def estimated(cluster: LocalCluster) -> dict[str, Any]:
    options = ["--minutes", str(SECONDS / 60), "--every", "5", "--acks", "1", "--json"]
    found: dict[str, Any] = json.loads(ask_cluster(cluster, "estimate", *options))
    return found


@pytest.mark.thorough
def test_an_estimate_comes_within_fifteen_percent_of_what_agents_count(agent_script: Script) -> None:
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3], [2, 3, 1]], linked=False)
    script.link_topic(TopicSettings(enable=True))
    script.produce(LOAD)
    script.expect_links_to_be_used(5_000_000)
    counters = AgentCounters(cluster)
    before = dollars(cluster)
    found = estimated(cluster)
    after = dollars(cluster)
    linked, inline = (counters.growth(RECORD_BYTES, path=path) for path in ("linked", "inline"))
    told = found["total"]["replication_usd"]
    assert linked / (linked + inline) > 0.9, "else the load was not linked, and this compares nothing"
    assert told["today"] == pytest.approx(a_month(before, after, "stock"), rel=0.15)
    links = told["links"] - found["total"]["parts_usd"]["wal_storage"]  # which the agents' counters leave out
    counted = sum(a_month(before, after, of) for of in ("crossings", "requests"))
    assert links == pytest.approx(counted, rel=0.15)
    [topic] = [one for one in found["topics"] if one["topic"] == script.topic]
    assert topic["linked_share"] == 1.0
    assert topic["produced_bytes"] == pytest.approx(4e6 * MONTH_S, rel=0.3)
