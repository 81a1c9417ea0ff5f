"""What agents of a zone say to each other, whom the leader's agent has them ask, and what counts as a read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugin.segment_metadata import CUSTOM_METADATA_MAX_BYTES, CombinedSegmentId
from replication.leader.zones import Zones, reads_for, zone_readings
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import (
    MAX_RANGE_REQUEST_BYTES,
    Announcement,
    RangeRefusal,
    RangeRequest,
    ZoneReading,
    decode_range_response,
    decode_refusal,
    encode_range_response,
    encode_refusal,
    in_order,
)

brokers = st.integers(0, 2**31 - 1)
segment_ids = st.builds(CombinedSegmentId, brokers, st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))
positions = st.integers(0, 2**32 - 2)


@st.composite
def some_ranges(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    edges = sorted(draw(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=40, unique=True)))
    return tuple(zip(edges[::2], edges[1::2], strict=False))


@given(st.lists(brokers, max_size=255).map(tuple), some_ranges(), st.binary(max_size=50))
def test_a_zones_reading_goes_in_front_of_an_announcement(
    readers: tuple[int, ...], ranges: tuple[tuple[int, int], ...], rest: bytes
) -> None:
    zone = ZoneReading(readers, ranges)
    assert ZoneReading.decode(zone.encode() + rest) == (zone, rest)


def test_an_announcement_behind_it_is_as_ever() -> None:
    announcement = Announcement(CombinedSegmentId(1, 2, 3), ((4, 9),), b"bucket")
    body = ZoneReading((5, 6), ((4, 20),)).encode() + announcement.encode()
    assert Announcement.decode(ZoneReading.decode(body)[1]) == announcement


@given(st.binary(max_size=80))
def test_what_is_no_message_is_malformed_and_nothing_else(raw: bytes) -> None:
    for decode in (
        ZoneReading.decode,
        RangeRequest.decode,
        decode_refusal,
        lambda body: decode_range_response(memoryview(body)),
    ):
        try:
            decode(raw)
        except MalformedFrameError:
            continue


@given(
    st.integers(0, 2**64 - 1),
    segment_ids,
    st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4, unique=True).map(sorted),
    st.binary(max_size=CUSTOM_METADATA_MAX_BYTES),
)
def test_a_request_is_read_as_it_was_written(
    number: int, segment_id: CombinedSegmentId, edges: list[int], custom_metadata: bytes
) -> None:
    request = RangeRequest(number, segment_id, edges[1], edges[2], (edges[0], edges[3]), custom_metadata)
    assert RangeRequest.decode(request.encode()) == request


@pytest.mark.parametrize(
    ("start", "end", "read"), [(10, 10, (0, 20)), (12, 10, (0, 20)), (0, 10, (5, 20)), (0, 30, (0, 20))]
)
def test_a_request_for_nothing_or_for_more_than_is_read_is_malformed(
    start: int, end: int, read: tuple[int, int]
) -> None:
    with pytest.raises(MalformedFrameError):
        RangeRequest.decode(RangeRequest(1, CombinedSegmentId(1, 1, 1), start, end, read).encode())


def test_a_request_is_bounded() -> None:
    request = RangeRequest(1, CombinedSegmentId(1, 1, 1), 0, 1, (0, 1))
    with pytest.raises(MalformedFrameError):
        RangeRequest.decode(request.encode() + bytes(MAX_RANGE_REQUEST_BYTES))


def test_an_altered_answer_is_told_from_a_whole_one() -> None:
    data = bytes(range(100))
    whole = encode_range_response(7, data) + data
    number, found = decode_range_response(memoryview(whole))
    assert (number, bytes(found or b"")) == (7, data)
    for position in (8, 12, 60):
        altered = bytearray(whole)
        altered[position] ^= 1
        assert decode_range_response(memoryview(altered)) == (7, None)
    assert decode_refusal(encode_refusal(7, RangeRefusal.BUSY)) == (7, "busy")
    assert decode_refusal(encode_refusal(7, RangeRefusal.BUSY)[:-1] + b"\x63") == (7, "unknown")


def test_objects_are_spread_evenly_and_only_those_of_a_reader_that_goes_move() -> None:
    readers, objects = range(10), [CombinedSegmentId(1, 5, sequence) for sequence in range(2000)]
    before = {one: in_order(one, readers) for one in objects}
    after = {one: in_order(one, [reader for reader in readers if reader != 4]) for one in objects}
    first = [order[0] for order in before.values()]
    assert all(120 < first.count(reader) < 290 for reader in readers)
    for one in objects:
        assert after[one] == tuple(reader for reader in before[one] if reader != 4)


def test_the_order_is_the_same_whoever_is_named_first() -> None:
    one = CombinedSegmentId(3, 3, 3)
    assert in_order(one, [3, 1, 2]) == in_order(one, [1, 2, 3])


OBJECT = CombinedSegmentId(1, 1, 1)
WANTED = {2: [(10, 20)], 3: [(30, 40)], 4: [(15, 35)], 5: [(100, 110)]}


def zones_of(**racks: str | None) -> Zones:
    zones = Zones("own")
    zones.learned({int(name[1:]): rack for name, rack in racks.items()})
    return zones


def test_readers_of_one_zone_are_told_the_same_and_what_they_want_together() -> None:
    zones = zones_of(b2="az2", b3="az2", b4="az2", b5="az3")
    told = zone_readings(OBJECT, WANTED, zones, gap_bytes=0)
    assert told.keys() == {2, 3, 4}
    assert set(told.values()) == {ZoneReading(in_order(OBJECT, [2, 3, 4]), ((10, 40),))}


@pytest.mark.parametrize("racks", [{"b2": "az2"}, {"b2": "az2", "b3": "az3"}, {"b2": None, "b3": None}])
def test_too_few_readers_and_those_without_a_known_zone_read_for_themselves(racks: dict[str, str | None]) -> None:
    assert zone_readings(OBJECT, WANTED, zones_of(**racks), gap_bytes=0) == {}


def test_a_zone_that_shares_reads_as_one() -> None:
    zones = zones_of(b2="az2", b3="az2", b4="az2", b5="az3", b6="az3")
    everybody = [2, 3, 4, 5, 6, 7, 8]
    assert reads_for(everybody, zones, shares=False) == {one: one for one in everybody}
    expected = {2: "az2", 3: "az2", 4: "az2", 5: "az3", 6: "az3", 7: 7, 8: 8}
    assert reads_for(everybody, zones, shares=True) == expected
    assert reads_for([7, 6], zones, shares=True) == {7: 7, 6: 6}
