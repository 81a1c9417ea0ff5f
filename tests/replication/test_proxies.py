"""Leader and follower proxy together: the follower's broker gets the leader's bytes, or nothing."""

import asyncio
import os
import struct

import pytest

from replication.follower.follower_context import FollowerLimits
from replication.leader.fetch_waits import BULK_BYTES
from replication.leader.leader_context import LeaderLimits
from replication.leader.leader_relay import LeaderRelay
from replication.leader.response_links import ToFollower
from replication.wire.broker_requests import BrokerRequests
from replication.wire.fetch_frame import scan_fetch_request
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import Hello, MessageKind
from rlm.write_path.commit.link_policy import LinkMode
from tests.gateway.produce.produce_frames import produce
from tests.kafka_log.batches import batches
from tests.metric_values import metric_value
from tests.replication.fetch_frames import request, response
from tests.replication.two_agents import framed, read_frame, two_agents


async def test_a_fetch_goes_the_whole_way_by_links_and_arrives_as_the_leader_sent_it() -> None:
    async with two_agents() as agents:
        records = {0: batches(3, 0, 5, 2, b"a" * 500), 1: batches(2, 0, 1, 2, b"b" * 9000)}
        agents.append(records)
        follower = await agents.connect()
        assert await follower.fetch({0: 0, 1: 0, 2: 0}) == follower.expected({**records, 2: b""})
        assert agents.linked_responses == 1
        assert sum(end - start for _, start, end in agents.storage.fetches) >= sum(map(len, records.values()))
        await follower.fetch({0: 15, 1: 2})
        of_paths = agents.leader_metrics.record_bytes.labels
        assert metric_value(of_paths("linked")) == sum(map(len, records.values()))
        assert metric_value(of_paths("inline")) == 0


async def test_only_a_fraction_of_the_bytes_crosses_between_the_agents() -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        raw = b""
        for step in range(20):
            new = batches(1, 10 * step, 10, payload=b"%d" % step * 3000)
            agents.append({0: new})
            assert await follower.fetch({0: 10 * step}) == follower.expected({0: new})
            raw += new
        sent = agents.leader_metrics.peer_bytes.labels("leader", "sent")
        await agents.until(lambda: agents.linked_responses == 20)
        assert 0 < metric_value(sent) < len(raw) / 20


async def test_announced_ranges_are_read_ahead_of_the_response() -> None:
    async with two_agents() as agents:
        agents.append({0: batches(1, 0)})
        follower = await agents.connect()
        await follower.fetch({0: 0})
        read = len(agents.storage.fetches)
        agents.append({0: batches(1, 1, payload=b"next"), 5: batches(1, 0, payload=b"not followed" * 200)})
        await agents.until(lambda: len(agents.storage.fetches) == read + 1)
        segment, start, end = agents.storage.fetches[-1]
        assert segment.sequence == 1
        assert end - start == len(batches(1, 1, payload=b"next"))
        await follower.fetch({0: 1})
        assert len(agents.storage.fetches) == read + 1


def wait_of(frame: bytes) -> tuple[int, int]:
    view = scan_fetch_request(frame, 17)
    return view.max_wait_ms, view.min_bytes


async def test_while_much_is_uploaded_the_broker_is_asked_to_gather_as_much_for_a_follower_in_step() -> None:
    async with two_agents(gather_max_ms=25) as agents:
        agents.append({0: batches(1, 0)})
        follower = await agents.connect()
        await follower.fetch({0: 0})
        large = batches(1, 1, payload=bytes(BULK_BYTES))
        agents.append({0: large})
        await follower.fetch({0: 1})
        assert wait_of(agents.broker.requests[-1]) == (500, 1), "it lacked what was stored"
        await follower.fetch({0: 2})
        max_wait_ms, min_bytes = wait_of(agents.broker.requests[-1])
        assert max_wait_ms == 25
        assert 0.9 * len(large) < min_bytes <= len(large)
        await follower.fetch({0: 2}, replica_id=-1)
        assert wait_of(agents.broker.requests[-1]) == (500, 1), "a consumer's fetch is its own"


async def test_nothing_is_announced_where_the_bytes_will_go_inline() -> None:
    async with two_agents(break_even_bytes=1_000_000) as agents:
        agents.led.mode = LinkMode.INLINE
        agents.append({0: batches(1, 0)})
        follower = await agents.connect()
        await follower.fetch({0: 0})
        agents.append({0: batches(1, 1)})
        assert await follower.fetch({0: 1}) == follower.expected({0: batches(1, 1)})
        assert agents.storage.fetches == []


async def test_a_consumer_is_never_given_a_link() -> None:
    async with two_agents() as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        consumer = await agents.connect()
        for version in (12, 14, 15, 18):
            answer = await consumer.fetch({0: 0}, replica_id=-1, version=version)
            assert answer == consumer.expected({0: raw}, version)
        assert agents.linked_responses == 0
        assert agents.storage.fetches == []


async def test_what_is_no_fetch_or_of_an_unknown_version_passes_untouched() -> None:
    async with two_agents() as agents:
        agents.append({0: batches(1, 0)})
        follower = await agents.connect()
        other = struct.pack(">hhih", 23, 4, 77, 3) + b"abc" + b"\x00whatever OffsetForLeaderEpoch says"
        newer = struct.pack(">hhih", 1, 99, 78, 3) + b"abc" + b"\x00 a Fetch of the future"
        agents.broker.answer = lambda frame: frame[4:8] + b"the answer to " + frame
        for sent in (other, newer):
            follower.writer.write(framed(sent))
            assert await follower.receive() == sent[4:8] + b"the answer to " + sent
        assert agents.broker.requests == [other, newer]


async def test_what_a_broker_says_of_its_versions_passes_untouched_also_of_those_that_nobody_knows_here() -> None:
    versions = (0, 3, 4, 99)
    async with two_agents() as agents:
        follower = await agents.connect()
        # Kafka's ApiVersions: Fetch (1) is spoken from version 4 to 99.
        told = struct.pack(">hi", 0, 1) + struct.pack(">hhh", 1, 4, 99) + b" and fields of the future"
        agents.broker.answer = lambda frame: frame[4:8] + told
        for version in versions:
            asked = struct.pack(">hhih", 18, version, version, 3) + b"abc" + b"\0 whatever the client says of itself"
            follower.writer.write(framed(asked))
            assert await follower.receive() == struct.pack(">i", version) + told
            assert agents.broker.requests[-1] == asked


async def test_frames_that_contradict_themselves_are_passed_on_for_the_brokers_to_judge() -> None:
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        broken = request({0: 0}, correlation_id=5) + b"one byte too many"
        agents.broker.answer = lambda frame: response({0: raw}, correlation_id=struct.unpack_from(">i", frame, 4)[0])
        follower.writer.write(framed(broken))
        assert await follower.receive() == response({0: raw}, correlation_id=5)
        assert agents.broker.requests == [broken]
        agents.broker.answer = lambda frame: frame[4:8] + b"\xff" * 50
        correlation_id = follower.send({0: 0})
        assert await follower.receive() == struct.pack(">i", correlation_id) + b"\xff" * 50
        assert agents.leader_faults("request_not_understood") == 1
        assert agents.leader_faults("response_not_understood") == 1
        agents.broker.answer = agents.broker.answer_from_logs
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.linked_responses == 1


async def test_a_request_that_gets_no_answer_does_not_shift_those_behind_it() -> None:
    async with two_agents(requests=BrokerRequests(["Produce"])) as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        answer_from_logs = agents.broker.answer_from_logs
        agents.broker.answer = lambda frame: None if frame[:2] == b"\0\0" else answer_from_logs(frame)
        follower.writer.write(framed(produce({0: b"records"}, correlation_id=6, acks=0)))
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.linked_responses == 2


# Things end.


async def test_a_broker_that_dies_in_the_middle_of_a_response_gives_the_follower_no_byte_of_it() -> None:
    async with two_agents() as agents:
        agents.append({0: batches(5, 0, payload=b"d" * 10_000)}, stored=False)
        agents.broker.half_answers = True
        follower = await agents.connect()
        follower.send({0: 0})
        assert await asyncio.wait_for(follower.reader.read(), 60) == b""


@pytest.mark.parametrize("kind", [MessageKind.KAFKA, MessageKind.LINKED])
async def test_an_agent_that_dies_in_the_middle_of_a_message_gives_the_follower_no_byte_of_it(
    kind: MessageKind,
) -> None:
    async def half_an_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(framed(Hello("cluster", 1, 11).encode()))
        await read_frame(reader)
        message = framed(bytes((kind,)) + response({0: batches(3, 0, payload=b"h" * 60_000)}))
        writer.write(message[: len(message) // 2])
        writer.close()

    server = await asyncio.start_server(half_an_answer, "127.0.0.1", 0)
    async with two_agents() as agents:
        await agents.follower.stop()
        await agents.start_follower(Address(*server.sockets[0].getsockname()[:2]))
        follower = await agents.connect()
        follower.send({0: 0})
        assert await asyncio.wait_for(follower.reader.read(), 60) == b""
    server.close()


async def test_an_upload_that_ends_just_when_a_follower_leaves_is_told_to_the_others() -> None:
    async with two_agents() as agents:
        agents.append({0: batches(1, 0)})
        leaving, staying = await agents.connect(), await agents.connect()
        await leaving.fetch({0: 0})
        await staying.fetch({0: 0})
        next(iter(agents.leader.relays)).peer.abort()  # gone, and its relay does not know it yet
        agents.append({0: batches(1, 1)})
        assert len(agents.leader.relays) == 2
        survivors = [f for f in (leaving, staying) if await f.fetch({0: 1}) == f.expected({0: batches(1, 1)})]
        assert len(survivors) == 1


@pytest.mark.parametrize(("beyond", "passes"), [(0, True), (1, False)])
async def test_a_request_as_large_as_the_broker_takes_passes_both_agents_and_no_larger_one(
    beyond: int, passes: bool
) -> None:
    header = struct.pack(">hhih", 23, 4, 77, 3) + b"abc"
    limits = LeaderLimits(0.5, 1, 1000, max_frame_bytes=10_000)
    follower_limits = FollowerLimits(hydration_timeout_s=5.0, restart_s=0.0, max_frame_bytes=10_000)
    async with two_agents(limits=limits, follower_limits=follower_limits) as agents:
        follower = await agents.connect()
        frame = header + os.urandom(10_000 + beyond - len(header))  # it cannot be packed
        follower.writer.write(framed(frame))
        assert await follower.receive() == (struct.pack(">i", 77) + b"some other answer" if passes else None)
        assert agents.broker.requests == ([frame] if passes else [])


async def test_what_waits_for_an_upload_is_sent_in_the_turn_in_which_that_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with two_agents() as agents:
        agents.append({0: batches(1, 0)})
        follower = await agents.connect()
        await follower.fetch({0: 0})
        raw = batches(1, 1, payload=b"next")
        agents.append({0: raw}, stored=False)
        agents.led.wanted.clear()
        sent: list[MessageKind] = []
        send = LeaderRelay.send

        def seen(relay: LeaderRelay, message: ToFollower) -> None:
            sent.append(message.kind)
            send(relay, message)

        monkeypatch.setattr(LeaderRelay, "send", seen)
        follower.send({0: 1})
        await agents.until(lambda: bool(agents.led.wanted))
        agents.store({0: raw})
        assert sent == [MessageKind.ANNOUNCE, MessageKind.LINKED], "before the event loop goes on"
        assert await follower.receive() == follower.expected({0: raw})
