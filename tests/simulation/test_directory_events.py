"""What stands for the kernel in simulations tells of a broker's changes what the kernel tells."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.reading.append_watcher import AppendWatcher, DirectoryEvents, inotify
from tests.kafka_log.log_writer import LogWriter
from tests.simulation.directory_events import SimulatedDirectoryEvents

PARTITION = TopicIdPartition(TopicId(bytes(16)), 0)


def epoch_of(log: LogWriter) -> int:
    return log.epochs[-1][0] if log.epochs else 0


CHANGES: list[Callable[[LogWriter], object]] = [
    lambda log: log.append(2, epoch_of(log)),
    lambda log: log.append(1, epoch_of(log) + 1),
    lambda log: log.roll(),
    lambda log: log.remove_oldest(),
    lambda log: log.truncate_to(max(log.log_end_offset - 2, log.log_start_offset)),
    lambda log: log.compact(0) if len(log.segments) > 1 and len(log.segments[0].batches) > 1 else None,
]


def told(watcher: AppendWatcher) -> tuple[list[TopicIdPartition], bool]:
    partitions = list[TopicIdPartition]()
    watcher.take(partitions.append)
    only_appends = watcher.only_appends(PARTITION)
    watcher.reading_begins(PARTITION)
    return partitions, only_appends


@pytest.mark.parametrize("seed", range(5))
def test_both_tell_the_same_of_whatever_a_broker_does(tmp_path: Path, seed: int) -> None:
    log, rng = LogWriter(tmp_path / "t-0"), random.Random(seed)
    log.append(1)
    simulated = SimulatedDirectoryEvents(None)
    kernel, ours = AppendWatcher(), AppendWatcher(simulated)
    for watcher in (kernel, ours):
        watcher.watch(PARTITION, log.path)
        watcher.reading_begins(PARTITION)
    for _ in range(60):
        for change in rng.choices(CHANGES, k=rng.randint(1, 2)):
            change(log)
            simulated.changed(log.path)
        assert told(ours) == told(kernel)
    kernel.close()
    ours.close()


@pytest.mark.parametrize("kind", ["kernel", "simulated"])
def test_both_say_what_cannot_be_watched_and_what_is_watched_no_more(tmp_path: Path, kind: str) -> None:
    simulated = SimulatedDirectoryEvents(None)
    events: DirectoryEvents = inotify() if kind == "kernel" else simulated
    with pytest.raises(FileNotFoundError):
        events.add_watch(tmp_path / "t-0", 0x102)
    (tmp_path / "t-0").mkdir()
    wd = events.add_watch(tmp_path / "t-0", 0x102)
    (tmp_path / "t-0").rmdir()
    simulated.changed(tmp_path / "t-0")
    assert [event.wd for event in events.read(timeout=0)] == [wd]
    with pytest.raises(OSError, match=r"Invalid|no such"):
        events.rm_watch(wd)
    events.close()
    assert events.closed
