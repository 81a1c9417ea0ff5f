"""Finds objects of RouterChannels that nobody will delete any more: those of gateways that died. Sans-IO.

Objects that are older than `keep_s` and not in the sweeper's own channel are deleted, whoever wrote them. Any gateway
sweeps for all. Ages use the store's clock only: the newest object that was ever listed gives a lower bound of the time
there, to which the time that has passed here is added. So a host whose clock is wrong deletes nothing that others still
need. A gateway that was frozen for that long and continues loses nothing: if a read finds no object, the original is
requested inline, as after any failed read.

What a log wants stays (`gateway.wanted_objects`), however old: the agent that cares for the log's segments deletes it
with the last one.

The sweep also finds objects of a gateway's own failed uploads that were deleted and took effect afterwards.
"""

import math
from collections.abc import Callable, Collection
from typing import Final

from plugin.blob_storage import StoredBlob
from plugin.router_object_id import RouterObjectId

KEEP_S: Final = 3600.0
"""Longer than clients wait for an answer (`delivery.timeout.ms` is two minutes), and longer than a log's agent may
store what names it (`adoptable_records.NAMED_WITHIN_MS`), with differences of clocks included."""


class RouterSweep:
    """Finds the objects of dead gateways, for one gateway that lists them from time to time."""

    def __init__(self, is_live: Callable[[RouterObjectId], bool], keep_s: float = KEEP_S) -> None:
        """`is_live` returns whether the gateway's own channel will delete the object."""
        self._is_live = is_live
        self._keep_s = keep_s
        self._store_ms: float = -math.inf
        """A lower bound of the store's time, at `_at_s`."""
        self._at_s = 0.0

    def dead(self, listed: Collection[StoredBlob], now_s: float) -> list[StoredBlob]:
        """Return the objects of a listing to delete now; `now_s` is monotonic."""
        passed_ms = (now_s - self._at_s) * 1000
        written = [one.last_modified_ms for one in listed if one.last_modified_ms is not None]
        self._store_ms, self._at_s = max([self._store_ms + passed_ms, *written]), now_s
        return [one for one in listed if self._is_dead(one)]

    def _is_dead(self, one: StoredBlob) -> bool:
        object_id = RouterObjectId.parse(one.name)
        if object_id is None or one.last_modified_ms is None:
            return False
        return self._store_ms >= one.last_modified_ms + self._keep_s * 1000 and not self._is_live(object_id)
