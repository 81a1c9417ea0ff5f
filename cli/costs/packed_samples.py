"""Reads some records of each topic, and finds how small agents would pack them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from kafka_log import zstd

if TYPE_CHECKING:
    from kafka_cluster.client_config import KafkaClientConfig
    from retention_job.cost.cost_model import Where
    from retention_job.cost.estimate import Log

_RECORDS: Final = 200
"""The last records of a partition that are read: about a batch of a busy producer."""
_OVERHEAD_BYTES: Final = 12
"""Lengths, deltas and attributes of a record in a batch."""
_PACKED_BY_PRODUCER: Final = 0.8
"""Whoever stores less than this share of its records' bytes has compressed them (guessed)."""


def pack_ratio(records: Sequence[bytes], stored_record_bytes: float) -> float:
    """Return the bytes that cross zones for each stored byte; 1 if producers already compress.

    Records compressed by LZ4 or Snappy pack a little further (up to 1.3 times), which is not counted.
    """
    size = sum(len(record) + _OVERHEAD_BYTES for record in records)
    if not size or stored_record_bytes < _PACKED_BY_PRODUCER * size / len(records):
        return 1.0
    return min(len(zstd.compress(b"".join(records), 1)) / size, 1.0)


def pack_ratios(client: "KafkaClientConfig", logs: "Mapping[Where, Log]", timeout_s: float) -> dict[str, float]:
    """Return the ratios by topic, from the largest partition of each; topics that cannot be read are left out. Blocks.

    No offsets are committed.
    """
    largest: dict[str, tuple[Where, Log]] = {}
    for where, log in logs.items():
        if log.end > log.start and (where[0] not in largest or log.size > largest[where[0]][1].size):
            largest[where[0]] = where, log
    from confluent_kafka import Consumer

    config = {"group.id": "remote-wal-estimate", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({**client.for_confluent(client_id="remote-wal-estimate"), **config})
    found: dict[str, float] = {}
    try:
        for topic, (where, log) in largest.items():
            if records := list(_last_records(consumer, where, log, timeout_s)):
                found[topic] = pack_ratio(records, log.size / (log.end - log.start))
    finally:
        consumer.close()
    return found


def _last_records(consumer: object, where: "Where", log: "Log", timeout_s: float) -> "Iterable[bytes]":
    from typing import Any, cast

    from confluent_kafka import TopicPartition

    reading = cast(Any, consumer)
    reading.assign([TopicPartition(*where, max(log.start, log.end - _RECORDS))])
    for _ in range(_RECORDS):
        message = reading.poll(timeout_s)
        if message is None or message.error() is not None:
            return
        yield (message.key() or b"") + (message.value() or b"")
