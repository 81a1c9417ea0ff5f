"""A lease in the bucket, by which two clusters with one id and one prefix detect each other.

A cluster that is cloned from disk snapshots has the id, the brokers and the keys of the original. Each takes the
other's objects for orphans of its own, or deletes objects that only its own topics have lost. So the agents of a
cluster renew a lease: key `lease/<n+1>` is created where there is none yet, with a new random value that was recorded
in the settings topic before. Two clones share a past but no renewal: an agent that finds a value which its own topic
did not record has met another cluster. Then it uploads and deletes nothing, all bytes go inline, and it says so. No
machine can tell which of the two is the original. So it also leaves a mark, `lease/contested-<generation>`, by which
the holder deletes nothing either. `remote-wal lease take` decides: it begins the next generation, of which only the
taking cluster knows, so the mark does not count for it, and the other one leaves no new mark.

If the settings topic was lost, agents put back what they remember of it. Until one of them has renewed the lease since,
the topic may lack a value of this cluster. So an unknown value shows no other cluster then: nothing is deleted, and no
mark is left, until the value is known or somebody takes the lease.

The value is recorded before it is written, so an agent that dies in between leaves a harmless record. After a start
nothing is deleted before this cluster has renewed once. While store or topic do not answer for several looks, nothing
is deleted either, and uploads continue. One bucket of several that does not answer counts as the store: another
cluster's lease may be there.

Blocks: for a thread, one at a time. `lost_because` and `may_delete` may be read on any thread.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import structlog

from metadata_topic.settings.settings_records import LeaseValue
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import RemoteSegmentConflictError
from plugin.store_loop import ask, ask_each

log = structlog.get_logger(__name__)

_RESOLUTION_MS: Final = 1000
"""Stores tell whole seconds."""


class StoreClock:
    """Bounds how far this host's clock is off the object store's.

    Theory. Deletions depend on ages, and the times that are compared come from several hosts and the object store. A
    host that started with a wrong clock takes young objects for old ones. The object store gives each object the time
    of its write. This process knows between which two times of its own lasting clock the write lay. That bounds how
    late it is at the store, from then on, even if the host's clock is changed or the host sleeps.
    """

    def __init__(self) -> None:
        self._reading: tuple[int, float, float] | None = None

    def was_written(self, last_modified_ms: int | None, before_s: float, after_s: float) -> None:
        """Note a write of this process between `before_s` and `after_s`, and the object store's time for it; None:
        unknown."""
        if last_modified_ms is not None:
            self._reading = last_modified_ms, before_s, after_s

    def ahead_ms(self, wall_ms: int, now_s: float) -> int:
        """Return by how much the host's clock is ahead, at least; negative: behind; 0 if both may agree, or if it is
        unknown."""
        if self._reading is None:
            return 0
        written_ms, before_s, after_s = self._reading
        earliest_ms = written_ms + int((now_s - after_s) * 1000)
        latest_ms = written_ms + int((now_s - before_s) * 1000) + _RESOLUTION_MS
        return max(0, wall_ms - latest_ms) + min(0, wall_ms - earliest_ms)


LEASE_KIND: Final = "lease"
LOOK_S: Final = 60.0
RENEW_S: Final = 600.0
_SILENT_LOOKS: Final = 5
_CONTESTED: Final = "contested-"


class KnownLeases(NamedTuple):
    """The leases that agents of this cluster have recorded in the settings topic so far."""

    values: frozenset[LeaseValue]
    may_lack: bool = False
    """Whether some values may have been lost with the settings topic."""


class RecordedLeases(Protocol):
    """The record of leases in the settings topic."""

    def read(self) -> KnownLeases | None:
        """Return all leases that agents of this cluster have recorded; None if the topic was not read to its end."""

    def record(self, lease: LeaseValue) -> None:
        """Record a lease; it is durable when this returns. Raises MetadataTopicError."""


class _Found(NamedTuple):
    number: int
    blob: StoredBlob


class Lease:
    """One agent's part in holding the lease in the bucket for its cluster."""

    def __init__(
        self,
        blobs: BlobStorage,
        recorded: RecordedLeases,
        new_value: Callable[[], str],
        lasting_s: Callable[[], float],
    ) -> None:
        """`lasting_s` also counts while the host sleeps (`plugin.wall_clock.lasting_s`)."""
        self._blobs = blobs
        self._recorded = recorded
        self._new_value = new_value
        self._lasting_s = lasting_s
        self._clock = StoreClock()
        self._listed_s: float | None = None
        """When the last listing began that was read to its end."""
        self.lost_because: str | None = None
        """Why nothing is uploaded any more; None while this cluster holds the lease, as far as is known."""
        self.unknown_because: str | None = None
        """Why it is not known whether this cluster has the lease; None: it is known, as far as was seen."""
        self.is_contested = False
        """Whether another cluster has met this one's renewal, so that neither deletes."""
        self._first: int | None = None
        """The newest number at the first look."""
        self._wanted: LeaseValue | None = None
        """What was recorded last, written or not."""
        self._newest = -1
        self._since_s = 0.0
        """Since when this number has been the newest, as far as was seen."""
        self._held_s: float | None = None
        """When this cluster was last seen to hold the lease, after a renewal."""

    @property
    def may_delete(self) -> bool:
        """Whether this cluster has held the lease recently, so that its agents may delete objects."""
        held_s = self._held_s
        if self.lost_because is not None or self.is_contested or held_s is None:
            return False
        return self._lasting_s() - held_s < _SILENT_LOOKS * LOOK_S

    def host_is_ahead_ms(self, wall_ms: int) -> int:
        """Return by how much the host's clock is ahead of the object store's, as seen at renewals
        (`StoreClock.ahead_ms`)."""
        return self._clock.ahead_ms(wall_ms, self._lasting_s())

    def look(self) -> None:
        """Read the lease once, and renew it if due.

        After RemoteStorageError or MetadataTopicError, what was known before stays as it was.
        """
        listed_s, before_s = self._lasting_s(), self._listed_s
        listed = self._listed()
        stored = _numbered(listed)
        self._listed_s = listed_s
        recorded = self._recorded.read()
        if recorded is None:
            return
        known = recorded.values
        generation = max(map(_generation, known), default=0)
        self.is_contested = any(name == f"{_CONTESTED}{generation}" for name, _ in listed)
        if not stored:
            self._renew(max((one.number for one in known), default=0), generation)
            return
        newest = max(found.number for found in stored)
        # Agents of several zones write to a bucket each, so the newest number may occur more than once.
        unknown = {value for one in stored if one.number == newest and (value := self._value(one)) not in known}
        was_known, self.unknown_because = self.unknown_because is None, None
        if unknown and (recorded.may_lack or not known):  # a topic without any may be new in place of a lost one
            self.unknown_because = _unknown(newest)
            if was_known:
                log.warning("lease_unknown", number=newest, consequence="nothing is deleted")
            return
        if unknown:
            self._lost(newest)
            if max(map(_generation, unknown)) <= generation and not self.is_contested:
                ask(self._blobs.put_blob(f"{LEASE_KIND}/{_CONTESTED}{generation}", b"1"))
            return
        if self.lost_because is not None:
            log.warning("lease_taken_back", number=newest)
        self.lost_because = None
        self._holds(stored, newest, before_s)
        if newest == self._first or self._lasting_s() - self._since_s >= RENEW_S:
            self._renew(newest, generation)

    def _holds(self, stored: Collection[_Found], newest: int, before_s: float | None) -> None:
        """Note that this cluster holds the lease with this number, after a listing that began at `before_s`."""
        now_s = self._lasting_s()
        if newest != self._newest:
            if before_s is not None:  # another agent wrote it after the last listing
                self._was_written(stored, newest, before_s, now_s)
            self._newest, self._since_s = newest, now_s
        self._first = newest if self._first is None else self._first
        if newest > self._first:
            self._held_s = now_s

    def _renew(self, number: int, generation: int) -> None:
        """Renew the lease. If another agent was faster, the next look shows it."""
        wanted = self._wanted
        if wanted is None or (wanted.number, _generation(wanted)) != (number + 1, generation):
            wanted = LeaseValue(number + 1, f"{generation}:{self._new_value()}")
            self._recorded.record(wanted)
            self._wanted = wanted
        before_s = self._lasting_s()
        with suppress(RemoteSegmentConflictError):
            ask(self._blobs.put_blob(_name(wanted.number), wanted.value.encode()))
            self._first = number if self._first is None else self._first
            self._newest, self._since_s = wanted.number, self._lasting_s()
            self._held_s = self._since_s
            stored = _numbered(self._listed())
            self._was_written(stored, wanted.number, before_s, self._since_s)
            self._forget_below(stored, number)

    def _was_written(self, stored: Collection[_Found], number: int, before_s: float, after_s: float) -> None:
        for found in stored:
            if found.number == number:
                self._clock.was_written(found.blob.last_modified_ms, before_s, after_s)

    def _forget_below(self, stored: Collection[_Found], number: int) -> None:
        """Delete old numbers, except the one before the newest, which another agent may have just listed."""
        for found in stored:
            if found.number < number:
                ask(self._blobs.delete_blob(found.blob))

    def _lost(self, number: int) -> None:
        if self.lost_because is None:
            log.error(
                "lease_lost",
                number=number,
                consequence="nothing is uploaded or deleted, all goes inline",
                hint="another cluster with this id writes here; if this is the original: remote-wal lease take",
            )
        self.lost_because = (
            f"another cluster with this cluster's id has renewed the lease in object storage (number {number}): "
            "`remote-wal lease take`, if this one is the original; else give it a prefix of its own"
        )

    def take(self) -> int:
        """Take the lease for this cluster, whoever held it. Returns its number. Raises RemoteStorageError,
        MetadataTopicError."""
        stored = _numbered(self._listed())
        recorded = self._recorded.read()
        known = (*map(self._value, stored), *(recorded.values if recorded is not None else ()))
        generation = max(map(_generation, known), default=0)
        number = max((found.number for found in stored), default=0)
        wanted = LeaseValue(number + 1, f"{generation + 1}:{self._new_value()}")
        self._recorded.record(wanted)
        ask(self._blobs.put_blob(_name(wanted.number), wanted.value.encode()))
        return wanted.number

    def _value(self, found: _Found) -> LeaseValue:
        return LeaseValue(found.number, ask(self._blobs.get_blob(found.blob)).decode(errors="replace"))

    def _listed(self) -> list[tuple[str, StoredBlob]]:
        """List the leases and marks by name. Raises RemoteStorageError, also when only some buckets answer."""
        listed = ask_each(self._blobs.list_blobs(LEASE_KIND))
        return [(blob.name.rpartition("/")[2], blob) for blob in listed]


def _unknown(number: int) -> str:
    return (
        f"the settings topic was lost, and with it whose lease number {number} in object storage is: no object is "
        "deleted until an agent that knows it is back; if no other cluster writes there: `remote-wal lease take`"
    )


def _numbered(listed: Collection[tuple[str, StoredBlob]]) -> list[_Found]:
    return [_Found(int(name), blob) for name, blob in listed if name.isascii() and name.isdigit()]


def _generation(lease: LeaseValue) -> int:
    """Return how often the lease was taken before."""
    generation, colon, _ = lease.value.partition(":")
    return int(generation) if colon and generation.isascii() and generation.isdigit() else 0


def _name(number: int) -> str:
    return f"{LEASE_KIND}/{number:015}"
