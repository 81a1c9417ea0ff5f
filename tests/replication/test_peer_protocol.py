"""Hellos, announcements and the ranges in them."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import (
    CAPABILITIES,
    HELLO_MAGIC,
    MAX_ANNOUNCED_RANGES,
    NO_BROKER_SERVED,
    Announcement,
    Hello,
    PeerCapabilities,
    PeerRefusedError,
    agree,
    coalesce_ranges,
    decode_inline_request,
    encode_inline_request,
    is_hello,
)
from tests.replication.fetch_frames import request

capabilities = st.integers(0, CAPABILITIES.value).map(PeerCapabilities)


@given(
    st.builds(
        Hello,
        st.text(max_size=40),
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**48 - 1),
        capabilities,
        st.integers(0, 2**16 - 1),
        st.lists(st.integers(0, 2**31 - 1), max_size=50).map(tuple),
    )
)
def test_a_hello_comes_out_as_it_went_in(sent: Hello) -> None:
    assert is_hello(sent.encode())
    assert Hello.decode(sent.encode()) == sent


def test_an_agent_that_cannot_serve_many_brokers_says_that_it_serves_none() -> None:
    assert Hello.decode(Hello("cluster", 1, 5, unserved=tuple(range(51))).encode()).unserved == NO_BROKER_SERVED


def test_no_kafka_request_is_taken_for_a_hello() -> None:
    assert not is_hello(request({0: 0}))
    assert not is_hello(b"RWA")
    assert int.from_bytes(HELLO_MAGIC[:2], "big") > 1000  # far above any API key


def test_hostile_hellos_are_refused() -> None:
    good = Hello("cluster", 1, 5).encode()
    for bad in (good[:-1], good + b"x", good[:10], b"", HELLO_MAGIC + b"\xff" * 30, good[:4] + b"\0" * 1000):
        with pytest.raises(MalformedFrameError):
            Hello.decode(bad)


@given(capabilities, capabilities)
def test_what_both_have_is_used_and_nothing_where_versions_differ(
    one: PeerCapabilities, other: PeerCapabilities
) -> None:
    own, peer = Hello("cluster", 1, 5, one), Hello("cluster", 2, 5, other)
    assert set(agree(own, peer)) == set(one) & set(other) == set(agree(peer, own))
    assert agree(own, replace(peer, version=2)) is PeerCapabilities.NONE


@given(capabilities, st.integers(0, 2**32 - 1))
def test_capabilities_that_are_not_known_here_are_ignored(known: PeerCapabilities, bits: int) -> None:
    newer = bytearray(Hello("cluster", 1, 5).encode())
    newer[6:10] = (bits & ~(~PeerCapabilities.NONE).value | known.value).to_bytes(4, "big")
    assert Hello.decode(newer) == Hello("cluster", 1, 5, known)


def test_another_clusters_agent_is_refused() -> None:
    with pytest.raises(PeerRefusedError, match="belongs to cluster other"):
        agree(Hello("cluster", 1, 5), Hello("other", 2, 5))


def test_an_inline_request_comes_out_as_it_went_in() -> None:
    assert decode_inline_request(encode_inline_request(-5)) == -5
    with pytest.raises(MalformedFrameError):
        decode_inline_request(b"123")


ranges = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(1, 200)).map(lambda r: (r[0], r[0] + r[1])), min_size=1, max_size=50
)


@given(ranges, st.integers(0, 300))
def test_joined_ranges_cover_all_are_apart_and_bridge_only_small_gaps(wanted: list[tuple[int, int]], gap: int) -> None:
    joined = coalesce_ranges(wanted, gap)
    assert all(any(s <= start and end <= e for s, e in joined) for start, end in wanted)
    assert all(left[1] + gap < right[0] for left, right in itertools.pairwise(joined))
    bytes_wanted = {position for start, end in wanted for position in range(start, end)}
    for start, end in joined:
        holes = [position for position in range(start, end) if position not in bytes_wanted]
        runs = 1 + sum(b - a > 1 for a, b in itertools.pairwise(holes)) if holes else 0
        assert len(holes) <= runs * gap
    announcement = Announcement(CombinedSegmentId(1, 2, 3), joined)
    assert Announcement.decode(announcement.encode()) == announcement


def test_more_ranges_than_an_announcement_holds_are_covered_by_its_last() -> None:
    joined = coalesce_ranges([(1000 * number, 1000 * number + 1) for number in range(1000)], 10)
    assert len(joined) == MAX_ANNOUNCED_RANGES
    assert joined[-1] == (1000 * (MAX_ANNOUNCED_RANGES - 1), 999_001)
    announcement = Announcement(CombinedSegmentId(1, 2, 3), joined)
    assert Announcement.decode(announcement.encode()) == announcement


ARCHIVED = ArchiveObjectId(TopicIdPartition(TopicId(b"t" * 16), 4), 10, 99, CombinedSegmentId(1, 2, 3))


@given(ranges)
def test_an_announcement_of_an_archive_object_comes_out_as_it_went_in(wanted: list[tuple[int, int]]) -> None:
    announcement = Announcement(ARCHIVED, coalesce_ranges(wanted, 0))
    assert Announcement.decode_archive(announcement.encode()) == announcement


def test_hostile_announcements_of_archive_objects_are_refused() -> None:
    good = Announcement(ARCHIVED, ((1, 5), (9, 12))).encode()
    empty_range = Announcement(ARCHIVED, ((5, 5),)).encode()
    backwards = Announcement(ARCHIVED._replace(first_offset=100), ((1, 5),)).encode()
    for bad in (good[:-1], good + b"x", b"", good[:52] + b"\xff" + good[53:], empty_range, backwards):
        with pytest.raises(MalformedFrameError):
            Announcement.decode_archive(bad)


@pytest.mark.parametrize("custom_metadata", [b"bucket-1", b"x", bytes(1024)])
def test_an_announcement_brings_its_objects_custom_metadata(custom_metadata: bytes) -> None:
    plain = Announcement(CombinedSegmentId(1, 2, 3), ((1, 5), (9, 12)))
    announcement = replace(plain, custom_metadata=custom_metadata)
    assert Announcement.decode(announcement.encode()) == announcement
    assert announcement.encode()[: len(plain.encode())] == plain.encode()


def test_hostile_announcements_are_refused() -> None:
    plain = Announcement(CombinedSegmentId(1, 2, 3), ((1, 5), (9, 12)))
    good = plain.encode()
    empty_range = Announcement(CombinedSegmentId(1, 2, 3), ((5, 5),)).encode()
    too_much = replace(plain, custom_metadata=bytes(1025)).encode()
    for bad in (good[:-1], good + b"x", good + b"\0\0", good + b"\0\2x", too_much, b"",
                good[:16] + b"\xff" + good[17:], empty_range):  # fmt: skip
        with pytest.raises(MalformedFrameError):
            Announcement.decode(bad)
