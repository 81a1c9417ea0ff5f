"""Batches are verified, linked and restored as bytes: nothing decompresses what a producer has compressed."""

import ast
import gzip
import tracemalloc
from pathlib import Path

from kafka_log.crc32c import crc32c
from kafka_log.record_batch import scan_batches, verify_batches
from plugin.segment_metadata import CombinedSegmentId
from replication.wire.link import SegmentLink, verify_hydrated
from tests.kafka_log.batches import batch

ROOT = Path(__file__).parents[2]
PACKAGES = ("kafka_log", "plugin", "kafka_cluster", "metadata_topic", "rlm", "replication", "recovery", "agent")
CODECS = {"zlib", "gzip", "bz2", "lzma", "lz4", "snappy", "cramjam", "zstandard", "zstd", "compression"}
MIB = 1024 * 1024
GZIP = 1


def test_a_bomb_is_verified_as_the_few_bytes_that_it_is() -> None:
    bomb = gzip.compress(bytes(64 * MIB), compresslevel=9)
    raw = batch(0, 1, 0, bomb, attributes=GZIP)
    assert len(raw) < MIB
    tracemalloc.start()
    try:
        spans = scan_batches(raw, 0, len(raw))
        assert verify_batches(raw, spans) == 1
        verify_hydrated(SegmentLink(CombinedSegmentId(1, 2, 3), 112, len(raw), crc32c(raw)), raw)
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()


def test_no_room_of_the_agent_knows_a_codec() -> None:
    """But for what agents have packed themselves: messages to each other, snapshots of metadata."""
    users = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(codec in path.read_text() for codec in CODECS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            *([node.module or ""] if isinstance(node, ast.ImportFrom) else []),
            *(each.name for each in node.names),
        )
        if CODECS & set(name.split("."))
    }
    assert users == {
        "kafka_log/zstd.py",
        "replication/wire/packed_message.py",
        "metadata_topic/store/snapshots/snapshot.py",
    }, users
