"""Who may inherit a broker's objects, and who lets the heir be."""

import pytest

from rlm.lifecycle.object_ownership import DecommissionError, inheritance
from tests.rlm.test_object_ownership import HOUR_MS, Known, care_of, registered, three_brokers


def test_the_heir_cares_for_the_objects_and_keeps_them_when_the_takeover_time_is_over() -> None:
    known = three_brokers()
    registration = inheritance(3, 2, {1, 2}, known, known.agents(), 7)
    assert registration == registered(3, 103, 2, 7)
    known.take([registration])
    assert care_of(2, 102, known).brokers_in_care() == {2, 3}
    lowest = care_of(1, 101, known)
    lowest.registrations_due({1, 2}, 0)
    assert lowest.registrations_due({1, 2}, HOUR_MS) == []
    assert lowest.registrations_due({1}, 2 * HOUR_MS) == [registered(3, 103, 1, 2 * HOUR_MS)]


@pytest.mark.parametrize(
    ("broker_id", "heir_id", "living", "fault"),
    [
        (3, 3, {1, 2}, "own heir"),
        (3, 2, {1, 2, 3}, "stop it"),
        (3, 2, {1}, "not in the cluster"),
        (9, 2, {1, 2}, "nothing to inherit"),
        (3, 4, {1, 2, 4}, "has no agent"),
    ],
)
def test_what_cannot_be_inherited_or_by_nobody_alive_is_refused(
    broker_id: int, heir_id: int, living: set[int], fault: str
) -> None:
    with pytest.raises(DecommissionError, match=fault):
        inheritance(broker_id, heir_id, living, three_brokers(), {1, 2, 3}, 7)


def test_a_broker_whose_registration_the_topic_does_not_tell_any_more_can_be_inherited() -> None:
    known: Known = three_brokers()
    del known.by_broker[3]
    known.others = {3}
    assert inheritance(3, 2, {1, 2}, known, known.agents(), 7) == registered(3, 0, 2, 7)
