"""Appends to real files, as the kernel tells of them."""

import asyncio
from pathlib import Path

from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.reading.append_watcher import AppendWatcher

PARTITION = TopicIdPartition(TopicId(bytes(16)), 0)


async def append_for(file: Path, rounds: int, every_s: float) -> None:
    for _ in range(rounds):
        with file.open("ab") as log:
            log.write(b"x")
        await asyncio.sleep(every_s)


async def test_a_pause_ends_the_gathering_and_tells_of_what_came(tmp_path: Path) -> None:
    watcher, told = AppendWatcher(), list[TopicIdPartition]()
    watcher.watch(PARTITION, tmp_path)
    watcher.listen(told.append)
    writing = asyncio.create_task(append_for(tmp_path / "0.log", 5, 0.01))
    assert await watcher.pause(30.0, 0.2, told.append)
    assert writing.done(), "it was still appended to"
    assert set(told) == {PARTITION}
    watcher.ignore()
    watcher.close()


async def test_the_gathering_ends_as_soon_as_it_is_enough(tmp_path: Path) -> None:
    watcher, told = AppendWatcher(), list[TopicIdPartition]()
    watcher.watch(PARTITION, tmp_path)
    watcher.listen(told.append)
    writing = asyncio.create_task(append_for(tmp_path / "0.log", 10_000, 0.0))
    async with asyncio.timeout(10):
        assert await watcher.pause(30.0, 0.05, told.append, lambda: len(told) >= 3)
    assert len(told) == 3
    assert not writing.done()
    writing.cancel()
    watcher.ignore()
    watcher.close()


async def test_appends_without_a_pause_are_gathered_until_the_time_is_up_and_told_one_by_one_again_then(
    tmp_path: Path,
) -> None:
    watcher, told = AppendWatcher(), asyncio.Queue[TopicIdPartition]()
    watcher.watch(PARTITION, tmp_path)
    watcher.listen(told.put_nowait)
    writing = asyncio.create_task(append_for(tmp_path / "0.log", 10_000, 0.0))
    assert not await watcher.pause(0.1, 0.05, told.put_nowait)
    while not told.empty():
        told.get_nowait()
    assert await asyncio.wait_for(told.get(), 10) == PARTITION
    writing.cancel()
    watcher.ignore()
    watcher.close()


def test_appends_alone_are_told_from_files_that_come_and_go(tmp_path: Path) -> None:
    watcher, told = AppendWatcher(), list[TopicIdPartition]()
    segment = tmp_path / "0.log"
    segment.touch()
    watcher.watch(PARTITION, tmp_path)
    assert not watcher.only_appends(PARTITION), "nobody has looked yet"
    watcher.reading_begins(PARTITION)
    segment.write_bytes(b"x")
    assert watcher.take(told.append)
    assert watcher.only_appends(PARTITION)
    (tmp_path / "1.log").touch()
    assert watcher.take(told.append)
    assert not watcher.only_appends(PARTITION)
    watcher.reading_begins(PARTITION)
    assert watcher.only_appends(PARTITION)
    watcher.reading_fell_short(PARTITION)
    assert not watcher.only_appends(PARTITION)
    watcher.close()


def test_what_comes_during_a_look_counts_for_the_next(tmp_path: Path) -> None:
    watcher = AppendWatcher()
    watcher.watch(PARTITION, tmp_path)
    watcher.reading_begins(PARTITION)
    (tmp_path / "0.log").touch()
    watcher.take(lambda _partition: None)
    assert not watcher.only_appends(PARTITION)
    watcher.close()


def test_a_directory_that_is_not_watched_may_have_seen_anything(tmp_path: Path) -> None:
    watcher, directory = AppendWatcher(), tmp_path / "t-0"
    watcher.reading_begins(PARTITION)
    assert not watcher.only_appends(PARTITION)
    directory.mkdir()
    watcher.watch(PARTITION, directory)
    watcher.reading_begins(PARTITION)
    directory.rmdir()
    watcher.take(lambda _partition: None)
    assert not watcher.only_appends(PARTITION)
    watcher.unwatch(PARTITION)
    watcher.reading_fell_short(PARTITION)
    assert not watcher.only_appends(PARTITION)
    watcher.close()


def test_after_the_end_watching_is_no_error(tmp_path: Path) -> None:
    watcher = AppendWatcher()
    watcher.watch(PARTITION, tmp_path)
    watcher.close()
    watcher.unwatch(PARTITION)
    watcher.watch(PARTITION, tmp_path)
    assert not watcher.only_appends(PARTITION)
