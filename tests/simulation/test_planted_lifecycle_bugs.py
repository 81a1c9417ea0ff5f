"""The simulation finds what would delete records that are wanted, or keep what is to go."""

from dataclasses import replace

import pytest

from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import with_archive
from metadata_topic.store.snapshots.snapshot import snapshot_chunks
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.lifecycle.expiration import ExpirationPlanner, Verdict
from rlm.lifecycle.object_ownership import ObjectOwnership
from rlm.lifecycle.orphans import OrphanTask
from tests.simulation import agent_events, life_of_objects
from tests.simulation.metadata_topic_model import Consumption
from tests.simulation.planted_bugs import Plant, find, of_the_write_path


def take_a_batch_without_its_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kafka_log.segment_tail.verify_batches", lambda _data, spans: len(spans))


def delete_before_the_grace_time_is_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life_of_objects, "GRACE_MS", 0)


def delete_what_was_once_not_wanted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExpirationPlanner, "verdict", lambda _self, _segment_id, _now_ms: Verdict.DELETE)


def never_delete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExpirationPlanner, "due", lambda _self, _now_ms, _limit: [])


def look_for_no_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrphanTask, "compare", lambda _self, _broker_ids: {})


def take_nobodys_objects_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ObjectOwnership, "registrations_due", lambda _self, _living, _now_ms: [])


def judge_by_metadata_that_was_not_read_to_its_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Consumption, "read_to_end", lambda _self: True)
    patch.setattr(life_of_objects, "TTL_MS", 0)


def write_a_snapshot_that_is_older_than_it_tells(patch: pytest.MonkeyPatch) -> None:
    def older(store: RemoteWalMetadataStore, cluster_id: str, archive: ArchiveStore) -> bytes:
        image = with_archive(store.image(), archive)
        return b"".join(snapshot_chunks(replace(image, segments=list(image.segments)[:-5]), cluster_id))

    patch.setattr(agent_events, "write_snapshot", older)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "found", "first"),
    [
        (take_a_batch_without_its_checksum, "a batch that no log had|other bytes|no log had it so", 4),
        (delete_before_the_grace_time_is_over, "ms after that was told", 6),
        (delete_what_was_once_not_wanted, "is deleted, and it is wanted", 4),
        (never_delete, "are left that are to go", 0),
        (look_for_no_orphans, "are left that are to go", 0),
        (take_nobodys_objects_over, "are left that are to go", 0),
        (judge_by_metadata_that_was_not_read_to_its_end, "and it is wanted|as uploaded, without", 2),
        (write_a_snapshot_that_is_older_than_it_tells, "and it is wanted|once more|told of after", 17),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, found: str, first: int) -> None:
    find(monkeypatch, plant, found, of_the_write_path(first))
