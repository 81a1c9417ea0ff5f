"""Appends to real files, as the kernel tells of them."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.reading.append_watcher import AppendWatcher
from tests.simulation.virtual_time import VirtualTimeLoop, run

PARTITION = TopicIdPartition(TopicId(bytes(16)), 0)


Scenario = Callable[[AppendWatcher, list[TopicIdPartition]], Coroutine[Any, Any, None]]


def play(directory: Path, scenario: Scenario) -> None:
    """Run `scenario` with a watcher of `directory` and the list of what it tells, in virtual time."""

    async def watched() -> None:
        watcher, told = AppendWatcher(), list[TopicIdPartition]()
        watcher.watch(PARTITION, directory)
        watcher.listen(told.append)
        try:
            await scenario(watcher, told)
        finally:
            watcher.ignore()
            watcher.close()

    run(VirtualTimeLoop(), watched())


def test_appends_alone_are_told_from_files_that_come_and_go(tmp_path: Path) -> None:
    watcher, told = AppendWatcher(), list[TopicIdPartition]()
    segment = tmp_path / "0.log"
    segment.touch()
    watcher.watch(PARTITION, tmp_path)
    assert not watcher.only_appends(PARTITION), "nobody has looked yet"
    watcher.reading_begins(PARTITION)
    segment.write_bytes(b"x")
    watcher.take(told.append)
    assert watcher.only_appends(PARTITION)
    (tmp_path / "1.log").touch()
    watcher.take(told.append)
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
