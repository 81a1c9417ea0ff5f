"""Producers that wait are told from those that do not by what is appended during uploads."""

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
