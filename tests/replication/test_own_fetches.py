"""Under TLS a peer fetches as the replica of the broker that its certificate names, however its Fetch is made up."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from local_cluster.security.authority import Authority
from replication.leader.leader_relay import ITEMS_IN_A_STEP, OwnFetches
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.fetch_frame import MAX_FETCH_VERSION
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import encode_unsigned_varint, parse_request_header
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import connect_framed, exchange_hellos
from replication.wire.peer_protocol import Hello, MessageKind
from tests.kafka_log.batches import batches
from tests.metric_values import metric_value
from tests.replication.fetch_frames import VERSIONS, request, requests
from tests.replication.frame_fuzz import fuzz
from tests.replication.frame_steps import Looked, many
from tests.replication.replicas_of_frames import replica, replica_for_kafka
from tests.replication.test_peer_handlers import agents_under_tls
from tests.replication.test_peer_tls import on_both_event_loops
from tests.replication.two_agents import Agents, Follower

MIB = 1024 * 1024


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def steps(frame: bytes, broker_id: int | None = 2) -> int:
    """How many it takes. Raises RequestRefusedError."""
    return sum(1 for _ in OwnFetches(broker_id, ReplicationMetrics(CollectorRegistry())).check(frame))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_of_the_own_replica_or_of_a_consumer_passes_and_no_other(version: int) -> None:
    for replica_id in (2, -1):
        assert steps(request({0: 5}, version=version, replica_id=replica_id)) == 0
    for replica_id in (0, 1, 3):
        frame = request({0: 5}, version=version, replica_id=replica_id)
        with pytest.raises(RequestRefusedError, match=f"a Fetch of replica {replica_id} from broker 2's agent"):
            steps(frame)
        assert steps(frame, broker_id=None) == 0  # without TLS nothing is proven


@pytest.mark.parametrize("version", range(12))
def test_versions_before_tags_name_the_replica_behind_the_header(version: int) -> None:
    frame = struct.pack(">hhih3si", 1, version, 7, 3, b"abc", 3)
    assert replica(frame, version) == 3
    with pytest.raises(RequestRefusedError):
        steps(frame)


def of_the_future(frame: bytes) -> bytes:
    return frame[:2] + struct.pack(">h", MAX_FETCH_VERSION + 1) + frame[4:]


UNKNOWN_TAG = b"\x7f\3abc"


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhih", 1, MAX_FETCH_VERSION + 1, 7, 3) + b"abc and what nobody knows",
        of_the_future(request({0: 5}, version=MAX_FETCH_VERSION, replica_id=2)),
    ],
    ids=["another form", "the own replica"],
)
def test_a_version_of_the_future_is_passed_on_and_counted(frame: bytes) -> None:
    metrics = ReplicationMetrics(CollectorRegistry())
    list(OwnFetches(2, metrics).check(frame))
    assert metric_value(metrics.faults.labels("fetch_version_unknown")) == 1


def test_a_version_of_the_future_names_no_other_replica_in_the_form_of_today() -> None:
    frame = of_the_future(request({0: 5}, version=MAX_FETCH_VERSION, replica_id=3))
    with_a_tag_more = of_the_future(with_tags(state(3, 13), UNKNOWN_TAG))
    for one in (frame, with_a_tag_more):
        with pytest.raises(RequestRefusedError, match="a Fetch of replica 3 from broker 2's agent"):
            steps(one)


@given(requests())
def test_whoever_encodes_a_request_its_replica_is_found(case: tuple[int, tuple[int, Any], bytes]) -> None:
    version, (replica_id, _), frame = case
    assert replica(frame, version) == replica_id == replica_for_kafka(frame, version)


@given(requests(), st.data())
def test_no_mutation_says_one_replica_here_and_another_to_kafka(
    case: tuple[int, tuple[int, Any], bytes], data: st.DataObject
) -> None:
    version, _, frame = case
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(8, len(changed) - 1))
        if data.draw(st.booleans()):
            changed[at] = data.draw(st.integers(0, 255))
        else:
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=20))
    here = replica(bytes(changed), version)
    there = replica_for_kafka(bytes(changed), version)
    assert here is None or there is None or here == there


def state(replica_id: int, size: int, more: bytes = b"\0") -> bytes:
    """Tag 1 of a request, which says to be of this size."""
    return b"\1" + encode_unsigned_varint(size) + struct.pack(">iq", replica_id, -1) + more


def with_tags(*tags: bytes) -> bytes:
    bare = request({}, version=17, replica_id=-1)
    assert bare.endswith(b"\0")
    return bare[:-1] + encode_unsigned_varint(len(tags)) + b"".join(tags)


def test_tags_that_lie_of_their_size_hide_no_other_replica() -> None:
    honest = with_tags(state(2, 13))
    assert replica(honest, 17) == replica_for_kafka(honest, 17) == 2
    # To who believes the sizes, the second is within the first, and what stands behind is the second.
    hidden, other = state(3, 13), b"\7\0"
    longer = with_tags(state(2, 13 + len(hidden)), hidden) + other
    assert replica_for_kafka(longer, 17) == 3
    cluster = b"\0" + encode_unsigned_varint(1 + len(hidden)) + b"\1"  # an empty cluster id, said to be longer
    within = with_tags(cluster, hidden) + other
    assert replica_for_kafka(within, 17) == 3
    for frame in (longer, within):
        with pytest.raises(RequestRefusedError, match="does not say of which replica"):
            steps(frame)


def test_what_stands_behind_a_request_hides_nothing() -> None:
    with pytest.raises(RequestRefusedError, match="replica 3"):
        steps(request({0: 5}, replica_id=3) + b"Kafka does not look at this")


def fetch(topics: bytes, forgotten: bytes = b"\1", tags: tuple[bytes, ...] = (), replica_id: int = 2) -> bytes:
    """Version 17."""
    header = struct.pack(">hhih", 1, 17, 7, 1) + b"x\0" + struct.pack(">iiibii", 500, 1, MIB, 0, 0, 0)
    told = encode_unsigned_varint(len(tags) + 1) + state(replica_id, 13) + b"".join(tags)
    return header + topics + forgotten + b"\1" + told


def many_tagged_partitions(count: int, replica_id: int) -> bytes:
    """With a directory each: none can be passed over with others."""
    partition = struct.pack(">iiqiqi", 0, 0, 0, 0, 0, 0) + b"\1\0\x10" + bytes(16)
    return fetch(b"\2" + bytes(16) + many(count, partition) + b"\0", replica_id=replica_id)


SHAPES: dict[str, Callable[[int], bytes]] = {
    "topics": lambda count: fetch(many(count, bytes(16) + b"\1\0")),
    "topics of a partition": lambda count: fetch(many(count, bytes(16) + b"\2" + bytes(32) + b"\0" + b"\0")),
    "partitions with tags": lambda count: many_tagged_partitions(count, 2),
    "tags of a partition": lambda count: fetch(
        b"\2" + bytes(16) + b"\2" + bytes(32) + encode_unsigned_varint(count) + b"\7\0" * count + b"\0"
    ),
    "forgotten topics": lambda count: fetch(b"\1", many(count, bytes(16) + b"\1\0")),
    "tags": lambda count: fetch(b"\1", tags=(b"\7\0",) * count),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_between_two_turns_of_others_no_more_is_looked_at_however_large_a_request_is(shape: str) -> None:
    looked = Looked(SHAPES[shape](60_000))
    most = before = turns = 0
    for _ in OwnFetches(2, ReplicationMetrics(CollectorRegistry())).check(looked):
        most, before, turns = max(most, looked.steps - before), looked.steps, turns + 1
    assert turns >= 60_000 // ITEMS_IN_A_STEP - 1
    assert max(most, looked.steps - before) < 8 * ITEMS_IN_A_STEP


def test_mutated_frames_are_read_or_refused_within_bounds() -> None:
    assert 0 < fuzz(3000, seed=1) < 3000


def test_a_large_fetch_is_read_in_steps_and_partitions_without_tags_in_one() -> None:
    count = 10 * ITEMS_IN_A_STEP
    assert steps(many_tagged_partitions(count, 2)) >= 10
    assert steps(request(dict.fromkeys(range(count), 0), replica_id=2)) == 0
    with pytest.raises(RequestRefusedError, match="replica 3"):
        steps(many_tagged_partitions(count, 3))


async def peer(agents: Agents, authority: Authority) -> tuple[FramedConnection, PeerChannel]:
    """Broker 2's agent."""
    connection = FramedConnection()
    context = authority.tls_for("broker-2").client_context()
    await connect_framed(agents.leader_address, connection, context)
    await exchange_hellos(connection, Hello("cluster", 2, 22), expected_broker_id=1)
    return connection, PeerChannel(connection)


@on_both_event_loops
async def test_a_fetch_as_another_brokers_replica_ends_its_connection_and_never_reaches_the_broker(
    authority: Authority,
) -> None:
    async with agents_under_tls(authority) as agents:
        for other in (request({0: 0}, replica_id=3), many_tagged_partitions(50_000, 3)):
            connection, channel = await peer(agents, authority)
            channel.send(MessageKind.KAFKA, other)
            assert await channel.receive() is None
            connection.close()
        assert agents.broker.requests == []
        assert metric_value(agents.leader_metrics.held.refused_requests.labels("peer", "Fetch")) == 2
        raw = batches(2, 0)
        agents.append({0: raw})
        follower: Follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.linked_responses == 1


@on_both_event_loops
async def test_a_fetch_of_tens_of_thousands_of_partitions_in_the_own_name_reaches_the_broker_as_it_is(
    authority: Authority,
) -> None:
    async with agents_under_tls(authority) as agents:
        agents.broker.answer = lambda frame: struct.pack(">i", parse_request_header(frame).correlation_id) + b"answer"
        connection, channel = await peer(agents, authority)
        frame = many_tagged_partitions(50_000, 2)
        channel.send(MessageKind.KAFKA, frame)
        message = await channel.receive()
        assert message is not None
        assert bytes(message[1]) == struct.pack(">i", 7) + b"answer"
        assert agents.broker.requests == [frame]
        assert agents.leader_faults("request_not_read_size") == 1
        connection.close()
