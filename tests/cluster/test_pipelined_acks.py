"""acks=all by agents that hold the answers: what is acknowledged is replicated, and brokers do not stand still.

Zones az1 to az3 with a broker each. Producers of az1 come by their gateway, those of az2 by broker 2's own agent.
"""

import gc
import logging
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer
from kafka.producer.future import FutureRecordMetadata

from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from tests.cluster.agent_views import AgentCounters
from tests.cluster.conftest import IMPATIENT
from tests.cluster.gateway_cluster import THREE_ZONES, with_gateways
from tests.cluster.quick_agent import quick
from tests.cluster.replica_moves import elect_uncleanly, move_leader, wait_for_isr
from tests.cluster.script import PATIENCE_S
from tests.cluster.stored_log import read_log
from tests.cluster.test_gateway_durable import NumberedProducer
from tests.soak.transactional_copier import TransactionalCopier
from tests.soak.verifiable_clients import VerifiableClients

GATEWAYS = ZoneGateways(THREE_ZONES, durable=True, pipelined=True)
LEADER, FOLLOWERS = 2, (1, 3)
REQUESTS = "remote_wal_gateway_acks_all_requests_total"
ANSWERS = "remote_wal_gateway_durable_answers_total"
ENOUGH, FEW = 1000, 200
ACKS_ALL = {"acks": "all", "enable.idempotence": True}
ONCE = {"acks": "all", "message.send.max.retries": 0, "topic.metadata.refresh.interval.ms": 500}
"""A producer that hears of every error and tries nothing again."""

pytestmark = pytest.mark.timeout(600)


# librdkafka's producers would make a deleted topic again.
BROKERS = {**IMPATIENT, "min.insync.replicas": "2", "auto.create.topics.enable": "false"}
cluster = with_gateways(GATEWAYS, quick(bypass_after_s=1), BROKERS, bypass=True)


def make_topic(
    cluster: LocalCluster,
    topic: str,
    replicas: Sequence[int] = (LEADER, *FOLLOWERS),
    config: Mapping[str, str] | None = None,
) -> None:
    """A topic of one partition, linked whole."""
    cluster.admin.create_topic(topic, assignment=[replicas], config=config)
    set_topics(cluster.bootstrap_servers, [topic], TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS))


def own_address(cluster: LocalCluster) -> str:
    return GATEWAYS.own_zone_address(cluster.layout, LEADER)


def other_address(cluster: LocalCluster) -> str:
    return GATEWAYS.bootstrap_servers(cluster.layout, "az1")


class PythonProducer(NumberedProducer):
    """kafka-python as it is by default: idempotent, five requests in flight."""

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        with warnings.catch_warnings():  # kafka-python leaves the sockets of refused connections open
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def _run(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, acks="all", linger_ms=5)
        number, sent = 0, deque[FutureRecordMetadata]()
        while not self._is_over.is_set():
            while sent and sent[0].is_done:
                sent.popleft()
            if len(sent) >= 1000:
                self._is_over.wait(0.002)
                continue
            value = self.value(number)
            sent.append(producer.send(self.topic, value.encode()))
            sent[-1].add_callback(lambda _told, value=value: self.acknowledged.append(value))
            sent[-1].add_errback(lambda error: self.errors.append(error.errno))
            number += 1
        producer.close(30.0)


def numbered(cluster: LocalCluster, topic: str, settings: Mapping[str, object] = ACKS_ALL) -> list[NumberedProducer]:
    """Producers of the leader's own zone, and of another one."""
    return [
        NumberedProducer(own_address(cluster), topic, f"{topic}-own", **settings),
        NumberedProducer(other_address(cluster), topic, f"{topic}-other", **settings),
    ]


@contextmanager
def running(producers: Sequence[NumberedProducer]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in producers:
            stack.enter_context(one)
        yield


@contextmanager
def standing_still(cluster: LocalCluster) -> Iterator[None]:
    """Agents of both followers do nothing."""
    for follower in FOLLOWERS:
        cluster.agent(follower).pause()
    try:
        yield
    finally:
        for follower in FOLLOWERS:
            cluster.agent(follower).resume()


def lead_again(cluster: LocalCluster, *topics: str) -> None:
    for topic in topics:
        cluster.admin.wait_for_full_isr(topic)
        move_leader(cluster.admin, topic, 0, LEADER)


def more_acknowledged(producers: list[NumberedProducer], records: int = ENOUGH) -> None:
    """Wait until each of them has been told of so many more."""
    before = [len(one.acknowledged) for one in producers]
    wait_until(
        lambda: all(len(one.acknowledged) > was + records for one, was in zip(producers, before, strict=True)),
        "producers are answered",
        PATIENCE_S,
    )


def tell_since(killed_s: float) -> None:
    sys.stdout.write(f"{ENOUGH} more records {time.monotonic() - killed_s:.1f} s after the agent was killed\n")


def expect_held(counters: AgentCounters) -> None:
    """Some answers are held, which takes a while for a topic that is new."""
    wait_until(lambda: counters.growth(REQUESTS, way="pipelined") > 0, "answers are held", PATIENCE_S)


def expect_kept(cluster: LocalCluster, topic: str, producers: list[NumberedProducer]) -> None:
    """Every acknowledged record is in the log, once, in the order of its producer."""
    values = read_log(cluster, topic)
    for one in producers:
        mine = [value for value in values if value.startswith(f"{one.name}-")]
        assert len(set(mine)) == len(mine)
        acknowledged = set(one.acknowledged)
        assert [value for value in mine if value in acknowledged] == one.acknowledged


@pytest.mark.gate
def test_nothing_acknowledged_is_lost_when_the_leader_and_agents_are_killed(cluster: LocalCluster, topic: str) -> None:
    # both are answered -> the leader's broker dies, others lead -> it is back and leads again -> its agent dies
    # -> it is back: each time they go on, and most requests went to the broker as acks=1
    make_topic(cluster, topic)
    producers, counters = numbered(cluster, topic), AgentCounters(cluster)
    with running(producers):
        more_acknowledged(producers)
        expect_held(counters)
        cluster.broker(LEADER).kill()
        more_acknowledged(producers)
        cluster.start_broker(LEADER)
        lead_again(cluster, topic)
        more_acknowledged(producers)
        cluster.agent(LEADER).kill()
        killed_s = time.monotonic()
        cluster.start_agent(LEADER)
        more_acknowledged(producers)
        tell_since(killed_s)
    assert counters.growth(ANSWERS, outcome="replicated") > 0
    expect_kept(cluster, topic, producers)


def test_below_the_minimum_isr_nothing_is_acknowledged_and_the_broker_itself_refuses(
    cluster: LocalCluster, topic: str
) -> None:
    # both followers' agents stand still -> held answers end by their time, then the broker itself says
    # NOT_ENOUGH_REPLICAS before it appends -> they go on: all goes on
    make_topic(cluster, topic)
    patient, _ = numbered(cluster, topic)
    # Long enough for an answer to come before its client closes the connection, of which the agent would know nothing.
    settings = {"acks": "all", "request.timeout.ms": 10_000, "message.send.max.retries": 0}
    impatient = NumberedProducer(own_address(cluster), topic, f"{topic}-impatient", **settings)
    counters = AgentCounters(cluster)
    with patient, impatient:
        more_acknowledged([patient, impatient])
        expect_held(counters)
        with standing_still(cluster):
            wait_until(lambda: KafkaError.NOT_ENOUGH_REPLICAS in impatient.errors, "the broker refuses", PATIENCE_S)
            told = len(patient.acknowledged), len(impatient.acknowledged)
            refused = impatient.errors.count(KafkaError.NOT_ENOUGH_REPLICAS)
            wait_until(
                lambda: impatient.errors.count(KafkaError.NOT_ENOUGH_REPLICAS) > refused + 5,
                "it goes on so",
                PATIENCE_S,
            )
            assert (len(patient.acknowledged), len(impatient.acknowledged)) == told
        more_acknowledged([patient])
    assert counters.growth(REQUESTS, way="unchanged_isr_may_be_too_small") > 0
    expect_kept(cluster, topic, [patient])


def test_a_transaction_that_was_not_replicated_in_time_is_aborted_whole(cluster: LocalCluster, topic: str) -> None:
    # a transaction's first record is replicated -> both followers' agents stand still: its second one is held, and the
    # producer tries again until it gives up -> they go on: it is aborted, and the next one commits under a new epoch
    make_topic(cluster, topic)
    settings = {"request.timeout.ms": 3000, "message.timeout.ms": 9000, "log_level": 0}
    producer = Producer({"bootstrap.servers": own_address(cluster), "transactional.id": topic, **settings})
    counters, errors = AgentCounters(cluster), list[KafkaError]()

    def send(value: str) -> None:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.extend([error] if error else []))
        assert producer.flush(PATIENCE_S) == 0

    def is_held() -> bool:
        send("aborted")
        return counters.growth(REQUESTS, way="pipelined") > 0

    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    send("committed")
    producer.commit_transaction(PATIENCE_S)
    producer.begin_transaction()
    wait_until(is_held, "answers are held", PATIENCE_S)
    assert not errors
    with standing_still(cluster):
        send("aborted, too")
        assert errors
    producer.abort_transaction(PATIENCE_S)
    producer.begin_transaction()
    send("committed, too")
    producer.commit_transaction(PATIENCE_S)
    assert counters.growth(ANSWERS, outcome="timed_out") > 0
    assert read_log(cluster, topic) == ["committed", "committed, too"]


def test_kafkas_own_clients_lose_nothing_when_leaders_followers_and_agents_are_killed(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    # the verifiable clients by the leader's own agent, the copier's transactions by another zone's gateway
    # -> each of the four dies, and is back before the next one
    copies, follower = f"{topic}-copied", FOLLOWERS[0]
    for name in (topic, copies):
        make_topic(cluster, name)
    clients = VerifiableClients(cluster, own_address(cluster), topic, tmp_path, records_per_s=300)
    copier, counters = (
        TransactionalCopier(cluster, other_address(cluster), topic, copies, tmp_path),
        AgentCounters(cluster),
    )

    def expect_flow() -> None:
        acknowledged, runs = clients.report().acknowledged, copier.runs.count(0)
        wait_until(lambda: clients.report().acknowledged > acknowledged + ENOUGH, "records flow", PATIENCE_S)
        wait_until(lambda: copier.runs.count(0) > runs, "the copier carries a run to its end", 2 * PATIENCE_S)

    with clients, closing(copier):
        copier.start()
        expect_flow()
        for victim in (LEADER, follower):
            cluster.broker(victim).kill()
            expect_flow()
            cluster.start_broker(victim)
            lead_again(cluster, topic, copies)
        for victim in (LEADER, follower):
            cluster.agent(victim).kill()
            cluster.start_agent(victim)
            lead_again(cluster, topic, copies)
            expect_flow()
        written = clients.finish()
        copied = copier.finish(clients.account.values[0])
    assert counters.growth(REQUESTS, way="pipelined") > 0
    assert (written.faults, copied.faults) == (0, 0), f"{written}; {copied}"
    assert min(written.acknowledged, copied.consumed) > ENOUGH


def test_after_an_unclean_election_only_what_the_new_leader_has_is_acknowledged(
    cluster: LocalCluster, topic: str
) -> None:
    # 1 cannot fetch and leaves the ISR; what 2 acknowledges alone dies with it -> 1 leads, uncleanly, and acknowledges
    # -> 2 is back, cuts its log, and leads again
    other = 1
    make_topic(cluster, topic, (LEADER, other), {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
    producers, counters = numbered(cluster, topic, ONCE), AgentCounters(cluster)
    with running(producers):
        more_acknowledged(producers)
        expect_held(counters)
        both_have = [list(one.acknowledged) for one in producers]
        cluster.admin.wait_for_full_isr(topic)
        cluster.agent(other).pause()
        try:
            wait_for_isr(cluster.admin, topic, [LEADER])
            more_acknowledged(producers[:1], FEW)  # the other's gateway is the agent that stands still
            cluster.broker(LEADER).kill()
        finally:
            cluster.agent(other).resume()
        elect_uncleanly(cluster.admin, topic, 0, other)
        from_here = [len(one.acknowledged) for one in producers]
        more_acknowledged(producers)
        cluster.start_broker(LEADER)
        lead_again(cluster, topic)
        more_acknowledged(producers)
    kept = set(read_log(cluster, topic))
    for one, before, since in zip(producers, both_have, from_here, strict=True):
        assert not set(before) - kept
        assert not set(one.acknowledged[since:]) - kept


def test_clients_of_the_own_zone_reach_the_broker_by_the_standby_while_its_agent_is_dead(
    cluster: LocalCluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # caught records would keep kafka-python's connections, and sockets
    # kafka-python's answers are held, and librdkafka's -> the agent dies and stays dead: the same address leads to the
    # broker -> the agent is back, and holds answers again
    make_topic(cluster, topic)
    settings, counters = str(cluster.layout.server_properties(LEADER)), AgentCounters(cluster)
    own = [PythonProducer(own_address(cluster), topic, f"{topic}-python"), numbered(cluster, topic)[0]]
    command = [sys.executable, "-m", "cli.main", "gateway", "standby", "--broker-config", settings]
    with (
        (tmp_path / "standby.log").open("wb") as log,
        ExitStack() as producers,
        subprocess.Popen(command, stderr=log) as standby,
    ):
        try:
            producers.enter_context(own[0])
            expect_held(counters)
            producers.enter_context(own[1])
            more_acknowledged(own)
            cluster.agent(LEADER).kill()
            killed_s = time.monotonic()
            more_acknowledged(own)
            tell_since(killed_s)
            java = cluster.runtime.tools(own_address(cluster)).produce(topic, records=FEW, config={"acks": "all"})
            assert java.records == FEW
            assert not cluster.agent(LEADER).is_alive()
            counters = AgentCounters(cluster, [LEADER])
            cluster.start_agent(LEADER)
            expect_held(counters)
            more_acknowledged(own)
        finally:
            standby.terminate()
    expect_kept(cluster, topic, own)
