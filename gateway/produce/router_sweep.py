"""Which objects of the RouterChannels nobody will delete any more: those of gateways that died. Sans-IO.

An object's key tells the epoch in which it was begun, so that a listing is enough: what is older than `keep_s` and not
in the sweeper's own channel goes, whoever wrote it. Any gateway sweeps for all. A gateway that was away for so long and
goes on (a process that stood still, a host that was suspended) loses nothing by it: a read that finds no object is
asked for inline, as after any failed read.

What a log wants stays (`gateway.wanted_objects`), however old: who cares for its segments deletes it with the last one.

This also finds what a gateway's own uploads leave that failed, were deleted, and took effect afterwards.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId

KEEP_S: Final = 3600.0
"""Longer than clients wait for an answer (`delivery.timeout.ms` is two minutes), and than a log's agent may store what
names it (`adoptable_records.NAMED_WITHIN_MS`), clocks that differ included."""


@dataclass(frozen=True, slots=True)
class RouterSweep:
    """Of one gateway."""

    is_live: Callable[[RouterObjectId], bool]
    """Whether its own channel sees to the object."""
    keep_s: float = KEEP_S

    def dead(self, listed: Iterable[StoredBlob], wall_ms: int) -> list[StoredBlob]:
        """Those of a listing that are to be deleted now."""
        return [one for one in listed if self._is_dead(RouterObjectId.parse(one.name), wall_ms)]

    def _is_dead(self, object_id: RouterObjectId | None, wall_ms: int) -> bool:
        if object_id is None:
            return False
        return wall_ms >= object_id.begun_until_ms + self.keep_s * 1000 and not self.is_live(object_id)
