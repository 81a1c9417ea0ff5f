"""Who can write the bucket forges a checksum, and no SHA-256."""

from dataclasses import replace
from typing import Any

import pytest

from kafka_log.batch_digests import records_digest
from kafka_log.crc32c import crc32c
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import Cut, LinkedResponse, SegmentLink, decode_linked_response
from replication.wire.peer_protocol import Hello, PeerCapabilities
from tests.kafka_log.batches import batches
from tests.kafka_log.forgery import forged
from tests.replication.test_link import MAX, SEGMENT, encoded
from tests.replication.two_agents import two_agents

TRUE, FALSE = b"ten dollars for alice", b"ten dollars for mally"
RAW = batches(2, 0, payload=TRUE + b"." * 400)
FORGED = forged(RAW, RAW.index(TRUE), FALSE)


def set_to(*, leader: bool, follower: bool) -> dict[str, Any]:
    """Which of the agents is set to take digests."""
    digests = {True: PeerCapabilities.LINK_DIGESTS, False: PeerCapabilities.NONE}
    return {
        "takes_digests": leader,
        "leader_hello": Hello("cluster", 1, 11, PeerCapabilities.LINKS | digests[leader]),
        "follower_hello": Hello("cluster", 2, 22, PeerCapabilities.LINKS | digests[follower]),
        "wants_digests": follower,
    }


@pytest.mark.parametrize("leader", [False, True], ids=["leader without digests", "leader with digests"])
async def test_without_digests_a_forged_range_with_the_right_checksum_passes(leader: bool) -> None:
    async with two_agents(**set_to(leader=leader, follower=False)) as agents:
        agents.storage.corrupt = lambda data: data.replace(RAW, FORGED)
        agents.append({0: RAW})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: FORGED})


async def test_with_digests_it_is_refused_and_the_leaders_own_bytes_come_inline() -> None:
    async with two_agents(**set_to(leader=True, follower=True)) as agents:
        agents.storage.corrupt = lambda data: data.replace(RAW, FORGED)
        agents.append({0: RAW})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: RAW})
        assert agents.follower_faults("link_defect_forged") == 1
        assert agents.leader_faults("inline_requested_by_follower") == 1
        agents.storage.corrupt = None
        more = batches(1, 2, payload=TRUE)
        agents.append({0: more})
        assert await follower.fetch({0: 2}) == follower.expected({0: more})
        assert agents.linked_responses == 1  # links rest


async def test_with_digests_sound_links_go_on_large_ones_too() -> None:
    large = batches(3, 2, payload=b"l" * 40_000)
    async with two_agents(**set_to(leader=True, follower=True)) as agents:
        follower = await agents.connect()
        for offset, raw in ((0, RAW), (2, large)):
            agents.append({0: raw})
            assert await follower.fetch({0: offset}) == follower.expected({0: raw})
        assert agents.linked_responses == 2
        assert agents.leader_faults("inline_requested_by_follower") == 0


async def test_links_of_an_agent_that_takes_no_digests_are_refused_by_one_that_wants_them() -> None:
    async with two_agents(**set_to(leader=False, follower=True)) as agents:
        agents.append({0: RAW})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: RAW})
        assert agents.follower_faults("link_defect_undigested") == 1
        more = batches(1, 2)
        agents.append({0: more})
        assert await follower.fetch({0: 2}) == follower.expected({0: more})
        assert agents.follower_faults("link_defect_undigested") == 1
        assert agents.linked_responses == 1


async def test_what_was_stored_before_digests_were_taken_goes_inline_at_once() -> None:
    async with two_agents(**set_to(leader=True, follower=True)) as agents:
        agents.takes_digests = False
        agents.append({0: RAW})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: RAW})
        assert agents.linked_responses == 0
        assert agents.follower_faults("link_defect_undigested") == 0


def test_a_digest_travels_behind_the_checksum_and_only_where_there_is_one() -> None:
    link = SegmentLink(SEGMENT, 7, len(RAW), crc32c(RAW))
    with_digest = replace(link, sha256=records_digest(RAW), start_position=7 + len(RAW))
    response = LinkedResponse(2 * len(RAW) + 20, (Cut(2, (link, with_digest)),), (b"skeleton",))
    raw = encoded(response)
    assert list(decode_linked_response(raw, MAX).links) == [link, with_digest]
    assert len(raw) == len(encoded(replace(response, cuts=(Cut(2, (link, replace(with_digest, sha256=b""))),)))) + 32
    with pytest.raises(MalformedFrameError):
        decode_linked_response(b"\0\0\0\x20\0\1\0\1\x81\4data" + b"\0" * 40, MAX)  # bytes with a digest
