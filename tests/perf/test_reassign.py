"""What the benchmark of moves asks for, so that a partition's older half is where its case says."""

from metadata_topic.settings.wal_retention import AS_LOCAL, WalRetention
from perf.reassign import Kept

LOCAL_MS = 7 * 86_400_000


def test_only_past_their_own_retention_objects_go_before_the_log_does() -> None:
    kept_ms = {kept: WalRetention().of(kept.settings, 2, LOCAL_MS).retention_ms for kept in Kept}
    assert {kept for kept, ms in kept_ms.items() if ms < LOCAL_MS} == {Kept.LOGS, Kept.ARCHIVE}
    assert {kept for kept in Kept if kept.settings.wal_retention_ms == AS_LOCAL} == {Kept.WAL, Kept.TIER}


def test_each_case_keeps_the_older_half_in_one_place_beside_the_logs() -> None:
    assert [kept for kept in Kept if kept.settings.archive] == [Kept.ARCHIVE]
    assert [kept for kept in Kept if "remote.storage.enable" in kept.topic_config] == [Kept.TIER]
    assert all(kept.settings.enable for kept in Kept)
