"""What recover says of a log, in a line."""

from dataclasses import replace

import pytest

from cli.recovery.recovery_table import LogRow, planned_row
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.store.released_offsets import ReleasedUpTo
from recovery.broker_recovery import PlannedLog
from recovery.cluster_view import ReplicaSet
from recovery.logs.log_plan import LogRuns, PlanRules
from recovery.logs.log_settings import LogSettings
from tests.recovery.stored_objects import ObjectsInMemory, records, runs_of

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
ALONE, FOLLOWER = ReplicaSet((1,), (1,), -1), ReplicaSet((2, 1), (2,), 2, log_start=0)


def planned(replicas: ReplicaSet, *first_offsets: int, rules: PlanRules | None = None) -> PlannedLog:
    """With five records from each of these offsets."""
    store, rules = ObjectsInMemory(), rules or PlanRules()
    uploads = [store.upload(number, records(ORDERS, 0, at, at + 4)) for number, at in enumerate(first_offsets)]
    runs = LogRuns(runs_of(uploads, ORDERS))
    return PlannedLog(ORDERS, "orders", replicas, LogSettings(), runs, runs.plan(rules), rules)


def test_what_the_other_replicas_have_and_objects_do_not_is_named_before_anything_is_done() -> None:
    row = planned_row(planned(FOLLOWER, 10))
    assert row.told == "left to the other replicas: 0 to 9 not in object storage"
    assert (row.held_by_others, row.size_bytes, row.is_complete) == (((0, 10),), 0, True)


@pytest.mark.parametrize(("log_start", "is_left"), [(0, True), (3, True), (None, False)])
def test_a_lost_head_is_left_to_a_living_leader_that_has_it(log_start: int | None, is_left: bool) -> None:
    lost, found = runs_of([ObjectsInMemory().upload(1, records(ORDERS, 0, at, at + 4)) for at in (0, 5)], ORDERS)
    runs, rules = LogRuns([found], [lost]), PlanRules(log_start=log_start)
    replicas = replace(FOLLOWER, log_start=log_start)
    row = planned_row(PlannedLog(ORDERS, "orders", replicas, LogSettings(), runs, runs.plan(rules), rules))
    told = f"left to the other replicas: {log_start} to 4 not in object storage"
    assert (row.told, row.is_complete) == ((told, True) if is_left else ("0 to 4 missing", False))


def test_further_ranges_are_counted() -> None:
    rules = PlanRules(declared_gaps=(DeclaredGap(ORDERS, 15, 20, 0, GapReason.NOT_WANTED),))
    row = planned_row(planned(FOLLOWER, 10, 20, rules=rules))
    assert row.told == "left to the other replicas: 0 to 9 and 1 more ranges not in object storage"
    assert row.held_by_others == ((0, 10), (15, 20))


@pytest.mark.parametrize(("released_up_to", "told"), [(10, "whole; before 10 expired"), (9, "whole")])
def test_a_log_that_begins_where_older_records_expired_says_so(released_up_to: int, told: str) -> None:
    rules = PlanRules(released=(ReleasedUpTo(ORDERS, 0, released_up_to),))
    row: LogRow = planned_row(planned(ALONE, 10, rules=rules))
    assert (row.told, row.start_offset) == (told, 10)


def test_a_log_is_restored_with_less_where_that_is_wanted() -> None:
    assert planned_row(replace(planned(FOLLOWER, 10), may_have_less=True)).told == "whole"
