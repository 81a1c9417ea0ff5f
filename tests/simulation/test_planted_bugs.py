"""The simulation finds what it is there for: each of these defects loses records, or tells of them too early."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_log.log_lineage import LogLineage
from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import (
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.write_path.core.actions import Upload
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.reading.resume_point import ResumePoint, resume_point
from rlm.write_path.reading.resumed_tail import ResumedTail
from rlm.write_path.uploads.adoptable_records import Records
from rlm.write_path.uploads.combine_task import Copied, FinishedInOrder, RLMWalCombineTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem, RemoteSegmentQueue
from tests.simulation import agent_model
from tests.simulation.planted_bugs import Plant, find, of_the_write_path


def resume_at_the_highest_offset(patch: pytest.MonkeyPatch) -> None:
    def highest(*arguments: Any) -> ResumePoint:
        return replace(resume_point(*arguments), missing=())

    patch.setattr(agent_model, "resume_point", highest)


def tell_listeners_before_the_put(patch: pytest.MonkeyPatch) -> None:
    async def not_waited_for(
        self: RLMWalCombineTask,
        metadata: RemoteWalCombinedLogSegmentMetadata,
        _items: list[MetaQueueItem],
        records: Sequence[Records],
    ) -> Copied:
        asyncio.get_running_loop().create_task(self._storage.copy_log_segment_data(metadata, records))
        return RemoteWalCombinedLogSegmentMetadataUpdate(metadata.combined_segment_id, metadata.entries, 0, b""), ()

    patch.setattr(RLMWalCombineTask, "copy", not_waited_for)


def lose_truncations(patch: pytest.MonkeyPatch) -> None:
    discard = RemoteSegmentQueue.discard

    def only_all(self: RemoteSegmentQueue, partition: TopicIdPartition, from_offset: int = 0) -> None:
        if not from_offset:
            discard(self, partition)

    patch.setattr(RemoteSegmentQueue, "discard", only_all)
    patch.setattr(LedPartition, "truncated", lambda _self, _offset: None)


def see_no_rewritten_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogLineage, "divergence_by_checkpoint", lambda _self: None)
    patch.setattr(LogLineage, "divergence_before", lambda _self, _epoch: None)


def drop_what_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RemoteSegmentQueue, "put_back", lambda _self, items: list(items))


def drop_what_failed_and_count_it(patch: pytest.MonkeyPatch) -> None:
    def forget(self: RemoteSegmentQueue, items: Iterable[MetaQueueItem]) -> None:
        pass

    failed = WritePathCore.upload_failed

    def counted(self: WritePathCore, upload: Upload, now_s: float) -> None:
        failed(self, upload, now_s)
        for item in upload.items:
            led = self.led.get(item.topic_id_partition)
            part = led.unstored_part(item) if led is not None else None
            if led is not None and part is not None:
                led.item_stored(part)

    patch.setattr(RemoteSegmentQueue, "put_back", forget)
    patch.setattr(WritePathCore, "upload_failed", counted)


def forget_what_was_passed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedPartition, "stored_offset", property(lambda self: self.uploaded_offset))


def publish_in_any_order(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: FinishedInOrder, _sequence: int, record: RemoteWalCombinedLogSegmentMetadata | None) -> None:
        if record is not None:
            self._publisher.publish(record)

    patch.setattr(FinishedInOrder, "add", at_once)


def declare_no_gaps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GapDeclarations, "gaps_found", lambda _self, _assignment, _gaps: None)


def trust_what_was_known_of_a_log_that_was_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ResumedTail, "_is_cut_into_known", lambda _self, _read: False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "found", "first"),
    [
        (resume_at_the_highest_offset, "as uploaded, without", 4),
        (tell_listeners_before_the_put, "before its PUT|told of and not there", 0),
        (lose_truncations, "as uploaded, without", 6),
        (see_no_rewritten_log, "as uploaded, without", 5),
        (drop_what_failed, "does not come to an end", 0),
        (drop_what_failed_and_count_it, "as uploaded, without", 0),
        (forget_what_was_passed_over, "as uploaded, without", 4),
        (publish_in_any_order, "told of after a later one", 0),
        (declare_no_gaps, "as uploaded, without", 0),
        (trust_what_was_known_of_a_log_that_was_cut, "as uploaded, without", 48),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, found: str, first: int) -> None:
    find(monkeypatch, plant, found, of_the_write_path(first))
