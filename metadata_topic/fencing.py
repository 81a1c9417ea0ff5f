"""Which incarnation of each broker's agent may still publish, and who cares for the broker's objects.

Theory. An incarnation counts from its registration on: in the partition of the topic that holds a broker's
records, a COPY_SEGMENT_* record is refused when a registration of a higher incarnation stands before it.
Both places are offsets, so what is refused does not depend on when a record is read: not when some are read
twice, and not when one is decoded only after an upgrade. Records without a place (not read from the topic),
or whose place is in another partition than the registration's (partitions were added), are held against all
registrations known.
"""

from typing import NamedTuple

from metadata_topic.records import RemoteWalNodeRegistration

Source = tuple[int, int]
"""(partition, offset) in the metadata topic."""


class PlacedRegistration(NamedTuple):
    """A registration and where it stood."""

    registration: RemoteWalNodeRegistration
    source: Source | None


class Registrations:
    """All brokers' registrations. Not thread-safe."""

    def __init__(self) -> None:
        # Only what raised the incarnation is kept: as many as the broker's agent had starts.
        self._placed: dict[int, list[PlacedRegistration]] = {}
        self._newest: dict[int, RemoteWalNodeRegistration] = {}

    def add(self, registration: RemoteWalNodeRegistration, source: Source | None) -> bool:
        """False when it is of an incarnation that is fenced itself."""
        broker_id = registration.broker_id
        newest = self._newest.get(broker_id)
        if newest is None or _rank(registration) > _rank(newest):
            self._newest[broker_id] = registration
        placed = self._placed.setdefault(broker_id, [])
        if PlacedRegistration(registration, source) in placed:
            return True
        if self.fences(broker_id, registration.incarnation, source):
            return False
        placed.append(PlacedRegistration(registration, source))
        return True

    def fences(self, broker_id: int, incarnation: int, source: Source | None) -> bool:
        """Whether a record of that incarnation at that place is refused."""
        return any(
            known.registration.incarnation > incarnation and _before(known.source, source)
            for known in self._placed.get(broker_id, ())
        )

    def newest(self, broker_id: int) -> RemoteWalNodeRegistration | None:
        """Of the highest incarnation; of several, the latest."""
        return self._newest.get(broker_id)

    def placed(self) -> list[PlacedRegistration]:
        """All that count."""
        return [known for broker_id in sorted(self._placed) for known in self._placed[broker_id]]


def _rank(registration: RemoteWalNodeRegistration) -> tuple[int, int, int]:
    return registration.incarnation, registration.event_timestamp_ms, registration.caretaker_broker_id


def _before(known: Source | None, source: Source | None) -> bool:
    return known is None or source is None or known[0] != source[0] or known[1] < source[1]
