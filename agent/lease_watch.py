"""Runs the lease in the bucket (`rlm.lifecycle.lease`), with its record in the settings topic."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import closing

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.settings.settings_records import LeaseValue, with_lease
from metadata_topic.settings.settings_table import LEASES
from metadata_topic.settings.settings_topic import SettingsReader, SettingsWriter
from plugin.blob_storage import BlobStorage
from plugin.errors import RemoteStorageError
from plugin.wall_clock import lasting_s
from rlm.lifecycle.lease import LOOK_S, KnownLeases, Lease

log = structlog.get_logger(__name__)

_READ_TIMEOUT_S = 30.0
_FIRST_LOOKS_S = 2.0
_OFF_PARTS = 2
"""A clock may be off by so many parts of the time-to-live of uploads, before nothing is deleted."""


class LeasesInTopic:
    """Reads and writes the recorded leases in the settings topic, for an agent or a command beside it."""

    def __init__(self, client: KafkaClientConfig, reader: SettingsReader, broker_id: int) -> None:
        """`reader` follows the settings topic."""
        self._client = client
        self._reader = reader
        self._broker_id = broker_id

    def read(self) -> KnownLeases | None:
        """Return all recorded leases; None: the topic was not read to its end."""
        if not self._reader.read_to_end(_READ_TIMEOUT_S):
            return None
        memory, recorded = self._reader.memory, self._reader.table.leases.values()
        is_lacking = memory.was_remade() and (memory.is_lost or not memory.has_new(LEASES))
        may_lack = is_lacking or any(key.startswith(f"{LEASES.prefix}:") for key in memory.unread)
        return KnownLeases(frozenset(lease for leases in recorded for lease in leases), may_lack)

    def record(self, lease: LeaseValue) -> None:
        """Record a lease. Raises MetadataTopicError."""
        known = self._reader.table.leases.get(self._broker_id, ())
        with closing(SettingsWriter(self._client)) as writer:
            writer.put(LEASES, {self._broker_id: with_lease(known, lease)})


def make_lease(blobs: BlobStorage, recorded: LeasesInTopic) -> Lease:
    """Return a lease with random values that no other cluster can have by chance."""
    return Lease(blobs, recorded, lambda: secrets.token_hex(16), lasting_s)


class LeaseWatch:
    """Renews and checks the cluster's lease in the bucket, for one agent. For the event loop."""

    def __init__(self, lease: Lease, wall_ms: Callable[[], int], uncommitted_ttl_s: float) -> None:
        self._lease = lease
        self._wall_ms = wall_ms
        self._off_max_ms = uncommitted_ttl_s * 1000 / _OFF_PARTS
        self._is_there = True

    @property
    def lost_because(self) -> str | None:
        """Why this agent may not upload, because of the lease; None while it may."""
        return self._lease.lost_because

    @property
    def contested(self) -> str | None:
        """Why nothing is deleted although this cluster may hold the lease; None while there is no such reason."""
        if self._lease.unknown_because is not None:
            return self._lease.unknown_because
        if self.lost_because is not None or not self._lease.is_contested:
            return None
        return (
            "another cluster with this cluster's id has met it in object storage: no object is deleted; run "
            "`remote-wal lease take` in the original, and give the other one a prefix of its own"
        )

    @property
    def may_delete(self) -> bool:
        """Whether this cluster holds the lease, as far as known; True for a store that keeps no lease."""
        return self._lease.may_delete or not self._is_there

    @property
    def host_is_ahead_ms(self) -> int:
        """By how much this host's clock is ahead of the store's, at least, in ms; negative: behind."""
        return self._lease.host_is_ahead_ms(self._wall_ms())

    @property
    def clock_is_off(self) -> str | None:
        """Why nothing is deleted by age; None while this host's clock and the store's agree, as far as known."""
        ahead_ms = self.host_is_ahead_ms
        if abs(ahead_ms) < self._off_max_ms:
            return None
        way = "ahead of" if ahead_ms > 0 else "behind"
        return f"this host's clock is {abs(ahead_ms) // 1000} s {way} the store's: no object is deleted; let NTP set it"

    async def run(self) -> None:
        """Renew and check the lease until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self._lease.look)
            except (RemoteStorageError, KafkaClusterError) as error:
                if isinstance(error, RemoteStorageError) and error.label == "no_blobs":
                    self._is_there = False
                    return
                log.warning("lease_not_looked_at", error=str(error), consequence="nothing is deleted after some time")
            is_known = self._lease.may_delete or self._lease.is_contested or self._lease.lost_because is not None
            await asyncio.sleep(LOOK_S if is_known else _FIRST_LOOKS_S)
