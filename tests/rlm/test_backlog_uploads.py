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
