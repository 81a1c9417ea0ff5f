"""The digest of a run follows from those of its batches."""

from hashlib import sha256

import pytest

from kafka_log.batch_digests import batch_digests, records_digest, run_digest
from kafka_log.crc32c import crc32c
from kafka_log.record_batch import CorruptBatchError, scan_batches
from tests.kafka_log.batches import batch, batches
from tests.kafka_log.forgery import forged


def test_a_run_of_some_of_the_batches_has_the_digest_that_its_bytes_have() -> None:
    raw = batches(5, payload=b"y" * 90)
    spans = scan_batches(raw, 0, len(raw))
    digests = batch_digests(raw, spans)
    assert digests[2] == sha256(raw[spans[2].start : spans[2].end]).digest()
    assert run_digest(digests[1:4]) == records_digest(raw[spans[1].start : spans[3].end])
    assert run_digest(digests[1:3]) != run_digest(digests[1:4])
    assert run_digest((*digests[:2], b"")) == b""


def test_what_is_no_batch_has_no_digest() -> None:
    with pytest.raises(CorruptBatchError):
        records_digest(b"\1" * 100)


def test_a_forged_batch_has_the_checksum_and_another_digest() -> None:
    raw = batch(0, 1, payload=b"ten dollars for alice, and some more")
    wrong = forged(raw, raw.index(b"alice"), b"mally")
    assert wrong != raw
    assert crc32c(wrong) == crc32c(raw)
    assert b"for mally" in wrong
    assert records_digest(wrong) != records_digest(raw)
