"""A snapshot holds what the store knew, or is refused."""

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.crc32c import crc32c
from metadata_topic.records.errors import SnapshotError
from metadata_topic.records.records import MetadataRecord
from metadata_topic.store.snapshots.snapshot import read_image, snapshot_chunks
from metadata_topic.store.store import RemoteWalMetadataStore
from tests.metadata_topic.metadata_strategies import DELETED, FINISHED, dead, entry, segment, segment_id
from tests.metadata_topic.store_oracles import read_snapshot, write_snapshot
from tests.metadata_topic.test_fencing import node
from tests.metadata_topic.test_store import histories, picture


def some_store(segments: int = 30) -> RemoteWalMetadataStore:
    store = RemoteWalMetadataStore()
    records: list[MetadataRecord] = [segment(n, entry(n * 10, n * 10 + 9)) for n in range(segments)]
    records += [segment(4, state=DELETED), dead(5, entry(53, 59)), node(2, caretaker=7), segment(99, entry(0, 5))]
    store.apply_all((record, (0, offset)) for offset, record in enumerate(records))
    return store


@given(histories(), st.integers(0, 30))
def test_the_store_that_is_read_answers_as_the_one_that_was_written(history: list[MetadataRecord], at: int) -> None:
    store = RemoteWalMetadataStore()
    for offset, record in enumerate([*history[:at], node(2), *history[at:]]):
        store.apply(record, (0, offset))
    read = read_snapshot(write_snapshot(store, "cluster-1"), "cluster-1")
    assert picture(read) == picture(store)
    assert read.progress == store.progress
    assert [read.is_fenced(segment_id(n)) for n in range(6)] == [store.is_fenced(segment_id(n)) for n in range(6)]
    assert write_snapshot(read) == write_snapshot(store)


def test_other_readers_content_goes_with_it() -> None:
    extras = {"archive": bytes(range(256)) * 50, "leer": b""}
    raw = b"".join(snapshot_chunks(replace(some_store().image(), extras=extras)))
    assert read_image(raw).extras == extras
    assert read_image(write_snapshot(some_store())).extras == {}


def test_the_tail_may_begin_before_the_snapshot_ends() -> None:
    records = [(segment(n, entry(n * 10, n * 10 + 9)), (0, n)) for n in range(20)]
    store = RemoteWalMetadataStore()
    store.apply_all(records[:12])
    read = read_snapshot(write_snapshot(store))
    read.apply_all(records[5:])
    assert read.count_by_state()[FINISHED].segments == 20
    assert read.progress == {0: 20}


def test_many_segments_are_in_chunks_of_bounded_size() -> None:
    store = RemoteWalMetadataStore()
    runs = [entry(n, n) for n in range(5000)]
    for n in range(200):
        store.apply(segment(n, *runs))
    chunks = list(snapshot_chunks(store.image()))
    assert len(chunks) > 4
    assert max(map(len, chunks)) < 8 * 1024 * 1024
    assert read_snapshot(b"".join(chunks)).count_by_state() == store.count_by_state()


def rewritten(snapshot: bytes, change: Callable[[list[Any]], object]) -> bytes:
    """With other content in the state section, and right checksums."""
    _, _, stored_bytes, _ = struct.unpack_from("<BIII", snapshot, 10)
    state = json.loads(zlib.decompress(snapshot[23 : 23 + stored_bytes]))
    change(state)
    content = json.dumps(state).encode()
    stored = zlib.compress(content)
    head = struct.pack("<BII", 1, len(content), len(stored))
    section = head + struct.pack("<I", crc32c(stored, crc32c(head))) + stored
    return snapshot[:10] + section + snapshot[23 + stored_bytes :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda raw: b"", "ends at byte 0"),
        (lambda raw: b"PK" + raw[2:], "does not begin as one"),
        (lambda raw: raw[:8] + b"\x05\x00" + raw[10:], "format version 5"),
        (lambda raw: raw[:-13], "before its end section"),
        (lambda raw: raw[: len(raw) // 2], "checksum|before its end"),
        (lambda raw: rewritten(raw, lambda state: state.__setitem__(0, "other")), "of cluster 'other'"),
        (lambda raw: rewritten(raw, lambda state: state.__setitem__(1, 1000)), "not 1000"),
        (lambda raw: rewritten(raw, lambda state: state[2].pop("progress")), "makes no sense"),
        (lambda raw: rewritten(raw, lambda state: state[2].update(dead=[[1]])), "makes no sense"),
    ],
)
def test_another_one_a_newer_one_and_a_cut_one_are_refused(damage: Callable[[bytes], bytes], reason: str) -> None:
    with pytest.raises(SnapshotError, match=reason):
        read_snapshot(damage(write_snapshot(some_store())))


@given(st.data())
def test_a_flipped_byte_is_always_noticed(data: st.DataObject) -> None:
    raw = bytearray(write_snapshot(some_store(3)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SnapshotError):
        read_snapshot(bytes(raw))


@given(st.binary(max_size=60), st.booleans())
def test_arbitrary_bytes_are_refused(raw: bytes, with_head: bool) -> None:
    with pytest.raises(SnapshotError):
        read_snapshot(b"RWALSNAP\x01\x00" + raw if with_head else raw)
