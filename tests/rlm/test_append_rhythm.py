"""Producers that wait are told from those that do not by what is appended during uploads."""

from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.append_rhythm import AppendRhythm


def told(*appended_meanwhile: bool) -> bool:
    rhythm = AppendRhythm()
    for appended in appended_meanwhile:
        rhythm.upload_ended(appended)
    return rhythm.producers_wait


def test_producers_are_taken_to_wait_until_they_are_seen_not_to() -> None:
    assert told()


def test_appends_during_upload_after_upload_show_that_nobody_waits() -> None:
    assert not told(*[True] * 3)


def test_a_single_late_append_shows_nothing() -> None:
    assert told(True)
    assert told(*[False] * 20, True, False, True)


def test_a_load_that_changes_is_recognised_within_a_few_uploads() -> None:
    assert told(*[True] * 50, *[False] * 3)
    assert not told(*[False] * 50, *[True] * 3)


ONE, OTHER = (TopicIdPartition(TopicId(bytes(16)), number) for number in range(2))


def after_rounds_of(size_bytes: int, rounds: int = 5) -> AppendRhythm:
    rhythm = AppendRhythm()
    for _ in range(rounds):
        rhythm.upload_started(size_bytes)
        rhythm.upload_ended(False)
    return rhythm


def test_a_round_is_whole_when_as_much_is_queued_and_unread_as_the_last_ones_had() -> None:
    rhythm = after_rounds_of(1000)
    rhythm.appended(ONE, 400)
    rhythm.appended(OTHER, 400)
    assert not rhythm.is_round(100)
    assert rhythm.is_round(200)
    rhythm.appended(OTHER, 500)
    assert rhythm.is_round(100)
    rhythm.read()
    assert not rhythm.is_round(200)


def test_where_nobody_waits_there_are_no_rounds() -> None:
    rhythm = after_rounds_of(1000)
    for _ in range(5):
        rhythm.upload_ended(True)
    assert not rhythm.is_round(5000)


def test_when_fewer_append_their_smaller_rounds_are_known_within_some_uploads() -> None:
    rhythm = after_rounds_of(1000)
    assert not rhythm.is_round(500)
    for _ in range(20):
        rhythm.upload_started(500)
    assert rhythm.is_round(500)
