"""Over real sockets: a follower that missed much, behind a leader's agent that has just started."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.errors import RemoteStorageTimeoutError
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from replication.follower.catch_up_reads import CatchUpReads
from replication.leader.catch_up import CatchUp
from replication.leader.read_ahead import CatchUpLimits, ReadAhead
from replication.wire.peer_protocol import CAPABILITIES, PeerCapabilities
from tests.kafka_log.batches import batches
from tests.metric_values import metric_value
from tests.replication.catch_up_rig import OWN
from tests.replication.fetch_frames import partition
from tests.replication.two_agents import PATIENCE_S, Agents, Follower
from tests.rlm.uploaded_log import UploadedLog

OBJECTS, OBJECT_BATCHES = 12, 5


class Missed:
    """What an agent before this one uploaded, and the two agents of today."""

    def __init__(self, directory: Path, read_bytes: int) -> None:
        self.agents = Agents()
        self.agents.led.expected = False
        self.log = UploadedLog(directory, partition(0), self.agents.storage)
        self.agents.catch_up = CatchUp(
            self.agents.index,
            self.log.logs(),
            CatchUpLimits(ahead_bytes=4000, read_bytes=read_bytes),
            self.agents.leader_metrics,
            clock=lambda: self.agents.now_s,
        )
        for number in range(OBJECTS):
            written = [self.log.writer.append(1, payload=bytes([65 + number]) * 150) for _ in range(OBJECT_BATCHES)]
            self.log.upload(written)
        self.agents.broker.logs[0] = b"".join(written.raw for written in self.log.writer.batches)


@asynccontextmanager
async def missed_much(
    directory: Path,
    capabilities: PeerCapabilities = CAPABILITIES,
    reads_wait_max_s: float = 0.5,
    read_bytes: int = 1000,
) -> AsyncIterator[Missed]:
    """The follower's agent has these capabilities, and lets a read wait so long for its quota; the leader's agent looks
    for so much at a time.
    """
    missed = Missed(directory, read_bytes)
    limits = missed.agents.catch_up_read_limits
    missed.agents.catch_up_read_limits = replace(limits, wait_max_s=reads_wait_max_s)
    missed.agents.follower_hello = replace(missed.agents.follower_hello, capabilities=capabilities)
    await missed.agents.start()
    try:
        yield missed
    finally:
        await missed.agents.stop()


async def caught_up(missed: Missed) -> bytes:
    """What the follower's broker gets, response by response, until it has all."""
    agents, got = missed.agents, b""
    follower = await agents.connect()
    offset = 0
    while offset < OBJECTS * OBJECT_BATCHES:
        answer = await follower.fetch({0: offset})
        assert answer is not None
        records = [written for written in missed.log.writer.batches if written.base_offset >= offset]
        count = next(
            number
            for number in range(len(records), -1, -1)
            if answer == follower.expected({0: b"".join(written.raw for written in records[:number])})
        )
        assert count > 0, "a response without progress"
        got += b"".join(written.raw for written in records[:count])
        offset += count
    await follower.fetch({0: offset})  # the leader's agent sees that the last response arrived
    return got


async def test_all_of_it_comes_from_objects_each_read_once(tmp_path: Path) -> None:
    async with missed_much(tmp_path) as missed:
        assert await caught_up(missed) == missed.agents.broker.logs[0]
        leader = missed.agents.leader_metrics
        linked = metric_value(leader.record_bytes.labels("linked"))
        assert linked == len(missed.agents.broker.logs[0])
        assert metric_value(leader.record_bytes.labels("inline")) == 0
        assert len(missed.agents.storage.fetches) == OBJECTS
        assert metric_value(missed.agents.follower_metrics.catch_up.read_bytes) == linked


async def test_when_the_objects_are_gone_after_all_the_bytes_come_inline(tmp_path: Path) -> None:
    async with missed_much(tmp_path) as missed:
        missed.agents.storage.objects.clear()
        assert await caught_up(missed) == missed.agents.broker.logs[0]
        assert missed.agents.follower_faults("inline_requested_not_found") > 0


async def test_a_follower_that_goes_away_ends_what_is_read_ahead_of_it(tmp_path: Path) -> None:
    async with missed_much(tmp_path) as missed:
        follower = await missed.agents.connect()
        await follower.fetch({0: 0})
        (relay,) = missed.agents.leader.relays
        assert relay.read_ahead is not None
        assert relay.read_ahead.ahead_bytes
        follower.writer.close()
        await missed.agents.until(lambda: not missed.agents.leader.relays)
        assert not relay.read_ahead.ahead_bytes


def archive_all(missed: Missed, follower_has_archive: bool = True) -> None:
    """What was uploaded is in an archive object alone."""
    missed.log.archive_all(missed.log.writer.batches)
    missed.agents.archive = missed.log.archive if follower_has_archive else None


async def test_all_of_it_comes_from_archive_objects_within_the_quota_for_such_reads(tmp_path: Path) -> None:
    async with missed_much(tmp_path) as missed:
        archive_all(missed)
        assert await caught_up(missed) == missed.agents.broker.logs[0]
        leader = missed.agents.leader_metrics
        linked = metric_value(leader.record_bytes.labels("linked"))
        assert linked == len(missed.agents.broker.logs[0])
        assert metric_value(leader.record_bytes.labels("inline")) == 0
        assert metric_value(missed.agents.follower_metrics.catch_up.read_bytes) == linked  # each byte once
        assert missed.agents.storage.fetches == []


async def test_gaps_are_read_along_by_the_combined_segments_prices_and_never_in_archive_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[StoredObjectId, tuple[tuple[int, int], ...], bytes]] = []
    monkeypatch.setattr(CatchUpReads, "read_ahead", lambda _, *what: told.append(what))
    async with missed_much(tmp_path) as missed:
        archived = missed.log.archive_all(missed.log.writer.batches)
        follower = await missed.agents.connect()
        await follower.fetch({1: 0})
        (relay,) = missed.agents.leader.relays
        counted = missed.agents.leader_metrics.traffic.by_follower[2].peer_bytes
        ranges = [(0, 10), (20, 30), (30, 40), (2000, 2010)]
        relay.announce_ahead(OWN, ranges, b"bucket-1")
        relay.announce_ahead(archived, ranges)
        await missed.agents.until(lambda: len(told) == 2)
        assert told == [
            (OWN, ((0, 40), (2000, 2010)), b"bucket-1"),
            (archived, ((0, 10), (20, 40), (2000, 2010)), b""),
        ]
        assert missed.agents.leader_metrics.traffic.by_follower[2].peer_bytes > counted


async def test_an_agent_without_archive_links_gets_inline_what_is_in_archive_objects_alone(tmp_path: Path) -> None:
    async with missed_much(tmp_path, CAPABILITIES & ~PeerCapabilities.ARCHIVE_LINKS) as missed:
        archive_all(missed)
        assert await caught_up(missed) == missed.agents.broker.logs[0]
        assert missed.agents.linked_responses == 0


async def both_kinds(missed: Missed) -> tuple[Follower, dict[int, bytes | None]]:
    """A follower's connection that fetches partition 0, whose objects are in the archive, and 1, stored just now."""
    newest = batches(3, payload=b"n" * 100)
    missed.agents.append({1: newest})
    return await missed.agents.connect(), {0: missed.agents.broker.logs[0], 1: newest}


async def test_an_agent_without_archive_links_keeps_the_links_to_combined_segments_in_a_response_with_both_kinds(
    tmp_path: Path,
) -> None:
    async with missed_much(tmp_path, CAPABILITIES & ~PeerCapabilities.ARCHIVE_LINKS) as missed:
        archive_all(missed, follower_has_archive=False)
        follower, records = await both_kinds(missed)
        answer = await follower.fetch({0: 0, 1: 0})
        async with asyncio.timeout(PATIENCE_S):
            while answer == follower.expected({0: b"", 1: records[1]}):  # partition 0 is still being looked for
                answer = await follower.fetch({0: 0, 1: 0})
        assert answer == follower.expected(records)
        await follower.fetch({0: OBJECTS * OBJECT_BATCHES, 1: 3})  # there is nothing yet
        assert missed.agents.linked_responses > 0
        leader = missed.agents.leader_metrics.record_bytes
        assert metric_value(leader.labels("linked")) == missed.agents.linked_responses * len(records[1] or b"")
        assert metric_value(leader.labels("inline")) == len(missed.agents.broker.logs[0])
        assert missed.agents.leader_faults("inline_requested_by_follower") == 0


async def test_while_the_archive_is_away_a_response_that_names_it_comes_inline_whole_and_all_others_keep_their_links(
    tmp_path: Path,
) -> None:
    async with missed_much(tmp_path) as missed:
        archive_all(missed, follower_has_archive=False)
        follower, records = await both_kinds(missed)
        async with asyncio.timeout(PATIENCE_S):
            while missed.agents.follower_faults("inline_requested_breaker_open") == 0:
                answer = await follower.fetch({0: 0, 1: 0})
                assert answer in (follower.expected({0: b"", 1: records[1]}), follower.expected(records))
        assert missed.agents.hydration.tiers.archive.breaker.is_open
        came_inline = missed.agents.leader_faults("inline_requested_by_follower")
        assert await follower.fetch({1: 0}) == follower.expected({1: records[1]})
        assert not missed.agents.hydration.tiers.given_up
        assert missed.agents.leader_faults("links_paused") == 0
        assert missed.agents.leader_faults("inline_requested_by_follower") == came_inline


class StuckArchive:
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    async def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes:
        assert await asyncio.to_thread(self.gate.wait, 60)
        raise RemoteStorageTimeoutError("get", str(object_id), "planted")


@asynccontextmanager
async def stuck_archive(directory: Path) -> AsyncIterator[Missed]:
    """What was missed is in an archive object alone, in a store that does not answer."""
    async with missed_much(directory) as missed:
        archive_all(missed)
        missed.agents.archive = stuck = StuckArchive()
        missed.agents.follower_limits = replace(missed.agents.follower_limits, hydration_timeout_s=0.05)
        await missed.agents.follower.stop()
        await missed.agents.start_follower(missed.agents.leader_address)
        try:
            yield missed
        finally:
            stuck.gate.set()


async def test_time_outs_of_a_response_that_names_archive_objects_never_pause_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they when the leader's agent, of a release before, calls it LINKED."""
    monkeypatch.setattr(ReadAhead, "sent", lambda *_: False)
    async with stuck_archive(tmp_path) as missed:
        follower = await missed.agents.connect()
        for _ in range(4):
            assert await follower.fetch({0: 0}) == follower.expected({0: missed.agents.broker.logs[0]})
        assert missed.agents.follower_faults("inline_requested_timeout") == 4
        assert not missed.agents.hydration.tiers.given_up
        assert missed.agents.leader_faults("links_paused") == 0
        assert missed.agents.hydration.in_flight_bytes == 0  # the threads for what is new are free
