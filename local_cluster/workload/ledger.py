"""The account of a numbered workload: records sent, acknowledged and consumed, and what follows from it.

Every record carries its producer's number and a sequence number that counts from 0 without a gap, so every fault of a
record shows: it is lost, doubled, out of order, altered, or was acknowledged with another offset than the one it is
read at. This module only counts; `ledger_workload` does the producing and consuming.

One thread writes a producer's side of its page, one thread the consumer's side; `report` may be called at any time and
is exact once both have ended.
"""

import hashlib
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np

_HEADER = struct.Struct(">4sIQ")
"""Magic, the producer's number, the sequence number."""
_MAGIC = b"WALK"
_SEED = struct.Struct(">Q")
MINIMUM_PAYLOAD_BYTES = _HEADER.size

_NEVER = -1


class Outcome(IntEnum):
    """The cluster's answer about a record."""

    UNKNOWN = 0
    """No answer yet, or an error that leaves it open: the record may exist or not."""
    ACKNOWLEDGED = 1
    """It must exist. For a transaction's record: the commit was acknowledged."""
    ABORTED = 2
    """A committed reader must not see it."""


@dataclass(frozen=True, slots=True)
class TransactionPlan:
    """Transactions of `records` records; every `abort_every`-th is aborted (0: none)."""

    records: int = 50
    abort_every: int = 4


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """One producer of the workload. Without a rate it writes as fast as it can."""

    name: str
    acks: str = "all"
    codec: str = "none"
    payload_bytes: int = 1000
    records_per_s: float | None = 500.0
    transaction: TransactionPlan | None = None
    client_config: Mapping[str, object] = field(default_factory=dict)
    """librdkafka's keys, which override the plan's."""


@dataclass(frozen=True, slots=True)
class ProducerReport:
    """Counts of records of one producer."""

    name: str
    sent: int
    acknowledged: int
    aborted: int
    consumed: int
    """Distinct records that were read."""
    lost: int
    """Acknowledged, but not read though the log was read to its end."""
    reordered: int
    """Read after a later record of the same producer and partition."""
    duplicates: int
    """Read once more, at another offset."""
    aborted_but_read: int
    altered: int
    """Read with other bytes than were sent."""
    at_wrong_offset: int
    """Read at another offset than the one acknowledged."""

    @property
    def faults(self) -> int:
        """The sum of everything that must be zero."""
        misread = self.reordered + self.duplicates + self.aborted_but_read + self.altered
        return self.lost + misread + self.at_wrong_offset


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The result of the workload."""

    producers: tuple[ProducerReport, ...]
    foreign_records: int
    """Read, but not written by this workload."""

    @property
    def faults(self) -> int:
        """The sum of everything that must be zero, over all producers."""
        return sum(producer.faults for producer in self.producers)

    @property
    def sent(self) -> int:
        return sum(producer.sent for producer in self.producers)

    @property
    def acknowledged(self) -> int:
        return sum(producer.acknowledged for producer in self.producers)

    @property
    def consumed(self) -> int:
        return sum(producer.consumed for producer in self.producers)

    def __str__(self) -> str:
        return "; ".join(
            f"{producer.name}: {producer.sent} sent, {producer.acknowledged} acknowledged, {producer.consumed} "
            f"consumed, {producer.lost} lost, {producer.reordered} reordered, {producer.duplicates} duplicates, "
            f"{producer.altered} altered, {producer.at_wrong_offset} at a wrong offset, "
            f"{producer.aborted_but_read} aborted but read"
            for producer in self.producers
        )


class Pattern(Protocol):
    """Makes the values of a producer's records."""

    def value(self, number: int, sequence: int) -> bytes:
        """Return the bytes of record `sequence` of producer `number`."""


class PayloadPattern:
    """Makes values in which a reader can detect altered bytes."""

    def __init__(self, seed: int, payload_bytes: int) -> None:
        if payload_bytes < MINIMUM_PAYLOAD_BYTES:
            raise ValueError(f"a payload has {MINIMUM_PAYLOAD_BYTES} bytes at least, not {payload_bytes}")
        self._seed = seed
        self._body_bytes = payload_bytes - _HEADER.size

    def value(self, number: int, sequence: int) -> bytes:
        """Return the record's value."""
        head = _HEADER.pack(_MAGIC, number, sequence)
        # Half a byte of entropy in each byte, and nothing that another record repeats: codecs have something to do,
        # and something to keep.
        body = hashlib.shake_128(_SEED.pack(self._seed) + head).hexdigest((self._body_bytes + 1) // 2)
        return head + body[: self._body_bytes].encode()


def read_identity(value: bytes | None) -> tuple[int, int] | None:
    """Return (producer's number, sequence) of a record's value; None if it is not of a ledger."""
    if value is None or len(value) < _HEADER.size:
        return None
    magic, number, sequence = _HEADER.unpack_from(value)
    return (number, sequence) if magic == _MAGIC else None


class ProducerPage:
    """One producer's records: outcomes and offsets by sequence number."""

    def __init__(self, name: str, pattern: Pattern) -> None:
        self.name = name
        self.pattern = pattern
        self._outcomes = bytearray()
        self._acknowledged_offsets = array("q")
        self._read_offsets = array("q")
        self._last_sequences: dict[int, int] = {}
        self._reordered = 0
        self._duplicates = 0
        self._altered = 0

    @property
    def next_sequence(self) -> int:
        return len(self._outcomes)

    def sent(self) -> int:
        """Note one more record, and return its sequence number."""
        sequence = len(self._outcomes)
        self._acknowledged_offsets.append(_NEVER)
        self._outcomes.append(Outcome.UNKNOWN)
        return sequence

    def delivered(self, sequence: int, offset: int | None) -> None:
        """Note that the record exists; `settle` decides whether it counts as acknowledged.

        If a record was sent again after its answer was lost, it is known to exist, but its offset is not known (None).
        """
        if offset is not None:
            self._acknowledged_offsets[sequence] = offset

    def settle(self, sequences: range, outcome: Outcome) -> None:
        """Note the outcome of these records. A commit does not acknowledge a record that was never delivered."""
        for sequence in sequences:
            self._outcomes[sequence] = outcome

    def read(self, partition: int, offset: int, sequence: int, value: bytes, number: int) -> None:
        """Note that the consumer read this record."""
        if sequence >= len(self._outcomes):
            self._altered += 1  # the number itself was altered: no such record was sent
            return
        if sequence >= len(self._read_offsets):
            self._read_offsets.extend([_NEVER] * (len(self._outcomes) - len(self._read_offsets)))
        earlier = self._read_offsets[sequence]
        if earlier != _NEVER:
            # Reading the same offset again is the reader's fault; a second copy in the log is the cluster's.
            self._duplicates += earlier != offset
            return
        self._read_offsets[sequence] = offset
        if sequence < self._last_sequences.get(partition, _NEVER):
            self._reordered += 1
        else:
            self._last_sequences[partition] = sequence
        self._altered += value != self.pattern.value(number, sequence)

    def report(self) -> ProducerReport:
        """Return the present counts."""
        sent = len(self._outcomes)
        outcomes = np.frombuffer(bytes(self._outcomes), dtype=np.uint8)
        acknowledged, aborted = outcomes == Outcome.ACKNOWLEDGED, outcomes == Outcome.ABORTED
        offsets = np.array(self._acknowledged_offsets[:sent], dtype=np.int64)
        read = np.full(sent, _NEVER, dtype=np.int64)
        seen = np.array(self._read_offsets[:sent], dtype=np.int64)
        read[: len(seen)] = seen
        was_read = read != _NEVER
        return ProducerReport(
            name=self.name,
            sent=sent,
            acknowledged=int(acknowledged.sum()),
            aborted=int(aborted.sum()),
            consumed=int(was_read.sum()),
            lost=int((acknowledged & ~was_read).sum()),
            reordered=self._reordered,
            duplicates=self._duplicates,
            aborted_but_read=int((aborted & was_read).sum()),
            altered=self._altered,
            at_wrong_offset=int((acknowledged & was_read & (offsets != _NEVER) & (offsets != read)).sum()),
        )


class Ledger:
    """All producers' pages."""

    def __init__(self, plans: Sequence[ProducerPlan], seed: int = 0) -> None:
        self.pages = tuple(
            ProducerPage(plan.name, PayloadPattern(seed + number, plan.payload_bytes))
            for number, plan in enumerate(plans)
        )
        self._foreign = 0

    def read(self, partition: int, offset: int, value: bytes | None) -> None:
        """Note that the consumer read a record."""
        identity = read_identity(value)
        if identity is None or identity[0] >= len(self.pages) or value is None:
            self._foreign += 1
            return
        number, sequence = identity
        self.pages[number].read(partition, offset, sequence, value, number)

    def report(self) -> LedgerReport:
        """Return the present counts; `lost` is meaningful only if the log was read to its end."""
        return LedgerReport(tuple(page.report() for page in self.pages), self._foreign)
