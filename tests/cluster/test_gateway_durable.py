"""Producers of a durable topic are answered once their records are stored, so its only replica may be lost whole.

Zones az1 to az3 with a broker each. Broker 2 has the only replicas; producers of az1 and az3 come by their gateways,
whose objects are not stored again, those of az2 by broker 2's own agent.
"""

import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cli.exit_code import ExitCode
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.kafka_tools import KafkaToolError
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from metadata_topic.settings.topic_settings import TopicSettings
from tests.cluster.agent_views import AgentCounters, describe
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, with_gateways
from tests.cluster.recovery_commands import ask_cluster, run_command
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.stored_log import read_log

GATEWAYS = ZoneGateways(THREE_ZONES, durable=True)
LEADER = 2
ANSWERS = "remote_wal_gateway_durable_answers_total"
DURABLE = TopicSettings(enable=True, durable=True)
ENOUGH, FEW = 2000, 500
RECORDS, RECORD_BYTES = 2000, 2000
ADOPTED = "remote_wal_adopted_bytes_total"
ROUTED = "remote_wal_gateway_produce_requests_total"

pytestmark = pytest.mark.timeout(600)


ONE_REPLICA = {"min.insync.replicas": "1"}
SELDOM = {"remote.wal.archive.interval.ms": "60000"}
"""What nobody waits for is uploaded seldom, so that it shows."""
cluster = with_gateways(GATEWAYS, BY_OBJECTS | SELDOM, ONE_REPLICA, controllers_apart=True)


class NumberedProducer:
    """Numbered values from one zone, in a thread, until it is stopped; which of them were acknowledged."""

    def __init__(self, bootstrap: str, topic: str, name: str, **settings: object) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 5, "log_level": 0, **settings}
        self.bootstrap, self.topic, self.name = bootstrap, topic, name
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.errors: list[int] = []

    def __enter__(self) -> "NumberedProducer":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def value(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _run(self) -> None:
        producer, number = Producer(self._settings), 0
        while not self._is_over.is_set():
            if len(producer) < 1000:
                try:
                    producer.produce(self.topic, self.value(number), on_delivery=self._delivered)
                    number += 1
                except KafkaException as error:  # it knows that the topic is gone
                    self.errors.append(error.args[0].code())
            producer.poll(0.002)
        producer.purge()
        producer.flush(1.0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append((message.value() or b"").decode())
        else:
            self.errors.append(error.code())


def begin(cluster: LocalCluster, topics: dict[str, TopicSettings]) -> None:
    for topic, settings in topics.items():
        cluster.admin.create_topic(topic, assignment=[[LEADER]])
        set_topics(cluster.bootstrap_servers, [topic], settings)

    def led() -> set[str]:
        return {one["topic"] for one in describe(cluster, LEADER)["partitions"]}

    wait_until(lambda: led() >= set(topics), "the agent leads them", PATIENCE_S)


def producers(cluster: LocalCluster, topic: str, **settings: object) -> list[NumberedProducer]:
    """Of the leader's own zone, and of another one."""
    own = GATEWAYS.own_zone_address(cluster.layout, LEADER)
    other = GATEWAYS.bootstrap_servers(cluster.layout, "az1")
    return [
        NumberedProducer(bootstrap, topic, f"{topic}-{name}", **settings)
        for name, bootstrap in (("own", own), ("other", other))
    ]


def produced_by_others(cluster: LocalCluster, topic: str) -> list[str]:
    """The log once Java's producer, which knows topics by their ids, was acknowledged."""
    own = GATEWAYS.own_zone_address(cluster.layout, LEADER)
    for acks in ("1", "all"):
        assert cluster.runtime.tools(own).produce(topic, records=FEW, config={"acks": acks}).records == FEW
    found = read_log(cluster, topic)
    assert len(found) == 2 * FEW
    return found


def recover_from_an_empty_disk(cluster: LocalCluster, topic: str) -> None:
    """What the leader's broker and agent, which are dead, have on theirs is lost; then they lead again."""
    (log_dir,) = cluster.layout.log_directories(LEADER)
    shutil.rmtree(log_dir)
    log_dir.mkdir()
    run_command(cluster, "recover", LEADER, "--if-empty")
    cluster.start_broker(LEADER)
    cluster.start_agent(LEADER)
    cluster.admin.wait_for_leader(topic, expected=LEADER)


@pytest.mark.gate
def test_no_acknowledged_record_is_lost_with_the_only_replicas_disk(cluster: LocalCluster, topic: str) -> None:
    # Another one is not durable, and its producer goes to the broker itself, which outlives its agent by a moment.
    control = f"{topic}-control"
    begin(cluster, {topic: DURABLE, control: TopicSettings(enable=True)})
    first = produced_by_others(cluster, topic)
    past_the_agent = NumberedProducer(cluster.layout.bootstrap_servers, control, control)
    running = [*producers(cluster, topic), past_the_agent]
    with ExitStack() as stack:
        for one in running:
            stack.enter_context(one)
        wait_until(lambda: all(len(one.acknowledged) > ENOUGH for one in running), "all are answered", PATIENCE_S)
        cluster.agent(LEADER).kill()
        answered = len(past_the_agent.acknowledged)
        wait_until(lambda: len(past_the_agent.acknowledged) > answered + 100, "the broker goes on", PATIENCE_S)
        cluster.broker(LEADER).kill()
    recover_from_an_empty_disk(cluster, topic)
    values = read_log(cluster, topic)
    assert values[: len(first)] == first
    kept = set(values)
    for one in running[:2]:
        assert not set(one.acknowledged) - kept
    assert set(past_the_agent.acknowledged) - set(read_log(cluster, control)), "what is not held is lost"


def test_while_the_store_is_away_producers_are_told_to_try_again(cluster: LocalCluster, topic: str) -> None:
    begin(cluster, {topic: DURABLE})
    counters = AgentCounters(cluster)
    with Script(cluster, topic) as script:
        script.switch(LEADER, "put-defect")
        impatient = {"request.timeout.ms": 3000, "message.send.max.retries": 0}
        for one in producers(cluster, topic, **impatient):
            with one:
                wait_until(partial(bool, one.errors), "it is told", PATIENCE_S)
            assert not one.acknowledged
            assert KafkaError.REQUEST_TIMED_OUT in one.errors
        assert counters.growth(ANSWERS, outcome="timed_out") > 0
        assert counters.growth(ANSWERS, outcome="stored") == 0
        again = f"{topic}-again"
        begin(cluster, {again: DURABLE})
        patient = producers(cluster, again, **{"request.timeout.ms": 3000, "enable.idempotence": True, "acks": "all"})
        told = counters.growth(ANSWERS, outcome="timed_out")
        with patient[0], patient[1]:
            wait_until(lambda: counters.growth(ANSWERS, outcome="timed_out") > told + 3, "both are told", PATIENCE_S)
            assert not any(one.acknowledged for one in patient)
            script.clear_switches()
            wait_until(lambda: all(len(one.acknowledged) > ENOUGH for one in patient), "all goes on", PATIENCE_S)
    values = read_log(cluster, again)
    for one in patient:
        mine = [value for value in values if value.startswith(f"{one.name}-")]
        assert mine[: len(one.acknowledged)] == one.acknowledged, "in order, and each once"


def test_transactions_are_refused_for_durable_topics_and_durability_while_one_is_open(
    cluster: LocalCluster, topic: str
) -> None:
    durable, other = f"{topic}-durable", f"{topic}-other"
    begin(cluster, {durable: DURABLE, other: TopicSettings(enable=True)})
    counters = AgentCounters(cluster)
    addresses = GATEWAYS.own_zone_address(cluster.layout, LEADER), GATEWAYS.bootstrap_servers(cluster.layout, "az1")
    for number, address in enumerate(addresses):
        producer = Producer({"bootstrap.servers": address, "transactional.id": f"{topic}-{number}", "log_level": 0})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(other, "before")
        assert not producer.flush(PATIENCE_S)
        ask_cluster(cluster, "topics", "enable", other, "--durable", exit_code=ExitCode.UNKNOWN)
        errors: list[KafkaError | None] = []
        producer.produce(durable, "refused", on_delivery=lambda error, _, errors=errors: errors.append(error))
        assert not producer.flush(PATIENCE_S)
        assert [error and error.code() for error in errors] == [KafkaError.POLICY_VIOLATION]
        producer.abort_transaction(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(other, f"kept-{number}")
        producer.commit_transaction(PATIENCE_S)
    java = cluster.runtime.tools(addresses[0])
    with pytest.raises(KafkaToolError, match=r"PolicyViolationException.*durable topics take no transactions"):
        java.produce(durable, records=1, config={"transactional.id": f"{topic}-java", "enable.idempotence": "true"})
    assert counters.growth(ANSWERS, outcome="transactional") >= 3
    assert read_log(cluster, durable) == []
    assert read_log(cluster, other) == ["kept-0", "kept-1"]
    ask_cluster(cluster, "topics", "enable", other, "--durable")


class LargeRecords(NumberedProducer):
    """Large enough for batches that are worth naming."""

    def value(self, number: int) -> str:
        return super().value(number).ljust(RECORD_BYTES, ".")


def large_producers(cluster: LocalCluster, topic: str, run: str) -> list[NumberedProducer]:
    settings: dict[str, object] = {"linger.ms": 50, "enable.idempotence": True, "acks": "all"}
    return [
        LargeRecords(GATEWAYS.bootstrap_servers(cluster.layout, zone), topic, f"{run}-{zone}", **settings)
        for zone in ("az1", "az3")
    ]


def are_answered(running: list[NumberedProducer], records: int = RECORDS) -> Callable[[], bool]:
    """Whether each has so many acknowledged."""
    return lambda: all(len(one.acknowledged) > records for one in running)


def test_no_producer_is_answered_for_what_its_gateway_stored_alone(cluster: LocalCluster, topic: str) -> None:
    begin(cluster, {topic: DURABLE})
    counters = AgentCounters(cluster)
    with Script(cluster, topic) as script:
        script.switch(LEADER, "put-defect")
        patient = large_producers(cluster, topic, "patient")
        with patient[0], patient[1]:
            wait_until(lambda: counters.growth(ROUTED, way="linked") >= len(patient), "gateways stored it", PATIENCE_S)
            wait_until(lambda: len(read_log(cluster, topic)) > 0, "the log has it", PATIENCE_S)
            assert not any(one.acknowledged for one in patient)
            assert counters.growth(ANSWERS, outcome="stored") == 0
            script.clear_switches()
            wait_until(are_answered(patient, RECORDS // 4), "all goes on", PATIENCE_S)
    assert counters.growth(ADOPTED) > 0
