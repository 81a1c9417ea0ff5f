"""Records of a newer agent are kept for the time after the upgrade."""

import pytest

from metadata_topic.records import record_fields, serde
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.retained_records import RetainedRecord, RetainedRecords
from metadata_topic.store.store import RemoteWalMetadataStore
from tests.metadata_topic.metadata_strategies import FINISHED, entry, segment, segment_id

KEY = serde.encode_key(segment_id(1))
VALUE = serde.encode(segment(1, entry(0, 9)))
NEWER = b"\x03" + VALUE[1:]


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        (KEY, NEWER, True),
        (KEY, VALUE[:1] + b"\x63" + VALUE[2:], True),
        (b"rwm:shape:1", b"\x01\x07whatever", True),
        (b"rwm:shape:1", b"\x09", True),
        (KEY, b"\x00" + VALUE[1:], False),
        (KEY, VALUE + b"!", False),
        (b"orders", NEWER, False),
        (KEY, None, False),
        (None, NEWER, False),
    ],
)
def test_what_is_newer_is_kept_and_what_is_foreign_or_damaged_is_not(
    key: bytes | None, value: bytes | None, kept: bool
) -> None:
    store = RemoteWalMetadataStore()
    store.apply(serde.decode_or_keep_out(key, value), (2, 7))
    assert store.counters.get("retained_unknown", 0) == int(kept)
    assert [tuple(record) for record in store.image().retained] == ([(key, value, (2, 7))] if kept else [])
    assert store.progress == {2: 8}


def test_the_same_record_is_kept_once() -> None:
    store = RemoteWalMetadataStore()
    for _ in range(3):
        store.apply(serde.decode_or_keep_out(KEY, NEWER), (0, 1))
    assert store.counters["retained_unknown"] == 1


def test_an_upgraded_agent_decodes_what_was_kept_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept before and after a registration: only the one after it is fenced."""
    old = RemoteWalMetadataStore()
    later = (serde.encode_key(segment_id(2)), b"\x03" + serde.encode(segment(2, entry(10, 19)))[1:])
    old.apply(serde.decode_or_keep_out(KEY, NEWER), (0, 4))
    old.apply(RemoteWalNodeRegistration(1, 9, 1, 0), (0, 5))
    old.apply(serde.decode_or_keep_out(*later), (0, 6))
    assert old.state_of(segment_id(1)) is None
    monkeypatch.setattr(record_fields, "DIGEST_VERSION", 3)
    upgraded = RemoteWalMetadataStore()
    upgraded.restore(old.image())
    assert upgraded.state_of(segment_id(1)) is FINISHED
    assert upgraded.is_fenced(segment_id(2))
    assert upgraded.image().retained == []
    assert upgraded.progress == {0: 7}


def test_beyond_the_bound_the_oldest_go() -> None:
    kept = RetainedRecords(max_records=3, max_bytes=100)
    records = [RetainedRecord(b"k", bytes([n]) * 10, (0, n)) for n in range(5)]
    assert [kept.add(record) for record in records] == [0, 0, 0, 1, 1]
    assert kept.all() == records[2:]
    assert kept.add(RetainedRecord(b"k", b"x" * 85, (0, 9))) == 2
    assert len(kept) == 2
