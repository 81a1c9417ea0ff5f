"""Messages are packed and unpacked to the same bytes, and nothing else unpacks to anything."""

import json
import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.zstd import CompressionParameter, ZstdCompressor, compress
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.packed_message import (
    IN_PIECES,
    MAX_PIECES,
    MAX_STREAMED_BYTES,
    STREAMED,
    PackedMessage,
    Packer,
    TopicRecords,
    Unpacker,
    cut,
    pack_apart,
)

OFF = "off"
MAX_BYTES = 1024 * 1024
SIZES = st.integers(1, 9000) | st.sampled_from([1, MAX_STREAMED_BYTES // 2, MAX_STREAMED_BYTES, 100_000])
Message = list[tuple[str, int, int]]
"""Of each partition: its topic, the bytes before its records, and their bytes."""
messages = st.lists(st.tuples(st.sampled_from(["a", "b", OFF]), st.integers(0, 90), SIZES), max_size=6)


def body_of(message: Message, seed: int) -> tuple[bytes, list[TopicRecords]]:
    source, body, records = random.Random(seed), bytearray(b"a header of some bytes"), list[TopicRecords]()
    for topic, before, size in message:
        body += source.randbytes(before)
        start = len(body)
        body += source.randbytes(size) if topic == OFF else json.dumps([start] * size).encode()[:size]
        records.append(TopicRecords(topic, start, len(body)))
    return bytes(body), records


def packed(packer: Packer, body: bytes, records: Sequence[TopicRecords]) -> PackedMessage | None:
    pieces = cut(len(body), records, lambda topic: topic != OFF)
    if not any(piece.is_packed for piece in pieces):
        return None
    whole = memoryview(body)
    return packer.pack(whole, pieces) if len(body) <= MAX_STREAMED_BYTES else pack_apart(whole, pieces)


def payload_of(message: PackedMessage) -> memoryview:
    return memoryview(b"".join((bytes((message.form,)), *message.payload)))


def unpacked(unpacker: Unpacker, payload: memoryview) -> bytes:
    return bytes(unpacker.unpack(payload, unpacker.size(payload)))


@given(st.lists(st.tuples(messages, st.integers(0, 3)), max_size=8))
def test_what_is_unpacked_is_what_was_packed_and_a_topic_that_is_off_travels_as_it_is(
    sent: list[tuple[Message, int]],
) -> None:
    packer, unpacker = Packer(), Unpacker(MAX_BYTES)
    for message, seed in sent:
        body, records = body_of(message, seed)
        of_off = [body[start:end] for topic, start, end in records if topic == OFF]
        if (found := packed(packer, body, records)) is None:
            assert {one.topic for one in records} == {OFF}
            continue
        payload = payload_of(found)
        assert unpacked(unpacker, payload) == body
        assert all(part in bytes(payload) for part in of_off)
        counted = {topic: (plain, small) for topic, plain, small in found.topics}
        assert counted.keys() == {topic for topic, _, _ in records} - {OFF}
        if not of_off and records and body[records[-1].end :] == b"":
            assert sum(one.plain_bytes for one in found.topics) == pytest.approx(len(body), abs=len(found.topics))


@given(messages, st.data())
def test_any_cut_or_change_of_a_message_is_malformed_or_of_the_size_it_says(
    message: Message, data: st.DataObject
) -> None:
    body, records = body_of(message, 1)
    if (found := packed(Packer(), body, records)) is None:
        return
    payload = bytearray(payload_of(found))
    if data.draw(st.booleans()):
        del payload[data.draw(st.integers(1, len(payload) - 1)) :]
    else:
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    unpacker, view = Unpacker(MAX_BYTES), memoryview(bytes(payload))
    if not payload[0] & (STREAMED | IN_PIECES):
        return
    try:
        size = unpacker.size(view)
        assert len(unpacker.unpack(view, size)) == size <= MAX_BYTES
    except MalformedFrameError:
        return


def in_pieces(size: int, *pieces: tuple[int, int, bytes]) -> bytes:
    parts = [struct.pack(">BII", form, plain, len(raw)) + raw for form, plain, raw in pieces]
    return bytes((IN_PIECES,)) + struct.pack(">I", size) + b"".join(parts)


def streamed(size: int, block: bytes) -> bytes:
    return bytes((STREAMED,)) + struct.pack(">H", size - 1) + block


def block(body: bytes, mode: int = ZstdCompressor.FLUSH_BLOCK, **options: int) -> bytes:
    found: bytes = ZstdCompressor(
        options={CompressionParameter[name]: value for name, value in options.items()}
    ).compress(
        body,
        mode,  # type: ignore[arg-type]
    )
    return found


ZEROS = bytes(MAX_BYTES)
BOMB = compress(ZEROS)


@pytest.mark.parametrize(
    "payload",
    [
        bytes((STREAMED,)),
        bytes((STREAMED | IN_PIECES,)) + streamed(100, block(b"x" * 100))[1:],
        streamed(99, block(b"x" * 100)),
        streamed(101, block(b"x" * 100)),
        streamed(1000, block(ZEROS)),
        streamed(100, compress(b"x" * 100)),
        streamed(100, block(b"x" * 100, window_log=20)),
        streamed(100, b"no stream at all"),
        in_pieces(0),
        in_pieces(100),
        in_pieces(MAX_BYTES + 1, (2, MAX_BYTES + 1, compress(ZEROS + b"x"))),
        in_pieces(100_000, (2, 100_000, BOMB)),
        in_pieces(100, (2, 100, compress(b"x" * 100)), (0, 1, b"x")),
        in_pieces(100, (2, 100, compress(b"x" * 100) + b"x")),
        in_pieces(100, (2, 100, block(b"x" * 100))),
        in_pieces(100, (0, 100, b"x" * 99)),
        in_pieces(100, (0, 50, b"x" * 50)),
        in_pieces(100, (3, 100, b"x" * 100)),
        in_pieces(100, (0, 100, b"x" * 100))[:-1],
        in_pieces(100, (0, 0, b""), (0, 100, b"x" * 100)),
        in_pieces(MAX_STREAMED_BYTES + 1, (1, MAX_STREAMED_BYTES + 1, block(ZEROS[: MAX_STREAMED_BYTES + 1]))),
        in_pieces(MAX_PIECES + 1, *[(0, 1, b"x")] * (MAX_PIECES + 1)),
    ],
)
def test_what_does_not_unpack_to_what_it_says_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedFrameError):
        unpacked(Unpacker(MAX_BYTES), memoryview(payload))


def test_small_runs_of_topics_are_packed_together_and_large_ones_are_measured_apart() -> None:
    records = [TopicRecords("a", 10, 3000), TopicRecords("b", 3050, 6000), TopicRecords("c", 6010, 6100)]
    assert [(piece.start, piece.end, piece.records) for piece in cut(6150, records, lambda _: True)] == [
        (0, 3000, {"a": 2990}),
        (3000, 6150, {"b": 2950, "c": 90}),
    ]
