"""`remote-wal report` over a real cluster with gateways: what clients moved is what the gateways' agents counted.

Zones az1 to az3 with a broker each; the topic is led in az2, and has a replica in az1. Clients of az1 know its gateway
alone; its consumers say no rack, and nobody says it for them.
"""

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from local_cluster.agent_metrics import scrape
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.zones import ZoneGateways
from plugin.prices import Prices
from tests.cluster.conftest import cluster_of
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.script import Script
from tests.cluster.test_daily_report import expect_usage_since, report
from tests.spark import spark

__all__ = ["spark"]
GATEWAYS = ZoneGateways(THREE_ZONES)
GATEWAY, LEADER = 1, 2
BYTES = "remote_wal_gateway_bytes_total"
FETCHED_BYTES = "remote_wal_gateway_fetch_record_bytes_total"
RECORDS, RECORD_BYTES = 2000, 1000
TIMEOUT_S = 60.0
AGENTS = {
    **BY_OBJECTS,
    "remote.wal.gateway.fetch.links.enable": "true",
    **quick(usage_interval_ms=1000, orphans_interval_s=3600),
}

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]


cluster = cluster_of(lambda _: ClusterSettings(QuickAgents(overrides=AGENTS, gateways=GATEWAYS), heap_mb=384))


def produce(topic: str, bootstrap: str) -> None:
    """Records that no codec makes smaller, each of which is answered."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    values = random.Random(7)
    for _ in range(RECORDS):
        producer.produce(topic, values.randbytes(RECORD_BYTES))
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def consume(topic: str, bootstrap: str) -> int:
    """How many records there are."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "-", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while found < RECORDS and (messages := consumer.consume(1000, TIMEOUT_S)):
        found += sum(message.error() is None for message in messages)
    consumer.close()
    return found


def clients_of(cluster: LocalCluster, output: Path, zone: str, *options: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a report tells of a zone's clients, and all of its costs."""
    expect_usage_since(cluster, round(time.time() * 1000))
    found = report(cluster, output, *options)
    assert found.exit_code == 0, found.output
    costs = json.loads((output.parent / "report.json").read_text())["costs"]
    return next(one for one in costs["clients"] if one["zone"] == zone), costs


@pytest.mark.usefixtures("spark")
def test_the_report_tells_what_clients_moved_and_what_follower_fetching_would_bring(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    cluster.admin.create_topic(topic, assignment=[[LEADER, GATEWAY]])
    gateway, size = GATEWAYS.bootstrap_servers(cluster.layout, "az1"), RECORDS * RECORD_BYTES
    with Script(cluster, topic) as script:
        script.link_topic()
        produce(topic, gateway)
        assert consume(topic, gateway) == RECORDS

    at_gateway, beside = scrape(cluster, GATEWAY), scrape(cluster, LEADER)
    az1, costs = clients_of(cluster, tmp_path / "output", "az1")
    amounts, dollars = az1["amounts"], az1["dollars"]
    crossed = [at_gateway.of(BYTES, side="gateway", direction=way) for way in ("to_broker", "to_client")]
    assert [amounts["sent_crossed_bytes"], amounts["given_crossed_bytes"]] == crossed
    assert amounts["sent_bytes"] > size > amounts["sent_crossed_bytes"] + 0.9 * size
    assert amounts["given_bytes"] > size
    given = sum(beside.of(FETCHED_BYTES, zone="az1", way=way) for way in ("linked", "inline"))
    # A batch that a linked answer leaves out, and that is asked for again, counts with both of the broker's answers.
    assert amounts["near_bytes"] == pytest.approx(given, rel=0.02)
    assert amounts["untold_bytes"] == 0
    assert amounts["upload_bytes"] == amounts["retrieval_bytes"] > 0.9 * size
    assert amounts["puts"] >= 1
    crossing_gb = Prices.load().zone_crossing_gb
    assert dollars["direct_usd"] == pytest.approx((amounts["sent_bytes"] + amounts["given_bytes"]) * crossing_gb / 1e9)
    assert dollars["direct_usd"] - dollars["follower_fetching_usd"] == pytest.approx(
        amounts["near_bytes"] * crossing_gb / 1e9
    )
    assert costs["parts"]["clients_crossing_usd"] >= sum(crossed) * crossing_gb / 1e9
    assert "Clients by zone" in (tmp_path / "output" / "report.html").read_text()

    # More of the same by an incremental run, which counts that alone.
    assert consume(topic, gateway) == RECORDS
    more, _ = clients_of(cluster, tmp_path / "output", "az1")
    assert more["amounts"]["near_bytes"] == pytest.approx(given, rel=0.02)
    assert more["amounts"]["sent_bytes"] < size / 10
