"""The simulation finds what would lose records on their way into the archive, or keep what is to go."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from metadata_topic.records.states import STARTED
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.errors import RemoteStorageError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.archive import archive_task
from rlm.archive.archive_care import ArchiveCare
from rlm.archive.archive_plan import ArchivePlan
from rlm.archive.archive_task import RLMArchiveTask
from rlm.archive.archived_topics import ArchiveTier
from tests.simulation.archive.archive_plan import is_archived
from tests.simulation.planted_bugs import SEEDS, Plant, find


def commit_before_the_put(patch: pytest.MonkeyPatch) -> None:
    in_pool = vars(RLMArchiveTask)["_in_pool"]

    async def not_waited_for(self: RLMArchiveTask, function: Callable[..., Any], *arguments: object) -> Any:
        if function.__name__ != "_write":
            return await in_pool(self, function, *arguments)
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    patch.setattr(RLMArchiveTask, "_in_pool", not_waited_for)


def release_what_is_prepared(patch: pytest.MonkeyPatch) -> None:
    holds = ArchiveTier.holds

    def too_early(self: ArchiveTier, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        return holds(self, entry) or any(
            named.topic_id_partition == entry.topic_id_partition
            and named.first_offset <= entry.first_offset
            and entry.last_offset <= named.last_offset
            for named, _ in self._archive.objects(STARTED)
        )

    patch.setattr(ArchiveTier, "holds", too_early)


def write_under_a_name_once_more(patch: pytest.MonkeyPatch) -> None:
    archive = vars(RLMArchiveTask)["_archive"]

    async def again(self: RLMArchiveTask, plan: ArchivePlan) -> ArchiveObjectId | None:
        named = self._next_writer_id
        try:
            made: ArchiveObjectId | None = await archive(self, plan)
        except RemoteStorageError:
            self._next_writer_id = named
            raise
        return made

    patch.setattr(RLMArchiveTask, "_archive", again)


def take_what_was_read_for_what_was_asked(patch: pytest.MonkeyPatch) -> None:
    def unchecked(data: bytes, *_: object) -> int:
        return _Any()

    patch.setattr(archive_task, "crc32c", unchecked)
    patch.setattr(archive_task, "_fault_of", lambda *_: None)


class _Any(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def keep_what_was_never_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ArchiveStore, "uncommitted", lambda _self, _now_ms, _broker_id=None: [])


def heal_no_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ArchiveCare, "heal", lambda _self, _orphans, _now_ms, _cared_for: None)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (commit_before_the_put, "is committed, and not there"),
        (release_what_is_prepared, "and it is wanted"),
        (write_under_a_name_once_more, "is written twice|left that are to go|the topic does not tell"),
        (take_what_was_read_for_what_was_asked, "has other bytes|told as archived"),
        (keep_what_was_never_committed, "are left that are to go"),
        (heal_no_orphans, "are left that are to go"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, found: str) -> None:
    find(monkeypatch, plant, found, filter(is_archived, range(SEEDS)))
