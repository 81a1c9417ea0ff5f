"""Whatever a broker does to its log between two reads, the tail ends up with the log that survived."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kafka_log.open_files import OpenFiles
from kafka_log.segment_tail import Gap, SegmentTail, TailRead, Truncated
from tests.kafka_log.log_writer import LogWriter, WrittenBatch

SMALL = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(0, 3)),
        st.tuples(st.just("append"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 400), SMALL),
        st.tuples(st.just("read"), st.just(10_000), SMALL),
        st.tuples(st.just("read_cached"), st.sampled_from([200, 10_000]), SMALL),
        st.tuples(st.just("roll"), SMALL, SMALL),
        st.tuples(st.just("elect"), SMALL, SMALL),
        st.tuples(st.just("truncate"), SMALL, st.integers(0, 3)),
        st.tuples(st.just("retain"), SMALL, SMALL),
        st.tuples(st.just("tear"), st.integers(1, 120), st.integers(0, 1)),
        st.tuples(st.just("restart"), SMALL, SMALL),
        st.tuples(st.just("evict"), SMALL, SMALL),
    ),
    max_size=40,
)


class Broker:
    """Chooses the leader epochs as elections would: one epoch never writes one offset twice."""

    def __init__(self, path: Path, preallocate_bytes: int) -> None:
        self.log = LogWriter(path, 0, preallocate_bytes=preallocate_bytes)
        self.epoch = 0
        self.highest_epoch = 0
        self.serial = 0
        self.written_to: dict[int, int] = {}

    def append(self, records: int, size: int) -> None:
        self.serial += 1
        payload = b"%06d" % self.serial + b"\0" * (size * 70)
        written = self.log.append(records, self.epoch, payload)
        self.written_to[self.epoch] = max(written.last_offset + 1, self.written_to.get(self.epoch, 0))

    def elect(self) -> None:
        self.highest_epoch += 1
        self.epoch = self.highest_epoch

    def truncate(self, back: int, how: int) -> None:
        batches = self.log.batches
        if not batches:
            return
        at = batches[max(0, len(batches) - 1 - back)].base_offset
        self.log.truncate_to(at, flush_checkpoint=how != 2)
        remaining = self.log.batches[-1].leader_epoch if self.log.batches else 0
        if how == 3 and self.written_to.get(remaining, 0) <= at:
            self.epoch = remaining  # the new leader has more of the older epoch than this replica had
        else:
            self.elect()

    def restart(self, forward: int) -> None:
        self.log.restart_at(max(0, self.log.log_end_offset + forward - 3))
        self.elect()

    def act(self, action: str, first: int, second: int) -> None:
        match action:
            case "append":
                self.append(first, second)
            case "roll":
                self.log.roll()
            case "elect":
                self.elect()
            case "truncate":
                self.truncate(first, second)
            case "retain":
                self.log.remove_oldest(unlink=bool(first % 2))
            case "tear":
                self.log.tear(self.epoch, first, full_length=bool(second))
            case "restart":
                self.restart(first)


class Follower:
    """What someone who believes the tail ends up with."""

    def __init__(self, broker: Broker, start_offset: int | None) -> None:
        self.log = broker.log
        self.files = OpenFiles(limit=1)
        self.tail = SegmentTail(self.log.path, start_offset, self.files)
        self.kept: list[tuple[int, int, bytes]] = []
        self.gaps: list[Gap] = []

    def read_cached(self, max_bytes: int) -> None:
        found = self.tail.read_cached(max_bytes)
        if found is not None:
            assert not found[0].events
            self._believe(found[0])

    def read(self, max_bytes: int) -> TailRead:
        result = self.tail.read(max_bytes)
        self._believe(result)
        return result

    def _believe(self, result: TailRead) -> None:
        for event in result.events:
            if isinstance(event, Truncated):
                dead = [k for k in self.kept if k[1] >= event.at_offset]
                self.kept = [k for k in self.kept if k[1] < event.at_offset]
                self.gaps = [gap for gap in self.gaps if gap.from_offset < event.at_offset]
                alive = {b.raw for b in self.log.batches}
                assert not dead or dead[0][2] not in alive, "nothing that survives is declared dead"
            if isinstance(event, Gap):
                assert event.from_offset < event.to_offset
                assert not self.kept or self.kept[-1][1] < event.from_offset
                self.gaps.append(event)
        position = 0
        for span in result.spans:
            raw = result.records[span.start : span.end]
            assert span.start == position, "records are contiguous"
            assert raw in self.log.ever_written, "no byte that was not in the file"
            assert not self.kept or span.base_offset > self.kept[-1][1], "never reordered or repeated"
            self.kept.append((span.base_offset, span.last_offset, raw))
            position = span.end
        assert position == len(result.records)

    def was_told_of(self, written: WrittenBatch) -> bool:
        """The batch lies in a reported gap that the log grew into again, which a tail need not read."""
        return any(g.from_offset <= written.last_offset and written.base_offset < g.to_offset for g in self.gaps)


@given(STEPS, st.one_of(st.none(), st.integers(0, 12)), st.sampled_from([0, 0, 4096]))
def test_a_tail_ends_up_with_the_surviving_log(
    steps: list[tuple[str, int, int]], start_offset: int | None, preallocate_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        broker = Broker(Path(directory) / "t-0", preallocate_bytes)
        follower = Follower(broker, start_offset)
        for action, first, second in steps:
            if action == "read":
                follower.read(first)
            elif action == "read_cached":
                follower.read_cached(first)
            elif action == "evict":
                follower.tail.close()
            else:
                broker.act(action, first, second)
        broker.log.repair()
        broker.log.write_checkpoint()
        quiet_reads = 0
        for _ in range(200):
            before = follower.tail.next_offset
            result = follower.read(500)
            is_quiet = before == follower.tail.next_offset and not result.records and not result.events
            quiet_reads = quiet_reads + 1 if is_quiet else 0
            if quiet_reads == 2:  # the first one may have gone on to the next segment
                break
        else:
            raise AssertionError("the tail never came to rest")
        assert follower.tail.next_offset == broker.log.log_end_offset
        surviving = broker.log.batches
        first_kept = follower.kept[0][0] if follower.kept else broker.log.log_end_offset
        if start_offset is not None:
            first_kept = min(first_kept, max(start_offset, broker.log.log_start_offset))
        kept = [raw for base, _, raw in follower.kept if base >= broker.log.log_start_offset]
        expected = [
            b.raw for b in surviving if b.last_offset >= first_kept and (b.raw in kept or not follower.was_told_of(b))
        ]
        assert kept == expected
        follower.tail.close()
        assert follower.files.open_count == 0
