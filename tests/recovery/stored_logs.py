"""A model of leaders that write, die and are followed by others, and of agents that upload what they wrote."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from kafka_log.crc32c import crc32c
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.format.combined_segment import HEADER_BYTES
from plugin.segment_metadata import CombinedSegmentId
from recovery.logs.log_plan import EpochStart
from recovery.logs.stored_run import StoredObject, StoredRun

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)


def stored_object(sequence: int, written_ms: int | None = None, broker_id: int = 1) -> StoredObject:
    return StoredObject(CombinedSegmentId(broker_id, 1, sequence), 0, sequence if written_ms is None else written_ms)


def run(
    leader_epoch: int, first: int, last: int, sequence: int = 0, *, dead_from: int | None = None,
    written_ms: int | None = None, data: bytes = b"",
) -> StoredRun:  # fmt: skip
    return StoredRun(
        stored_object(sequence, written_ms),
        leader_epoch,
        first,
        last,
        last if dead_from is None else dead_from - 1,
        HEADER_BYTES,
        HEADER_BYTES + len(data),
        crc32c(data),
    )


@dataclass(slots=True)
class ModelLog:
    """The log of the last leader, and everything that any leader's agent uploaded."""

    writer: list[int] = field(default_factory=list)
    """The leader epoch that wrote each offset."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    uploads: list[StoredRun] = field(default_factory=list)

    def elect(self, leader_epoch: int, log_end: int) -> None:
        """A leader whose log ends there; what was written behind it is lost."""
        del self.writer[log_end:]
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < log_end]
        self.epochs.append((leader_epoch, log_end))

    def write(self, records: int) -> None:
        self.writer += [self.epochs[-1][0]] * records

    def upload_all(self, sequence: int, sizes: Sequence[int], overlap: int) -> None:
        """The leader's agent uploads its log from `overlap` offsets before its epoch on, in runs of one epoch."""
        offset = max(0, self.epochs[-1][1] - overlap)
        turn = 0
        while offset < len(self.writer):
            epoch = self.writer[offset]
            end = offset + sizes[turn % len(sizes)]
            end = min(
                end, next((at for at in range(offset, len(self.writer)) if self.writer[at] != epoch), len(self.writer))
            )
            self.uploads.append(run(epoch, offset, end - 1, sequence + turn))
            offset, turn = end, turn + 1


@st.composite
def model_logs(draw: st.DrawFn) -> ModelLog:
    """Elections, clean and unclean, each leader uploading all that it wrote before the next one follows."""
    model = ModelLog()
    epoch = sequence = 0
    for _ in range(draw(st.integers(1, 5))):
        model.elect(epoch, draw(st.integers(0, len(model.writer))))
        model.write(draw(st.integers(1, 8)))
        model.upload_all(sequence, draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)), draw(st.integers(0, 3)))
        sequence += 100
        epoch += draw(st.integers(1, 2))
    return model


def starts_of(model: ModelLog) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(epoch, start) for epoch, start in model.epochs)
