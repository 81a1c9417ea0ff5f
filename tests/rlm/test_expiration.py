"""Which objects may go, which of them are due, and what holds one back at the last moment."""

from dataclasses import replace
from random import Random

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.lifecycle.expiration import ExpirationLimits, ExpirationPlanner, Planned, Verdict
from rlm.lifecycle.failover import FailoverPlanner
from rlm.lifecycle.release import NEVER, ClusterView, HiddenTopics, Release, Tiers, TopicWatch

ORDERS, CLICKS = TopicId(b"orders".ljust(16)), TopicId(b"clicks".ljust(16))
WRITTEN_MS = 1_000_000
LIMITS = ExpirationLimits(delete_grace_ms=60_000, uncommitted_ttl_ms=600_000, retry_ms=1000, retry_max_ms=8000)
BOTH_LIVE = ClusterView(living=frozenset({ORDERS, CLICKS}))
Run = tuple[TopicId, int, int]


class FakeTier:
    def __init__(self, *held: TopicId, waits: bool = False) -> None:
        self.held, self.waits = set(held), waits

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        return entry.topic_id_partition.topic_id in self.held

    def waits_for(self, _topic_id: TopicId, /) -> bool:
        return self.waits


def entry(topic: TopicId, first: int, last: int, epoch: int = 0) -> RemoteLogSegmentMetadataEntry:
    return RemoteLogSegmentMetadataEntry(TopicIdPartition(topic, 0), epoch, first, last, 0, 10, 0)


def record(
    sequence: int, state: RemoteLogSegmentState, *runs: Run, broker_id: int = 1, at_ms: int = WRITTEN_MS
) -> RemoteWalCombinedLogSegmentMetadata:
    segment_id = CombinedSegmentId(broker_id, 7, sequence)
    return RemoteWalCombinedLogSegmentMetadata(segment_id, tuple(entry(*run) for run in runs), state, at_ms, 100)


class Rig:
    def __init__(self, *tiers: FakeTier) -> None:
        self.store = RemoteWalMetadataStore()
        self.planner = ExpirationPlanner(self.store, Tiers(tiers), LIMITS, Random(5))
        self.planner.cluster_seen(BOTH_LIVE)
        self.under_way: set[int] = set()

    def finished(self, sequence: int, *runs: Run, broker_id: int = 1) -> CombinedSegmentId:
        made = record(sequence, FINISHED, *runs, broker_id=broker_id)
        self.store.apply(made)
        return made.combined_segment_id

    def scan(self, age_ms: int = 0, limit: int = 100, brokers: frozenset[int] = frozenset({1})) -> list[Planned]:
        return self.planner.scan(
            brokers, lambda segment_id: segment_id.sequence in self.under_way, WRITTEN_MS + age_ms, limit
        )

    def reasons(self, age_ms: int = 0) -> list[str]:
        return [planned.reason for planned in self.scan(age_ms)]

    def start(self, age_ms: int = 0) -> None:
        for planned in self.scan(age_ms):
            now_ms = WRITTEN_MS + age_ms
            self.store.apply(replace(planned.segment.metadata, state=DELETING, entries=(), event_timestamp_ms=now_ms))
            self.planner.started(planned.segment, now_ms)

    def elected_at_6(self) -> None:
        """Another broker leads in epoch 1, whose log of epoch 0 ended there."""
        epochs, leaders = LeaderEpochs([(0, 0), (1, 6)]), {0: 1, 1: 2}
        for update in FailoverPlanner(2, self.store).plan(TopicIdPartition(ORDERS, 0), epochs, 0, lambda: leaders):
            self.store.apply(update)


def test_what_is_not_known_keeps_the_object() -> None:
    rig = Rig()
    rig.planner.cluster_seen(ClusterView())
    rig.finished(0, (ORDERS, 0, 9))
    assert rig.reasons(10**15) == []


def test_the_last_released_entry_releases_the_object() -> None:
    rig = Rig()
    rig.finished(0, (ORDERS, 0, 9), (CLICKS, 5, 7))
    orders = TopicIdPartition(ORDERS, 0)
    rig.planner.cluster_seen(replace(BOTH_LIVE, log_start={orders: 10}))
    assert rig.reasons() == []
    rig.planner.cluster_seen(replace(BOTH_LIVE, log_start={orders: 10, TopicIdPartition(CLICKS, 0): 8}))
    assert rig.reasons() == [Release.BELOW_LOG_START]


def test_a_log_that_starts_at_an_entrys_last_offset_still_wants_it() -> None:
    rig = Rig()
    rig.finished(0, (ORDERS, 0, 9))
    rig.planner.cluster_seen(replace(BOTH_LIVE, log_start={TopicIdPartition(ORDERS, 0): 9}))
    assert rig.reasons() == []


@pytest.mark.parametrize(("age_ms", "expected"), [(4999, []), (5000, [Release.EXPIRED])])
def test_the_topic_with_the_longest_local_retention_decides(age_ms: int, expected: list[str]) -> None:
    rig = Rig()
    rig.finished(0, (ORDERS, 0, 9), (CLICKS, 5, 7))
    rig.planner.cluster_seen(replace(BOTH_LIVE, retention_ms={ORDERS: 1000, CLICKS: 5000}))
    assert rig.reasons(age_ms) == expected


def test_nothing_comes_of_age_after_the_cluster_was_asked() -> None:
    # A replica may have fallen behind since then, whose entries are kept for longer.
    rig = Rig()
    rig.finished(0, (ORDERS, 0, 9))
    view = replace(BOTH_LIVE, retention_ms={ORDERS: 5000})
    rig.planner.cluster_seen(replace(view, as_of_ms=WRITTEN_MS + 4999))
    assert rig.reasons(10**9) == []
    rig.planner.cluster_seen(replace(view, as_of_ms=WRITTEN_MS + 5000))
    assert rig.reasons(4999) == []
    assert rig.reasons(5000) == [Release.EXPIRED]


def test_a_deletion_is_held_back_whose_object_an_older_view_cannot_judge() -> None:
    rig = Rig()
    written = rig.finished(0, (ORDERS, 0, 9))
    view = replace(BOTH_LIVE, retention_ms={ORDERS: 5000})
    rig.planner.cluster_seen(view)
    rig.start(5000)
    rig.planner.cluster_seen(replace(view, as_of_ms=WRITTEN_MS + 4999))
    assert rig.planner.verdict(written, WRITTEN_MS + 10**9) is Verdict.HOLD


def test_a_topic_that_keeps_its_records_for_ever_never_releases_by_time() -> None:
    rig = Rig()
    rig.finished(0, (ORDERS, 0, 9), (CLICKS, 5, 7))
    rig.planner.cluster_seen(replace(BOTH_LIVE, retention_ms={ORDERS: 1000, CLICKS: NEVER}))
    assert rig.reasons(10**15) == []


def test_what_the_long_term_tier_holds_is_released() -> None:
    rig = Rig(FakeTier(ORDERS))
    rig.finished(0, (ORDERS, 0, 9))
    rig.finished(1, (ORDERS, 10, 19), (CLICKS, 0, 9))
    assert [(p.segment.combined_segment_id.sequence, p.reason) for p in rig.scan()] == [(0, Release.TIERED)]


def test_an_archive_that_is_to_be_made_from_the_object_is_waited_for_by_time_and_by_the_other_tier() -> None:
    archive = FakeTier(waits=True)
    rig = Rig(FakeTier(ORDERS), archive)
    rig.finished(0, (ORDERS, 0, 9))
    rig.planner.cluster_seen(replace(BOTH_LIVE, retention_ms={ORDERS: 1000}))
    assert rig.reasons(10**9) == []
    archive.held.add(ORDERS)
    assert rig.reasons(0) == [Release.TIERED]


def test_of_an_entry_whose_end_a_failover_killed_the_tier_need_not_hold_that_end() -> None:
    class Archive(FakeTier):
        def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
            return entry.last_offset < up_to

    rig, up_to = Rig(Archive(waits=True)), 5
    rig.finished(0, (ORDERS, 0, 9))
    rig.elected_at_6()
    assert rig.reasons() == []
    up_to = 6
    assert rig.reasons() == [Release.TIERED]


def test_entries_that_a_failover_killed_are_released() -> None:
    rig = Rig()
    rig.finished(0, (ORDERS, 6, 10))
    rig.finished(1, (ORDERS, 4, 10))
    rig.elected_at_6()
    assert [(p.segment.combined_segment_id.sequence, p.reason) for p in rig.scan()] == [(0, Release.DEAD)]


def test_a_deleted_topic_releases_its_records_after_the_grace_time_and_not_before() -> None:
    rig, watch = Rig(), TopicWatch(grace_ms=300)
    rig.finished(0, (ORDERS, 0, 9))
    rig.planner.cluster_seen(watch.seen(frozenset({ORDERS}), 0))
    rig.planner.cluster_seen(watch.seen(frozenset({CLICKS}), 1000))
    rig.planner.cluster_seen(watch.seen(frozenset({CLICKS}), 1299))
    assert not rig.reasons()
    rig.planner.cluster_seen(watch.seen(frozenset({CLICKS}), 1300))
    assert rig.reasons() == [Release.TOPIC_DELETED]


def test_a_topic_that_is_out_of_sight_for_a_moment_is_not_gone() -> None:
    watch = TopicWatch(grace_ms=300)
    watch.seen(frozenset({ORDERS}), 0)
    assert not watch.seen(frozenset(), 299).is_gone(ORDERS)
    assert not watch.seen(frozenset({ORDERS}), 5000).is_gone(ORDERS)
    assert not watch.seen(frozenset(), 5001).is_gone(ORDERS)
    assert not watch.seen(frozenset(), 5300).is_gone(ORDERS)
    assert watch.seen(frozenset(), 5301).is_gone(ORDERS)
    assert not watch.seen(frozenset({ORDERS}), 5400).is_gone(ORDERS)


def test_the_first_answer_after_a_long_silence_that_lacks_a_topic_does_not_make_it_gone() -> None:
    watch = TopicWatch(grace_ms=300)
    watch.seen(frozenset({ORDERS}), 0)
    assert not watch.seen_by_id(frozenset(), frozenset({ORDERS}), 60_000).is_gone(ORDERS)
    assert not watch.seen(frozenset(), 60_299).is_gone(ORDERS)
    assert watch.seen(frozenset(), 60_300).is_gone(ORDERS)


def test_a_topic_that_this_agent_never_saw_is_gone_only_after_it_has_watched_for_the_grace_time() -> None:
    watch = TopicWatch(grace_ms=300)
    assert not ClusterView().is_gone(ORDERS)
    assert not watch.seen(frozenset({CLICKS}), 1000).is_gone(ORDERS)
    assert watch.seen(frozenset({CLICKS}), 1300).is_gone(ORDERS)


def test_while_any_topic_is_hidden_no_topic_that_this_agent_never_saw_is_gone_but_one_that_it_saw_go_is() -> None:
    watch = TopicWatch(grace_ms=300)
    hidden = HiddenTopics(others=True)
    watch.seen(frozenset({CLICKS}), 0, hidden)
    watch.seen(frozenset(), 8000, hidden)
    view = watch.seen(frozenset(), 9000, hidden)
    assert view.is_gone(CLICKS)
    assert not view.is_gone(ORDERS)
    assert not watch.seen(frozenset(), 9299).is_gone(ORDERS)
    assert watch.seen(frozenset(), 9300).is_gone(ORDERS)


def test_a_topic_that_went_and_whose_name_is_hidden_later_stays_gone() -> None:
    watch = TopicWatch(grace_ms=300)
    watch.seen(frozenset({ORDERS}), 0)
    watch.seen(frozenset(), 10)
    watch.seen(frozenset(), 310)
    assert watch.seen(frozenset(), 400, HiddenTopics(frozenset({ORDERS}), others=True)).is_gone(ORDERS)


def test_an_upload_that_never_finished_goes_after_its_time_to_live_unless_it_is_under_way() -> None:
    rig = Rig()
    rig.store.apply(record(0, STARTED))
    rig.store.apply(record(1, STARTED))
    rig.under_way.add(1)
    assert rig.reasons(599_999) == []
    assert [(p.segment.combined_segment_id.sequence, p.reason) for p in rig.scan(600_000)] == [(0, Release.UNCOMMITTED)]


def test_only_objects_in_this_agents_care_are_looked_at() -> None:
    rig = Rig(FakeTier(ORDERS))
    rig.finished(0, (ORDERS, 0, 9), broker_id=2)
    assert rig.scan() == []
    assert len(rig.scan(brokers=frozenset({1, 2}))) == 1


def test_a_deletion_that_an_earlier_incarnation_started_goes_on_at_its_time() -> None:
    rig = Rig(FakeTier(ORDERS))
    segment_id = rig.finished(0, (ORDERS, 0, 9))
    rig.store.apply(record(0, DELETING, at_ms=WRITTEN_MS + 10))
    assert rig.scan() == []
    assert rig.planner.due(WRITTEN_MS + 60_009, 10) == []
    assert rig.planner.due(WRITTEN_MS + 60_010, 10) == [segment_id]


def test_a_failed_deletion_backs_off_and_one_that_another_agent_finished_is_let_go() -> None:
    rig = Rig(FakeTier(ORDERS))
    segment_id = rig.finished(0, (ORDERS, 0, 9))
    rig.start()
    now_ms, pauses = WRITTEN_MS + 60_000, []
    for _ in range(6):
        assert rig.planner.due(now_ms, 10) == [segment_id]
        rig.planner.put_off(segment_id, now_ms)
        later_ms = now_ms
        while not rig.planner.due(later_ms, 10):
            later_ms += 1
        pauses.append(later_ms - now_ms)
        now_ms = later_ms
    for pause, longest in zip(pauses, (1000, 2000, 4000, 8000, 8000, 8000), strict=True):
        assert longest / 2 <= pause <= longest
    rig.store.apply(record(0, DELETED))
    assert rig.planner.due(now_ms, 10) == []
    assert not rig.planner.is_being_deleted(segment_id)


def test_the_guard_holds_an_object_whose_retention_was_raised_meanwhile() -> None:
    rig = Rig()
    segment_id = rig.finished(0, (ORDERS, 0, 9))
    rig.planner.cluster_seen(replace(BOTH_LIVE, retention_ms={ORDERS: 1000}))
    rig.start(1000)
    rig.planner.cluster_seen(replace(BOTH_LIVE, retention_ms={ORDERS: 500_000}))
    assert rig.planner.verdict(segment_id, WRITTEN_MS + 61_000) is Verdict.HOLD
    assert rig.planner.verdict(segment_id, WRITTEN_MS + 500_000) is Verdict.DELETE


def test_the_guard_holds_an_upload_that_turned_out_to_be_finished_and_wanted() -> None:
    rig = Rig()
    rig.store.apply(record(0, STARTED))
    rig.start(600_000)
    segment_id = rig.finished(0, (ORDERS, 0, 9))
    assert rig.planner.verdict(segment_id, WRITTEN_MS + 700_000) is Verdict.HOLD


def test_after_a_restart_the_guard_asks_for_the_age_that_metadata_does_not_tell_any_more() -> None:
    rig = Rig()
    segment_id = rig.finished(0, (ORDERS, 0, 9))
    rig.store.apply(record(0, DELETING, at_ms=WRITTEN_MS + 5000))
    rig.planner.cluster_seen(replace(BOTH_LIVE, retention_ms={ORDERS: 1000}))
    rig.scan()
    assert rig.planner.verdict(segment_id, WRITTEN_MS + 70_000) is Verdict.AGE_NEEDED
    rig.planner.written(segment_id, WRITTEN_MS)
    assert rig.planner.verdict(segment_id, WRITTEN_MS + 70_000) is Verdict.DELETE
    rig.planner.cluster_seen(BOTH_LIVE)
    assert rig.planner.verdict(segment_id, WRITTEN_MS + 70_000) is Verdict.HOLD


def test_the_oldest_go_without_waiting_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlm.lifecycle.expiration._SEGMENTS_PER_SCAN", 10)
    rig = Rig()
    rig.planner.cluster_seen(replace(BOTH_LIVE, retention_ms={ORDERS: 1000}))
    for sequence in range(100):
        rig.finished(sequence, (ORDERS, sequence, sequence))
    assert rig.reasons() == []
    assert rig.reasons(1000) == [Release.EXPIRED] * 100
