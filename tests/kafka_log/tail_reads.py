"""What a tail is expected to hand on of a log."""

from tests.kafka_log.log_writer import LogWriter

MANY = 1 << 20


def raw_of(log: LogWriter, first_offset: int = 0) -> bytes:
    return b"".join(b.raw for b in log.batches if b.last_offset >= first_offset)


def tail_span(log: LogWriter, index: int) -> tuple[int, int, int]:
    raw = log.batches[index].raw
    return int.from_bytes(raw[17:21], "big"), 0, len(raw)
