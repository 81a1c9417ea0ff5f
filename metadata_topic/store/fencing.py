"""Which incarnation of each broker's agent may still publish, and who cares for the broker's objects.

Theory. An incarnation counts from its registration on: in the partition of the topic that holds a broker's
records, a COPY_SEGMENT_* record is refused when a registration of a higher incarnation stands before it.
Both places are offsets, so what is refused does not depend on when a record is read: not when some are read
twice, and not when one is decoded only after an upgrade. Records without a place (not read from the topic) are
held against all registrations known. Places in two partitions, as there are once partitions were added, have no
order: there nothing is refused, because that would refuse records that were valid before.

When the topic began anew, or lost its tail, its offsets begin anew as well: what was registered before is remembered,
and fences nothing that the topic tells from then on.
"""

from collections import Counter
from typing import NamedTuple

from metadata_topic.records.records import RemoteWalNodeRegistration

Source = tuple[int, int]
"""(partition, offset) in the metadata topic."""

BEFORE_THE_TOPIC: Source = (-1, -1)
"""The place of a registration that was read from a topic before this one."""


class PlacedRegistration(NamedTuple):
    """A registration of an agent, and the partition and offset of its record; None if it was not read from the
    topic."""

    registration: RemoteWalNodeRegistration
    source: Source | None


class Registrations:
    """The registrations of all brokers' agents: they decide which records are refused. Not thread-safe."""

    def __init__(self) -> None:
        # Fenced registrations are not kept, so there are about as many as the broker's agent had starts.
        self._placed: dict[int, list[PlacedRegistration]] = {}
        self._newest: dict[int, PlacedRegistration] = {}
        self.refused: Counter[int] = Counter()
        """By broker: how many registrations came after one of a higher incarnation."""

    def add(self, registration: RemoteWalNodeRegistration, source: Source | None) -> bool:
        """Add a registration; False when one of a higher incarnation came before it, so that it is refused."""
        broker_id = registration.broker_id
        arriving = PlacedRegistration(registration, source)
        placed = self._placed.setdefault(broker_id, [])
        if arriving in placed:
            return True
        if self.fences(broker_id, registration.incarnation, source):
            self.refused[broker_id] += 1
            return False
        placed.append(arriving)
        newest = self._newest.get(broker_id)
        if newest is None or _is_newer(arriving, newest):
            self._newest[broker_id] = arriving
        return True

    def fences(self, broker_id: int, incarnation: int, source: Source | None) -> bool:
        """Whether a record of that incarnation, at that place in the topic, is refused."""
        newest = self._newest.get(broker_id)
        if newest is None or incarnation >= newest.registration.incarnation:
            return False
        return any(
            known.registration.incarnation > incarnation and _before(known.source, source)
            for known in self._placed.get(broker_id, ())
        )

    def begin_anew(self) -> None:
        """Move all registrations before the topic's beginning: the topic was recreated, so their offsets mean
        nothing in it."""
        for broker_id, placed in self._placed.items():
            self._placed[broker_id] = [PlacedRegistration(known.registration, BEFORE_THE_TOPIC) for known in placed]
        for broker_id, newest in self._newest.items():
            self._newest[broker_id] = PlacedRegistration(newest.registration, BEFORE_THE_TOPIC)

    def knows(self, broker_id: int, incarnation: int) -> bool:
        """Whether this incarnation's registration is known; all that it published stands behind it in the topic."""
        return any(known.registration.incarnation == incarnation for known in self._placed.get(broker_id, ()))

    def newest(self, broker_id: int) -> RemoteWalNodeRegistration | None:
        """Return the registration of a broker's highest incarnation; of several, the last in the topic."""
        newest = self._newest.get(broker_id)
        return newest.registration if newest is not None else None

    def newest_of_all(self) -> list[RemoteWalNodeRegistration]:
        """Return the registration of every broker's highest incarnation, by broker."""
        return [self._newest[broker_id].registration for broker_id in sorted(self._newest)]

    def placed(self) -> list[PlacedRegistration]:
        """Return all registrations that count, with their places, by broker."""
        return [known for broker_id in sorted(self._placed) for known in self._placed[broker_id]]


def _is_newer(one: PlacedRegistration, other: PlacedRegistration) -> bool:
    """Whether `one` is newer: by incarnation, then by order in the topic, as clocks differ; else by time."""
    if one.registration.incarnation != other.registration.incarnation:
        return one.registration.incarnation > other.registration.incarnation
    if one.source is not None and other.source is not None and one.source[0] == other.source[0]:
        return one.source[1] > other.source[1]
    return _time(one.registration) > _time(other.registration)


def _time(registration: RemoteWalNodeRegistration) -> tuple[int, int]:
    return registration.event_timestamp_ms, registration.caretaker_broker_id


def _before(known: Source | None, source: Source | None) -> bool:
    if known == BEFORE_THE_TOPIC:
        return False
    return known is None or source is None or (known[0] == source[0] and known[1] < source[1])
