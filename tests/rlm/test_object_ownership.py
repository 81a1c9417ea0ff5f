"""Whose objects an agent cares for, and who takes over from a broker that is gone."""

from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.lifecycle.object_ownership import ObjectOwnership

HOUR_MS = 3_600_000


class Known(RemoteWalMetadataStore):
    def __init__(self, *registrations: RemoteWalNodeRegistration) -> None:
        super().__init__()
        self.by_broker = {registration.broker_id: registration for registration in registrations}
        self.others: set[int] = set()

    def registration_of(self, broker_id: int) -> RemoteWalNodeRegistration | None:
        return self.by_broker.get(broker_id)

    def agents(self) -> set[int]:
        return set(self.by_broker) | self.others

    def take(self, registrations: list[RemoteWalNodeRegistration]) -> None:
        self.by_broker |= {registration.broker_id: registration for registration in registrations}


def registered(broker_id: int, incarnation: int, caretaker: int, at_ms: int = 0) -> RemoteWalNodeRegistration:
    return RemoteWalNodeRegistration(broker_id, incarnation, caretaker, at_ms)


def three_brokers() -> Known:
    return Known(*(registered(broker_id, 100 + broker_id, broker_id) for broker_id in (1, 2, 3)))


def care_of(broker_id: int, incarnation: int, known: Known) -> ObjectOwnership:
    return ObjectOwnership(broker_id, incarnation, known, known.agents, HOUR_MS)


def test_every_agent_cares_for_its_own_brokers_objects_registered_or_not_yet() -> None:
    assert care_of(2, 102, Known()).brokers_in_care() == {2}
    assert care_of(2, 102, three_brokers()).brokers_in_care() == {2}


def test_the_lowest_living_broker_takes_over_after_the_time_and_only_once() -> None:
    known = three_brokers()
    lowest, other = care_of(1, 101, known), care_of(2, 102, known)
    for care in (lowest, other):
        assert care.registrations_due({1, 2}, 0) == []
        assert care.registrations_due({1, 2}, HOUR_MS - 1) == []
    assert other.registrations_due({1, 2}, HOUR_MS) == []
    due = lowest.registrations_due({1, 2}, HOUR_MS)
    assert due == [registered(3, 103, 1, HOUR_MS)]
    known.take(due)
    assert lowest.registrations_due({1, 2}, 2 * HOUR_MS) == []
    assert lowest.brokers_in_care() == {1, 3}
    assert other.brokers_in_care() == {2}


def test_a_broker_without_a_registered_agent_is_not_the_caretaker() -> None:
    known = three_brokers()
    second = care_of(2, 102, known)
    del known.by_broker[1]
    second.registrations_due({1, 2}, 0)
    assert second.registrations_due({1, 2}, HOUR_MS) == [registered(3, 103, 2, HOUR_MS)]


def test_a_broker_that_came_back_for_a_moment_is_given_the_whole_time_again() -> None:
    care = care_of(1, 101, three_brokers())
    care.registrations_due({1, 2}, 0)
    care.registrations_due({1, 2, 3}, HOUR_MS - 1)
    assert care.registrations_due({1, 2}, HOUR_MS) == []


def test_a_caretaker_that_is_gone_itself_is_succeeded() -> None:
    known = three_brokers()
    known.take([registered(3, 103, 1)])
    second = care_of(2, 102, known)
    second.registrations_due({2}, 0)
    assert second.registrations_due({2}, HOUR_MS) == [registered(1, 101, 2, HOUR_MS), registered(3, 103, 2, HOUR_MS)]


def test_an_agent_that_ran_on_while_its_broker_was_away_takes_its_care_back() -> None:
    known = three_brokers()
    third = care_of(3, 103, known)
    known.take([registered(3, 103, 1)])
    assert third.brokers_in_care() == frozenset()
    due = third.registrations_due({1, 2, 3}, 0)
    assert due == [registered(3, 103, 3)]


def test_a_fenced_incarnation_knows_it_and_does_not_register_again() -> None:
    known = three_brokers()
    old = care_of(3, 90, known)
    assert old.is_fenced()
    assert old.registrations_due({1, 2, 3}, 0) == []
