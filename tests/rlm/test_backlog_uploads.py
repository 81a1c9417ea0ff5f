"""A log that is far behind goes on where its followers are; what it passes over is stored beside that."""

from collections.abc import Callable
from pathlib import Path

from tests.metric_values import metric_value
from tests.rlm.manager_rig import LIMITS, Rig, partition, running

FOLLOWER = 2
FAR = 9
"""More than eight objects' bytes, in batches of a quarter of one."""
BATCH_BYTES = LIMITS.commit.upload_bytes // 4


def slow(bytes_per_s: int) -> dict[str, object]:
    return {"read_bytes": BATCH_BYTES, "backlog_bytes_per_s": bytes_per_s}


def append(rig: Rig, batches: int) -> None:
    for _ in range(batches):
        rig.log().append(1, payload=b"p" * BATCH_BYTES)


def fetch_at_the_end(rig: Rig) -> int:
    """The followers are there, as they got all else inline."""
    offset = rig.log().batches[-1].base_offset
    rig.manager.fetched(FOLLOWER, partition(0), offset, BATCH_BYTES)
    return offset


async def fall_behind(rig: Rig, ready: Callable[[], object] = lambda: None) -> int:
    """The store is away for long, and comes back when the log is far ahead."""
    rig.storage.copies_fail = True
    append(rig, 1)
    rig.assign(0)
    await rig.until(lambda: rig.manager.status()[partition(0)].lag_bytes > 0, "something was read")
    append(rig, 8 * FAR)
    offset = fetch_at_the_end(rig)
    await rig.until(lambda: metric_value(rig.metrics.upload_failures.labels("timeout")) > 1, "the store is away")
    ready()
    rig.storage.copies_fail = False
    return offset


def backlog(rig: Rig) -> int:
    return rig.manager.status()[partition(0)].backlog_offsets


def held(rig: Rig) -> set[int]:
    entries = [entry for of_object in rig.storage.entries.values() for entry in of_object]
    return {at for entry in entries for at in range(entry.first_offset, entry.last_offset + 1)}


async def test_what_is_new_is_stored_and_told_before_what_was_passed_over(tmp_path: Path) -> None:
    async with running(tmp_path, **slow(BATCH_BYTES)) as rig:
        offset = await fall_behind(rig)
        await rig.until(lambda: backlog(rig) > 0, "the log is passed over")
        append(rig, 3)
        new = {one.raw for one in rig.log().batches if one.base_offset >= offset}
        await rig.until(lambda: new <= set(rig.listener.stored(partition(0))), "what is new is linked")
        status = rig.manager.status()[partition(0)]
        assert status.backlog_offsets > 0
        uploaded_offset = rig.manager.uploaded_offset(partition(0))
        assert uploaded_offset is not None
        assert status.uploaded_offset == uploaded_offset < offset
        assert status.lag_age_ms > 0
        stored_log = rig.manager.stored_log(partition(0))
        assert stored_log is not None
        assert stored_log.uploaded_offset == status.uploaded_offset


async def test_all_that_was_passed_over_is_stored_in_the_end_and_nobody_is_sent_links_of_it(tmp_path: Path) -> None:
    async with running(tmp_path, read_bytes=BATCH_BYTES) as rig:
        offset = await fall_behind(rig)
        end = rig.log().log_end_offset
        await rig.until(lambda: rig.manager.uploaded_offset(partition(0)) == end, "all is stored")
        assert held(rig) == set(range(end))
        linked = rig.listener.stored(partition(0))
        assert 0 < len(linked) < offset
        assert backlog(rig) == 0
        assert rig.manager.status()[partition(0)].lag_age_ms == 0


async def test_what_retention_deletes_of_it_is_told_as_a_gap(tmp_path: Path) -> None:
    async with running(tmp_path, **slow(96 * BATCH_BYTES)) as rig:
        append(rig, 1)
        for _ in range(3):
            rig.log().roll()
            append(rig, FAR)
        await fall_behind(rig)
        await rig.until(lambda: backlog(rig) > 0, "the log is passed over")
        for _ in range(3):
            rig.log().remove_oldest(unlink=True)
        end = rig.log().log_end_offset
        await rig.until(lambda: rig.manager.uploaded_offset(partition(0)) == end, "the rest is stored")
        gone = {at for gap in rig.owner.found for at in range(gap.from_offset, gap.to_offset)}
        assert gone
        assert held(rig) | gone == set(range(end))
