import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.combined_segment import (
    HEADER_BYTES,
    TRAILER_BYTES,
    OpenCombinedSegment,
    SealedCombinedSegment,
    SegmentHeader,
    decode_footer,
    decode_header,
    encode_header,
    locate_footer,
)
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from tests.plugin.id_strategies import combined_segment_ids

headers = st.builds(
    SegmentHeader,
    st.text("abcXYZ019._-", min_size=1, max_size=64),
    combined_segment_ids,
    st.integers(0, 2**53),
)


def seal(header: SegmentHeader, payloads: list[bytes]) -> SealedCombinedSegment:
    building = OpenCombinedSegment(header)
    for n, payload in enumerate(payloads):
        partition = TopicIdPartition(TopicId(bytes([n % 3]) * 16), n)
        building.append(RemoteLogSegmentMetadataEntry(partition, 1, n, n + 1, -1, -1, 0), payload)
    return building.seal()


def read(raw: bytes) -> tuple[SegmentHeader, tuple[RemoteLogSegmentMetadataEntry, ...]]:
    location = locate_footer(raw[-TRAILER_BYTES:], len(raw))
    return decode_footer(raw[:HEADER_BYTES], raw[location.start : location.end], location)


@given(headers, st.lists(st.binary(min_size=1, max_size=50), max_size=8))
def test_a_sealed_segment_reads_back(header: SegmentHeader, payloads: list[bytes]) -> None:
    sealed = seal(header, payloads)
    raw = b"".join(sealed.chunks)
    assert len(raw) == sealed.size_bytes
    assert read(raw) == (header, sealed.entries)
    assert [raw[e.start_file_position : e.end_file_position] for e in sealed.entries] == payloads


def test_payloads_are_not_copied() -> None:
    payload = b"x" * 1000
    assert any(chunk is payload for chunk in seal(SegmentHeader("c", CombinedSegmentId(1, 2, 3), 4), [payload]).chunks)


EXAMPLE = b"".join(seal(SegmentHeader("cluster", CombinedSegmentId(1, 2, 3), 4), [b"abc", b"defg"]).chunks)
CRCS = (crc32c(b"abc"), crc32c(b"defg"))
PAYLOAD = range(HEADER_BYTES, HEADER_BYTES + 7)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_altered_byte_outside_the_payload_is_noticed(flip: int) -> None:
    for at in set(range(len(EXAMPLE))) - set(PAYLOAD):
        raw = bytearray(EXAMPLE)
        raw[at] ^= flip
        with pytest.raises(ValueError, match="byte"):
            read(bytes(raw))


def test_a_cut_off_object_is_noticed() -> None:
    for size in range(len(EXAMPLE)):
        with pytest.raises(ValueError, match="byte"):
            read(EXAMPLE[:size])


def test_a_payload_that_grew_or_shrank_is_noticed() -> None:
    for raw in (
        EXAMPLE[:HEADER_BYTES] + b"x" + EXAMPLE[HEADER_BYTES:],
        EXAMPLE[:HEADER_BYTES] + EXAMPLE[HEADER_BYTES + 1 :],
    ):
        with pytest.raises(ValueError, match="do not fill"):
            read(raw)


def test_header_and_footer_of_two_objects_do_not_pass_as_one() -> None:
    other = b"".join(seal(SegmentHeader("cluster", CombinedSegmentId(1, 2, 4), 4), [b"abc", b"defg"]).chunks)
    with pytest.raises(ValueError, match="another header"):
        read(other[:HEADER_BYTES] + EXAMPLE[HEADER_BYTES:])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_segment(raw: bytes) -> None:
    with pytest.raises(ValueError, match="byte"):
        read(raw)


def test_an_unknown_version_is_said_to_be_one() -> None:
    raw = bytearray(encode_header(SegmentHeader("c", CombinedSegmentId(1, 2, 3), 4)))
    raw[8] = 3
    with pytest.raises(ValueError, match="version 3"):
        decode_header(bytes(raw))


@pytest.mark.parametrize(
    "header",
    [
        SegmentHeader("", CombinedSegmentId(1, 2, 3), 4),
        SegmentHeader("c" * 65, CombinedSegmentId(1, 2, 3), 4),
        SegmentHeader("c", CombinedSegmentId(-1, 2, 3), 4),
        SegmentHeader("c", CombinedSegmentId(1, 2**64, 3), 4),
    ],
)
def test_a_header_that_does_not_fit_is_refused(header: SegmentHeader) -> None:
    with pytest.raises(ValueError, match=r"cluster id|does not fit"):
        encode_header(header)


def test_an_entry_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="no records"):
        seal(SegmentHeader("c", CombinedSegmentId(1, 2, 3), 4), [b""])


def test_the_bytes_of_version_1_never_change() -> None:
    """What stands in docs/formats.md, byte for byte; a change is a new version."""
    header = bytes.fromhex(
        "5257414c5345470a" "0100" "0700" "01000000" "0200000000000000" "0300000000000000" "0400000000000000"
    ) + b"cluster".ljust(64, b"\0") + bytes(4)  # fmt: skip
    header += crc32c(header).to_bytes(4, "little")
    columns = b"".join(
        [
            bytes.fromhex("01" "00" "0000" "02000000" "02000000" "7000000000000000"),
            *(
                minimum.to_bytes(8, "little", signed=True) + bytes([width])
                for minimum, width in [(0, 1), (0, 1), (1, 1), (0, 1), (1, 1), (3, 1), (min(CRCS), 4)]
            ),
            bytes(16) + b"\1" * 16,
            bytes.fromhex("0001" "0001" "0000" "0001" "0000" "0001"),
            *((crc - min(CRCS)).to_bytes(4, "little") for crc in CRCS),
        ]
    )  # fmt: skip
    footer = header[-4:] + columns
    trailer = len(footer).to_bytes(4, "little") + crc32c(footer).to_bytes(4, "little") + b"\nRWALEND"
    assert header + b"abcdefg" + footer + trailer == EXAMPLE
