"""What is archived: any order of records gives the same answers, and the answers are a plain search's."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records import archive_records as records
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import StateTotals
from plugin.format.archive_object_id import ArchiveObjectId
from tests.metadata_topic.archive_strategies import T0, committed, deleted, deleting, object_id, prepared
from tests.metadata_topic.metadata_strategies import ORDERS, PAYMENTS

CHAIN = LeaderEpochs([(0, 0), (1, 12), (3, 30)])


def store_of(*applied: ArchiveRecord) -> ArchiveStore:
    store = ArchiveStore()
    for record in applied:
        store.apply(record)
    return store


def found(store: ArchiveStore, offset: int, chain: LeaderEpochs = CHAIN) -> list[int]:
    return [run.object_id.writer_id.sequence for run in store.runs_covering(ORDERS, offset, chain)]


def test_only_a_committed_object_is_found() -> None:
    named = object_id(1, 0, 9)
    store = ArchiveStore()
    seen = []
    for record in (prepared(named), committed(named), deleting(named), deleted(named)):
        store.apply(record)
        seen.append((found(store, 5), store.covers(ORDERS, 0, 0, 9), store.state_of(named)))
    assert seen == [([], False, STARTED), ([1], True, FINISHED), ([], False, DELETING), ([], False, DELETED)]
    assert store.topic_id_partitions() == []


def test_the_state_of_a_known_object_is_told_while_another_thread_looks_over_all_of_them() -> None:
    named = object_id(1, 0, 9)
    store, told = ArchiveStore(), []
    with ThreadPoolExecutor(1) as pool:

        def records() -> Iterator[ArchiveRecord]:
            yield committed(named)
            told.append(pool.submit(store.state_of, named).result(60.0))

        store.restore({}, records())  # which holds all of it meanwhile
    assert told == [FINISHED]


def test_the_longest_of_overlapping_objects_is_taken() -> None:
    store = store_of(committed(object_id(1, 0, 6)), committed(object_id(2, 2, 9)), committed(object_id(3, 2, 9)))
    assert found(store, 4) == [2, 3, 1]
    store.apply(deleting(object_id(2, 2, 9)))
    assert found(store, 4) == [3, 1]


def test_prepared_objects_expire_by_their_own_time() -> None:
    mine, other = object_id(1, 0, 9), object_id(1, 0, 9, broker_id=2)
    store = store_of(prepared(mine, T0, 1000), prepared(other, T0, 1000), prepared(object_id(2, 0, 9), T0 + 1))
    assert store.uncommitted(T0 + 999) == []
    assert store.uncommitted(T0 + 1000) == [mine, other]
    assert store.uncommitted(T0 + 1000, broker_id=1) == [mine]
    store.apply(committed(mine))
    assert store.uncommitted(T0 + 1000) == [other]


def test_what_no_log_needs_is_named() -> None:
    below, reaching, other, unknown = (
        object_id(1, 0, 9), object_id(2, 10, 19), object_id(4, 0, 9, PAYMENTS),
        object_id(5, 0, 9, ORDERS._replace(partition=9)),
    )  # fmt: skip
    store = store_of(committed(below), committed(reaching, (0, 11), (1, 19)), committed(other), committed(unknown))
    assert store.find_unneeded({ORDERS: 9}, ().__contains__) == []
    assert store.find_unneeded({ORDERS: 10}, ().__contains__) == [below]
    assert store.find_unneeded({ORDERS: 10}, ().__contains__, broker_id=2) == []
    assert store.find_unneeded({}, {PAYMENTS.topic_id}.__contains__) == [other]
    assert store.find_unneeded({ORDERS: 20}, ().__contains__) == [below, reaching]


def test_a_fenced_agents_records_count_for_nothing() -> None:
    before, after, fresh = object_id(1, 0, 9), object_id(2, 10, 19), object_id(1, 10, 19, incarnation=5)
    store = store_of(committed(before))
    store.registered(1, 5)
    for record in (committed(after), deleting(before), prepared(object_id(9, 0, 1, broker_id=2)), committed(fresh)):
        store.apply(record)
    assert store.counters["fenced"] == 2
    assert (store.state_of(before), store.state_of(after), store.state_of(fresh)) == (FINISHED, None, FINISHED)


def test_what_was_registered_in_another_partition_fences_nothing() -> None:
    # Since partitions were added, the broker's records go to partition 3; what stands in 1 came before, or did not.
    store = ArchiveStore()
    store.registered(1, 5, partition=3)
    store.apply(committed(object_id(1, 0, 9)), 1)
    store.apply(committed(object_id(2, 10, 19)), 3)
    assert store.state_of(object_id(1, 0, 9)) is FINISHED
    assert store.state_of(object_id(2, 10, 19)) is None


def test_records_are_published_again_before_the_topic_forgets_them() -> None:
    old, new = object_id(1, 0, 9), object_id(2, 10, 19)
    store = store_of(committed(old, at_ms=T0), committed(new, at_ms=T0 + 100), prepared(object_id(3, 20, 29), T0))
    assert [record.object_id for record in store.to_publish_again(T0 + 50)] == [old]
    store.apply(committed(old, at_ms=T0 + 200))
    assert list(store.to_publish_again(T0 + 50)) == []


def test_totals_count_every_object_in_exactly_one_state() -> None:
    store = store_of(
        prepared(object_id(1, 0, 9)), committed(object_id(2, 0, 9)), committed(object_id(3, 0, 9)),
        deleting(object_id(3, 0, 9)), deleted(object_id(4, 0, 9)),
    )  # fmt: skip
    assert store.count_by_state() == {
        STARTED: StateTotals(1, 0), FINISHED: StateTotals(1, 1000),
        DELETING: StateTotals(1, 1000), DELETED: StateTotals(1, 0),
    }  # fmt: skip


def picture(store: ArchiveStore, ids: list[ArchiveObjectId]) -> tuple[object, ...]:
    partitions = (ORDERS, PAYMENTS)
    return (
        {named: (store.state_of(named), store.committed(named)) for named in ids},
        [store.objects(state) for state in (STARTED, FINISHED, DELETING)],
        [store.runs_covering(p, offset, CHAIN) for p in partitions for offset in range(50)],
        [store.archived_range(p, CHAIN, offset) for p in partitions for offset in range(50)],
        store.uncommitted(T0 + 1500),
        store.find_unneeded({ORDERS: 20}, {PAYMENTS.topic_id}.__contains__),
        store.count_by_state(),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[ArchiveRecord]:
    """Legal histories of up to six objects."""
    history: list[ArchiveRecord] = []
    for n in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, 40))
        named = object_id(n, first, first + draw(st.integers(0, 12)), draw(st.sampled_from([ORDERS, PAYMENTS])))
        split = draw(st.integers(named.first_offset, named.last_offset))
        epoch = draw(st.integers(0, 3))
        epochs = [(epoch, split)] + ([(3, named.last_offset)] if split < named.last_offset else [])
        steps = draw(st.sampled_from(["p", "pc", "c", "pd", "pcd", "cdD", "pdD", "pcdD", "D"]))
        makers: dict[str, ArchiveRecord] = {
            "p": prepared(named),
            "c": committed(named, *epochs),
            "d": deleting(named),
            "D": deleted(named),
        }
        history += [makers[letter] for letter in steps]
    return history


@given(histories(), st.randoms(use_true_random=False))
def test_any_order_and_repetition_gives_the_same_end_state(history: list[ArchiveRecord], rng: random.Random) -> None:
    ids = sorted({record.object_id for record in history})
    shuffled = history + [record for record in history if rng.random() < 0.5]
    rng.shuffle(shuffled)
    through_bytes = [records.decode(records.encode_key(r.object_id), records.encode(r)) for r in shuffled]
    assert picture(store_of(*through_bytes), ids) == picture(store_of(*history), ids)


@given(histories())
def test_a_store_made_of_a_snapshot_answers_the_same(history: list[ArchiveRecord]) -> None:
    store = store_of(*history)
    again = store_of(*store.snapshot())
    ids = sorted({record.object_id for record in history if store.state_of(record.object_id) is not DELETED})
    answers, expected = picture(again, ids), picture(store, ids)
    assert answers[:-1] == expected[:-1]


@given(histories())
def test_ranges_agree_with_a_plain_search(history: list[ArchiveRecord]) -> None:
    store = store_of(*history)
    living = [
        record for record in history
        if isinstance(record, records.ArchiveObjectCommitted) and store.state_of(record.object_id) is FINISHED
    ]  # fmt: skip
    for partition in (ORDERS, PAYMENTS):
        held = {
            (run.leader_epoch, offset)
            for record in living if record.object_id.topic_id_partition == partition
            for run in record.runs for offset in range(run.first_offset, run.last_offset + 1)
        }  # fmt: skip
        archived = [offset for offset in range(60) if (CHAIN.epoch_at(offset), offset) in held]
        for start in range(60):
            above = [offset for offset in archived if offset >= start]
            unbroken = [offset for at, offset in enumerate(above) if offset == above[0] + at]
            expected = (unbroken[0], unbroken[-1]) if unbroken else None
            assert store.archived_range(partition, CHAIN, start) == expected
            assert bool(store.runs_covering(partition, start, CHAIN)) == (start in archived)
            for epoch in range(4):
                whole = all((epoch, offset) in held for offset in range(start, start + 5))
                assert store.covers(partition, epoch, start, start + 4) == whole
