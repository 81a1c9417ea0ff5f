"""Checks every second whether metadata can be published: while it cannot, nothing is linked or uploaded.

An object whose metadata is never published is an orphan, and nobody knows what is stored of the logs. So if metadata
cannot be published for longer than `unpublished_max_ms`, bytes go inline, as in stock Kafka.
The publisher itself then accepts no more records, which ends the uploads; this ends the links, and logs it.
"""

import asyncio
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

_INTERVAL_S = 2.0
STALLED = "metadata_publication_stalled"


class PublicationWatch:
    """Checks every second whether metadata can be published. For the event loop; any thread may read
    `stalled_because`."""

    def __init__(
        self,
        stall_reason: Callable[[], str | None],
        count_fault: Callable[[str], None],
        on_well: Callable[[], None] = lambda: None,
    ) -> None:
        """`stall_reason` returns why nothing is published (`PublicationQueue.stall_reason`).

        `count_fault` is called once for a stall, `on_well` at each look without one.
        """
        self._stall_reason = stall_reason
        self._count_fault = count_fault
        self._on_well = on_well
        self.stalled_because: str | None = None
        """None while all is well."""

    async def run(self) -> None:
        """Check every second whether metadata can be published, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_INTERVAL_S)

    def look(self) -> None:
        """Check once whether metadata can be published."""
        before, self.stalled_because = self.stalled_because, self._stall_reason()
        if self.stalled_because is None:
            self._on_well()
        if before is None and self.stalled_because is not None:
            self._count_fault(STALLED)
            log.error(STALLED, reason=self.stalled_because, consequence="all goes inline, nothing is uploaded")
        elif before is not None and self.stalled_because is None:
            log.info("metadata_publication_resumed")
