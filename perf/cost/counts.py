"""The bytes and requests of a load."""

from dataclasses import dataclass, field
from typing import Final

from retention_job.cost.cost_model import Amounts, Tariff

FOLLOWERS: Final = 2
"""The followers of each partition, in other zones."""
_ANNOUNCEMENT_BYTES: Final = 26
_ANNOUNCED_RANGE_BYTES: Final = 8
_LINK_BYTES: Final = 30


@dataclass(slots=True)
class Counts:
    seconds: float = 0.0
    produced_bytes: int = 0
    amounts: Amounts = field(default_factory=Amounts)
    """All that is paid for."""
    linked_bytes: int = 0
    """Bytes to all followers together, as for inline bytes."""
    inline_bytes: int = 0
    latencies_s: list[float] = field(default_factory=list)
    """The times from when a request was sent to its answer."""

    def begin_anew(self) -> None:
        """Forget what was counted so far."""
        self.amounts, self.produced_bytes, self.linked_bytes, self.inline_bytes = Amounts(), 0, 0, 0
        self.latencies_s.clear()

    def put(self, size: int, entries: int, life_s: float) -> None:
        """Count an uploaded object of this size and number of entries, which is stored for `life_s`."""
        self.amounts.puts += 1
        self.amounts.uploaded_bytes += size
        self.amounts.stored_byte_s += size * life_s
        self.amounts.entries += entries

    def get(self, size: int) -> None:
        """Count a read of an object."""
        self.amounts.gets += 1
        self.amounts.retrieved_bytes += size

    def announced(self, entries: int) -> None:
        """Count an object's announcement to a follower with one range per entry; in reality, adjacent ranges are
        joined."""
        self.amounts.crossing_bytes += _ANNOUNCEMENT_BYTES + entries * _ANNOUNCED_RANGE_BYTES

    def linked(self, size: int, links: int) -> None:
        """Count bytes of one partition that a response has as links."""
        self.linked_bytes += size
        self.amounts.crossing_bytes += links * _LINK_BYTES

    def inline(self, size: int) -> None:
        """Count record bytes that a response has inline."""
        self.inline_bytes += size
        self.amounts.crossing_bytes += size

    def usd(self, tariff: Tariff) -> float:
        """Return the dollars for all counts, with storage for the objects' lives."""
        return sum(self.amounts.usd(tariff).values())

    def stock_usd(self, tariff: Tariff) -> float:
        """Return the dollars that stock Kafka pays for the same bytes."""
        return sum(Amounts(crossing_bytes=FOLLOWERS * self.produced_bytes).usd(tariff).values())
