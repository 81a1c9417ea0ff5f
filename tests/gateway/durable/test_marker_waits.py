"""Markers are stored once those say so who lead their logs, here or at agents over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from gateway.durable.ended_transactions import Partitions
from gateway.durable.log_asking import AskingContext, LogAsking
from gateway.durable.log_door import LogDoor
from gateway.durable.log_question import LogUpTo, decode_question, encode_question
from gateway.durable.marker_waits import MarkerWaits
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.topic.log_ends import LogEnd
from replication.leader.leader_context import LeaderContext, LeaderLimits
from replication.leader.leader_proxy import LeaderProxy
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from rlm.write_path.metrics import StageTimes
from tests.gateway.durable.test_held_answers import LOG, OTHER, TOPIC, Rig, assignment
from tests.gateway.produce.produce_frames import TOPIC_ID
from tests.replication.fake_led import FakeLed

PATIENCE_S = 60
OWN, LEADER = 1, 2
WHERE = (TOPIC, 0)
SECOND = TopicIdPartition(TOPIC_ID, 1)


@dataclass
class Cluster:
    """Who leads what, as brokers say, and how often they were asked."""

    ends: dict[tuple[str, int], LogEnd]
    fails: int = 0
    unknown_at: Container[int] = ()
    """Looks, from 1 on, that reach a broker whose metadata lags: it knows no topic."""
    asked: list[Mapping[str, frozenset[int] | None]] = field(default_factory=list)

    def look(self, partitions: Mapping[str, frozenset[int] | None]) -> dict[tuple[str, int], LogEnd]:
        self.asked.append(dict(partitions))
        if len(self.asked) <= self.fails:
            raise MetadataTopicError("ask", "log ends", "nobody answers")
        if len(self.asked) in self.unknown_at:
            return {}
        return {
            (topic, one): end
            for (topic, one), end in self.ends.items()
            if topic in partitions and ((wanted := partitions[topic]) is None or one in wanted)
        }


@dataclass
class Waiting:
    """The agent of broker 1, that of broker 2, and what each knows of logs."""

    own: Rig
    leader: Rig
    waits: MarkerWaits
    cluster: Cluster
    agent: LeaderProxy
    unasked: list[None] = field(default_factory=list)

    def wait(self, partitions: Partitions | None = frozenset({WHERE})) -> "asyncio.Future[None]":
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waits.wait(partitions, lambda: told.set_result(None))
        return told


async def until_over(told: "asyncio.Future[None]") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await told


async def is_held(told: "asyncio.Future[None]", rig: Rig) -> None:
    """It is asked for there, and not told of."""
    async with asyncio.timeout(PATIENCE_S):
        while not rig.logs.waiting:  # noqa: ASYNC110 - what it looks at is behind sockets
            await asyncio.sleep(0.001)
    assert not told.done()


@asynccontextmanager
async def waiting(cluster: Cluster, *, grants: bool = True, door: bool = True) -> AsyncIterator[Waiting]:
    own, leader = Rig(), Rig()
    granted = CAPABILITIES | PeerCapabilities.STORED_LOGS if grants else CAPABILITIES
    context = LeaderContext(
        Hello("cluster", LEADER, 22, granted),
        LeaderLimits(0.5, 1, 0, 0),
        Address("127.0.0.1", 1),
        FakeLed(),
        StageTimes(CollectorRegistry()),
        ReplicationMetrics(CollectorRegistry()),
        clock=asyncio.get_running_loop().time,
        doors={PeerCapabilities.STORED_LOGS: LogDoor(leader.logs, 60.0, answered_s=0.5)} if door else {},
    )
    agent = LeaderProxy(context)
    await agent.start(Address("127.0.0.1", 0), None)
    hello = Hello("cluster", OWN, 11, PeerCapabilities.STORED_LOGS)
    asking = LogAsking(AskingContext(hello, {LEADER: agent.addresses[0]}, lambda: None))
    unasked: list[None] = []
    with ThreadPoolExecutor(1) as threads:
        waits = MarkerWaits(OWN, own.logs, cluster, asking, threads, lambda: unasked.append(None))
        try:
            yield Waiting(own, leader, waits, cluster, agent, unasked)
        finally:
            await waits.close()
            await asking.close()
            await agent.stop()


@pytest.mark.parametrize("leader_id", [OWN, LEADER])
async def test_the_leader_tells_when_markers_are_stored(leader_id: int) -> None:
    async with waiting(Cluster({WHERE: LogEnd(leader_id, 105), (TOPIC, 1): LogEnd(-1, None)})) as rig:
        told = rig.wait()
        leader = rig.own if leader_id == OWN else rig.leader
        await is_held(told, leader)
        leader.publish(104)
        await is_held(told, leader)
        leader.publish(105)
        await until_over(told)
        assert rig.cluster.asked == [{TOPIC: frozenset({0})}]
        assert not rig.own.logs.waiting + rig.leader.logs.waiting


async def test_topics_that_are_not_durable_are_not_asked_for() -> None:
    async with waiting(Cluster({})) as rig:
        await until_over(rig.wait(frozenset({(OTHER, 0)})))


async def test_without_partitions_all_durable_logs_are_waited_for() -> None:
    async with waiting(Cluster({WHERE: LogEnd(LEADER, 100), (TOPIC, 1): LogEnd(OWN, 7)})) as rig:
        told = rig.wait(None)
        await is_held(told, rig.own)
        assert rig.cluster.asked[0] == {TOPIC: None}
        rig.own.logs.assigned([assignment(SECOND)])
        await is_held(told, rig.own)
        rig.own.publish(7, SECOND)
        await until_over(told)


async def test_a_cluster_that_does_not_answer_and_a_leader_that_is_not_there_yet_are_asked_again() -> None:
    cluster = Cluster({WHERE: LogEnd(-1, None)}, fails=1)
    async with waiting(cluster) as rig:
        told = rig.wait()
        async with asyncio.timeout(PATIENCE_S):
            while len(cluster.asked) < 3:  # noqa: ASYNC110 - another thread asks
                await asyncio.sleep(0.001)
        assert not told.done()
        cluster.ends[WHERE] = LogEnd(LEADER, 100)
        await until_over(told)


async def test_an_end_that_was_told_once_stays_the_one_to_wait_for() -> None:
    async with waiting(Cluster({WHERE: LogEnd(LEADER, 105)})) as rig:
        told = rig.wait()
        await is_held(told, rig.leader)
        rig.cluster.ends[WHERE] = LogEnd(OWN, 10**6)
        rig.leader.logs.released(LOG)
        await is_held(told, rig.own)
        rig.own.publish(105)
        await until_over(told)


async def test_an_agent_that_does_not_know_the_log_lets_it_be_looked_for_anew() -> None:
    async with waiting(Cluster({WHERE: LogEnd(LEADER, 105)})) as rig:
        rig.leader.logs.assigned([])
        told = rig.wait()
        await is_held(told, rig.leader)
        rig.cluster.ends[WHERE] = LogEnd(OWN, 105)
        rig.own.publish(105)
        await until_over(told)


async def test_a_topic_that_is_not_known_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with waiting(Cluster({})) as rig:
        told = rig.wait()
        async with asyncio.timeout(PATIENCE_S):
            while len(rig.cluster.asked) < 2:  # noqa: ASYNC110 - another thread asks
                await asyncio.sleep(0.001)
        assert not told.done()
        monkeypatch.setattr("gateway.durable.marker_waits.GONE_S", 0.0)
        await until_over(told)


@pytest.mark.parametrize("partitions", [frozenset({WHERE}), None])
async def test_a_topic_that_one_broker_does_not_know_meanwhile_is_waited_for(
    partitions: Partitions | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.durable.marker_waits.GONE_S", 0.0)
    cluster = Cluster({WHERE: LogEnd(-1, None)}, unknown_at={1, 3, 5})
    async with waiting(cluster) as rig:
        told = rig.wait(partitions)
        async with asyncio.timeout(PATIENCE_S):
            while len(cluster.asked) < 6:  # noqa: ASYNC110 - another thread asks
                await asyncio.sleep(0.001)
        assert not told.done()
        cluster.ends[WHERE] = LogEnd(LEADER, 100)
        await until_over(told)


@pytest.mark.parametrize("door", [True, False])
async def test_an_agent_that_tells_nothing_of_logs_is_not_waited_for_and_named(door: bool) -> None:
    async with waiting(Cluster({WHERE: LogEnd(LEADER, 105)}), grants=False, door=door) as rig:
        await until_over(rig.wait())
        assert rig.waits.silent == {LEADER}
        assert rig.unasked == [None]


async def test_an_agent_that_is_away_is_asked_until_it_is_back() -> None:
    async with waiting(Cluster({WHERE: LogEnd(LEADER, 105)})) as rig:
        where = rig.agent.addresses[0]
        await rig.agent.stop()
        told = rig.wait()
        async with asyncio.timeout(PATIENCE_S):
            while len(rig.cluster.asked) < 2:  # noqa: ASYNC110 - another thread asks
                await asyncio.sleep(0.001)
        assert not told.done()
        rig.leader.publish(105)
        await rig.agent.start(where, None)
        await until_over(told)


async def test_who_has_given_up_is_told_nothing() -> None:
    async with waiting(Cluster({WHERE: LogEnd(OWN, 105)})) as rig:
        told: list[bool] = []
        let_go = rig.waits.wait(frozenset({WHERE}), lambda: told.append(True))
        async with asyncio.timeout(PATIENCE_S):
            while not rig.own.logs.waiting:  # noqa: ASYNC110 - another thread asks
                await asyncio.sleep(0.001)
        let_go()
        async with asyncio.timeout(PATIENCE_S):
            while rig.own.logs.waiting:  # noqa: ASYNC110 - what was cancelled ends by itself
                await asyncio.sleep(0.001)
        rig.own.publish(105)
        assert not told


def test_questions_are_read_as_they_were_written_and_no_cut_of_them() -> None:
    logs = [LogUpTo("orders-é", 7, 2**40), LogUpTo("t", 0, 0)]
    whole = encode_question(2**63, logs)
    assert decode_question(whole) == (2**63, logs)
    for end in range(len(whole)):
        with pytest.raises(MalformedFrameError):
            decode_question(whole[:end])
    with pytest.raises(MalformedFrameError):
        decode_question(whole + b"\0")
    with pytest.raises(MalformedFrameError):
        decode_question(encode_question(1, [LogUpTo("t", one, 0) for one in range(101)]))
