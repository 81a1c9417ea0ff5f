"""What gateways stored of a durable topic is not stored again, and its producers are answered once the log's is named.

Zones az1 to az3 with a broker each. Broker 2 has the only replica; all producers come by gateways of other zones, by
object storage. So what a recovery finds of the log lies in gateways' objects.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from tests.cluster.agent_views import AgentCounters, describe
from tests.cluster.gateway_cluster import BY_OBJECTS, with_gateways
from tests.cluster.recovery_commands import drilled_recovery
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.test_gateway_durable import (
    ANSWERS,
    DURABLE,
    GATEWAYS,
    LEADER,
    ONE_REPLICA,
    NumberedProducer,
    begin,
    read,
    recover_from_an_empty_disk,
)

RECORDS, RECORD_BYTES = 2000, 2000
WRITTEN, ADOPTED = "remote_wal_store_bytes_total", "remote_wal_adopted_bytes_total"
ROUTED = "remote_wal_gateway_produce_requests_total"

pytestmark = pytest.mark.timeout(600)


cluster = with_gateways(GATEWAYS, BY_OBJECTS, ONE_REPLICA, controllers_apart=True)


class LargeRecords(NumberedProducer):
    """Large enough for batches that are worth naming."""

    def value(self, number: int) -> str:
        return super().value(number).ljust(RECORD_BYTES, ".")


def producers(cluster: LocalCluster, topic: str, run: str) -> list[NumberedProducer]:
    """Of both other zones."""
    settings: dict[str, object] = {"linger.ms": 50, "enable.idempotence": True, "acks": "all"}
    return [
        LargeRecords(GATEWAYS.bootstrap_servers(cluster.layout, zone), topic, f"{run}-{zone}", **settings)
        for zone in ("az1", "az3")
    ]


def are_answered(running: list[NumberedProducer], records: int = RECORDS) -> Callable[[], bool]:
    """Whether each has so many acknowledged."""
    return lambda: all(len(one.acknowledged) > records for one in running)


def uploaded_offset(cluster: LocalCluster, topic: str) -> int:
    (view,) = [one for one in describe(cluster, LEADER)["partitions"] if one["topic"] == topic]
    return int(view["uploaded_offset"])


def test_what_gateways_stored_once_outlives_the_only_replicas_disk(
    cluster: LocalCluster, topic: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    # produced, stored once -> more is produced, and broker 2 dies with its disk -> recovered -> the producers go on
    begin(cluster, {topic: DURABLE})
    counters = AgentCounters(cluster)
    first = producers(cluster, topic, "first")
    with first[0], first[1]:
        wait_until(are_answered(first), "all are answered", PATIENCE_S)
    stored = read(cluster, topic)
    wait_until(lambda: uploaded_offset(cluster, topic) >= len(stored), "all is stored", PATIENCE_S)
    produced_bytes = sum(map(len, stored))
    written = counters.growth(WRITTEN, operation="put") / produced_bytes
    adopted = counters.growth(ADOPTED) / produced_bytes
    record_property("written", f"{written:.3f} bytes written per byte produced, {adopted:.3f} adopted")
    assert adopted > 0.95
    assert written <= 1.05
    assert counters.growth(ANSWERS, outcome="stored") > 0

    second = producers(cluster, topic, "second")
    with ExitStack() as stack:
        for one in second:
            stack.enter_context(one)
        wait_until(are_answered(second, RECORDS // 4), "all are answered", PATIENCE_S)
        cluster.agent(LEADER).kill()
        cluster.broker(LEADER).kill()
        recover_from_an_empty_disk(cluster, topic)
        answered = max(len(one.acknowledged) for one in second)
        wait_until(are_answered(second, answered + RECORDS // 4), "all are answered again", PATIENCE_S)
    values = read(cluster, topic)
    assert values[: len(stored)] == stored
    for one in second:
        mine = [value for value in values if value.startswith(one.name)]
        assert mine[: len(one.acknowledged)] == one.acknowledged, "in order, and each once"
    assert counters.growth(ADOPTED) / sum(map(len, values)) > 0.5  # what a gateway stores too late is stored again
    drilled = drilled_recovery(cluster, LEADER, topic, tmp_path / "drill")
    assert drilled["end_offset"] >= len(values)


def test_no_producer_is_answered_for_what_its_gateway_stored_alone(cluster: LocalCluster, topic: str) -> None:
    begin(cluster, {topic: DURABLE})
    counters = AgentCounters(cluster)
    with Script(cluster, topic) as script:
        script.switch(LEADER, "put-defect")
        patient = producers(cluster, topic, "patient")
        with patient[0], patient[1]:
            wait_until(lambda: counters.growth(ROUTED, way="linked") >= len(patient), "gateways stored it", PATIENCE_S)
            wait_until(lambda: len(read(cluster, topic)) > 0, "the log has it", PATIENCE_S)
            assert not any(one.acknowledged for one in patient)
            assert counters.growth(ANSWERS, outcome="stored") == 0
            script.clear_switches()
            wait_until(are_answered(patient, RECORDS // 4), "all goes on", PATIENCE_S)
    assert counters.growth(ADOPTED) > 0
