"""A defect that asks the store without end costs no more than the ceiling; then all goes inline, and it is told."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from plugin.errors import RemoteStorageError
from plugin.remote_wal_storage_manager import RequestCounts
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask
from plugin.wrappers.guarded_storage import GuardedStorageManager, RequestCeiling
from tests.kafka_log.batches import batches
from tests.replication.two_agents import two_agents
from tests.rlm.manager_rig import LIMITS, partition, running
from tests.rlm.memory_storage import MemoryStorage


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def admitted(ceiling: RequestCeiling, calls: int, sent: Callable[[int], int] = lambda _: 0) -> int:
    return sum(ceiling.admits(sent(call)) for call in range(calls))


def test_beyond_the_ceiling_nothing_is_asked_until_the_minute_is_over(clock: Clock) -> None:
    ceiling = RequestCeiling("PUT", 10, "the.key", clock)
    assert admitted(ceiling, 30) == 10
    assert ceiling.refused == 20
    clock.now_s += 59.9
    assert admitted(ceiling, 5) == 0
    clock.now_s += 0.1
    assert admitted(ceiling, 30) == 10


def test_retries_that_the_storage_manager_makes_by_itself_count(clock: Clock) -> None:
    ceiling = RequestCeiling("PUT", 10, "the.key", clock)
    assert admitted(ceiling, 30, sent=lambda call: 500 + 5 * call) == 2


def test_it_is_told_once_a_minute_and_for_as_long_as_it_lasts(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    ceiling = RequestCeiling("PUT", 10, "the.key", clock)
    admitted(ceiling, 10)
    at_the_ceiling = ceiling.alarm
    assert at_the_ceiling is None
    admitted(ceiling, 10)
    assert ceiling.alarm is not None
    assert "the.key" in ceiling.alarm
    assert capsys.readouterr().out.count("store_request_ceiling_reached") == 1
    clock.now_s += 60
    assert ceiling.alarm is None


def test_a_call_beyond_the_ceiling_fails_as_one_of_the_store_and_deletions_go_on(clock: Clock) -> None:
    puts, gets = (RequestCeiling(kind, 3, "key", clock) for kind in ("PUT", "GET"))
    late, real = GuardedStorageManager(puts, gets), MemoryStorage()
    late.arrived(real)
    outcomes = []
    for sequence in range(5):
        segment_id = CombinedSegmentId(1, 2, sequence)
        metadata = RemoteWalCombinedLogSegmentMetadata(segment_id, (), RemoteLogSegmentState.COPY_SEGMENT_STARTED, 0)
        calls: list[Callable[[], object]] = [
            lambda: ask(late.copy_log_segment_data(metadata, [])),  # noqa: B023
            lambda: ask(late.fetch_log_segment(segment_id, 0, 1)),  # noqa: B023
        ]
        outcomes.append([failure(call) for call in calls])
        ask(late.delete_log_segment_data(segment_id))
    assert outcomes == [[None, None]] * 3 + [["request_ceiling", "request_ceiling"]] * 2
    assert (len(real.fetches), late.request_counts.delete) == (3, RequestCounts().delete)


def failure(call: Callable[[], object]) -> str | None:
    try:
        call()
    except RemoteStorageError as error:
        return error.label
    return None


async def test_tiny_objects_without_end_stop_at_the_ceiling_and_nothing_is_lost(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As from a flush bug: each batch an object of its own."""
    ceiling = RequestCeiling("PUT", 20, "key", clock)
    late = GuardedStorageManager(puts=ceiling)
    async with running(tmp_path, commit=replace(LIMITS.commit, upload_bytes=1)) as rig:
        real = MemoryStorage()
        late.arrived(real)
        monkeypatch.setattr(rig.storage, "copy_log_segment_data", late.copy_log_segment_data)
        for number in range(50):
            rig.log(number).append(1)
        rig.assign(*range(50))
        await rig.until(lambda: ceiling.refused > 5)
        assert len(real.objects) == 20
        assert not any(rig.manager.upload_expected(partition(number), 0) for number in range(50)), (
            "nobody waits for links"
        )
        assert ceiling.alarm is not None

        def went_on(refused: int) -> bool:
            return len(real.objects) == 50 or ceiling.refused > refused

        for _ in range(3):
            clock.now_s += 60
            await rig.until(partial(went_on, ceiling.refused))
        for number in range(50):
            await rig.all_stored(number)
        assert len(real.objects) == 50


async def test_reads_beyond_the_ceiling_come_inline(clock: Clock) -> None:
    late = GuardedStorageManager(gets=RequestCeiling("GET", 2, "key", clock))
    async with two_agents(read_from=late) as agents:
        real = MemoryStorage()
        real.objects = agents.storage.objects
        late.arrived(real)
        follower = await agents.connect()
        for offset in range(8):
            raw = batches(1, offset)
            agents.append({0: raw})
            assert await follower.fetch({0: offset}) == follower.expected({0: raw})
        assert len(real.fetches) == 2
        assert agents.follower_faults("hydration_request_ceiling") >= 3
        await agents.until(lambda: agents.leader_faults("links_paused") == 1)
