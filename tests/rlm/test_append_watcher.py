"""Appends to real files, as the kernel tells of them."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

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


async def append_for(file: Path, rounds: int) -> None:
    """Append every 10 ms."""
    for _ in range(rounds):
        with file.open("ab") as log:
            log.write(b"x")
        await asyncio.sleep(0.01)


def test_a_pause_ends_the_gathering_and_tells_of_what_came(tmp_path: Path) -> None:
    async def scenario(watcher: AppendWatcher, told: list[TopicIdPartition]) -> None:
        writing = asyncio.create_task(append_for(tmp_path / "0.log", 50))
        assert await watcher.pause(30.0, 0.2, told.append)
        assert writing.done(), "it was still appended to"
        assert set(told) == {PARTITION}

    play(tmp_path, scenario)


def test_the_gathering_ends_as_soon_as_it_is_enough(tmp_path: Path) -> None:
    async def scenario(watcher: AppendWatcher, told: list[TopicIdPartition]) -> None:
        writing = asyncio.create_task(append_for(tmp_path / "0.log", 100))
        assert await watcher.pause(30.0, 0.05, told.append, lambda: len(told) >= 3)
        assert len(told) == 3
        assert not writing.done()

    play(tmp_path, scenario)


def test_appends_without_a_pause_are_gathered_until_the_time_is_up(tmp_path: Path) -> None:
    async def scenario(watcher: AppendWatcher, told: list[TopicIdPartition]) -> None:
        writing, loop = asyncio.create_task(append_for(tmp_path / "0.log", 100)), asyncio.get_running_loop()
        begun_s = loop.time()
        assert not await watcher.pause(0.1, 0.05, told.append)
        assert loop.time() - begun_s == pytest.approx(0.1)
        assert set(told) == {PARTITION}
        assert not writing.done()

    play(tmp_path, scenario)


async def test_after_the_gathering_each_append_is_told_as_it_comes(tmp_path: Path) -> None:
    watcher, told = AppendWatcher(), asyncio.Queue[TopicIdPartition]()
    watcher.watch(PARTITION, tmp_path)
    watcher.listen(told.put_nowait)
    assert not await watcher.pause(0.0, 0.05, told.put_nowait)
    await append_for(tmp_path / "0.log", 1)
    assert await told.get() == PARTITION
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
