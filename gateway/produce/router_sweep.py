"""Which objects of the RouterChannels nobody will delete any more: those of gateways that died. Sans-IO.

What is older than `keep_s` and not in the sweeper's own channel goes, whoever wrote it. Any gateway sweeps for all.
Ages are told by the store's clock alone: the newest object that was ever listed says how late it is there at least, and
from then on the time that has passed here. So a host whose clock is wrong deletes nothing that others still need. A
gateway that was away for so long and goes on (a process that stood still, a host that was suspended) loses nothing by
it: a read that finds no object is asked for inline, as after any failed read.

What a log wants stays (`gateway.wanted_objects`), however old: who cares for its segments deletes it with the last one.

This also finds what a gateway's own uploads leave that failed, were deleted, and took effect afterwards.
"""

import math
from collections.abc import Callable, Collection
from typing import Final

from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId

KEEP_S: Final = 3600.0
"""Longer than clients wait for an answer (`delivery.timeout.ms` is two minutes), and than a log's agent may store what
names it (`adoptable_records.NAMED_WITHIN_MS`), clocks that differ included."""


class RouterSweep:
    """Of one gateway."""

    def __init__(self, is_live: Callable[[RouterObjectId], bool], keep_s: float = KEEP_S) -> None:
        """`is_live` says whether its own channel sees to the object."""
        self._is_live = is_live
        self._keep_s = keep_s
        self._store_ms: float = -math.inf
        """How late it was at the store at least, at `_at_s`."""
        self._at_s = 0.0

    def dead(self, listed: Collection[StoredBlob], now_s: float) -> list[StoredBlob]:
        """Those of a listing that are to be deleted now; `now_s` is monotonic."""
        passed_ms = (now_s - self._at_s) * 1000
        written = [one.last_modified_ms for one in listed if one.last_modified_ms is not None]
        self._store_ms, self._at_s = max([self._store_ms + passed_ms, *written]), now_s
        return [one for one in listed if self._is_dead(one)]

    def _is_dead(self, one: StoredBlob) -> bool:
        object_id = RouterObjectId.parse(one.name)
        if object_id is None or one.last_modified_ms is None:
            return False
        return self._store_ms >= one.last_modified_ms + self._keep_s * 1000 and not self._is_live(object_id)
