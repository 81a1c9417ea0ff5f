"""Offers a connection's routed Produce requests to the write path, and sends its gateway the outcomes.

A gateway that has this connection keeps what it stored until it learns that no log wants it. If the connection ends
first, it cannot learn that, and leaves the objects alone.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from gateway.metrics import ProduceMetrics
from gateway.produce.route_request import ZoneRouteRequest, encode_outcome
from kafka_log.crc32c import Buffer
from plugin.adopted_records import BatchSource
from plugin.errors import defect_site
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, Offer

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S: Final = 0.25
_AFTER_DEFECT_S: Final = 1.0


async def tell_outcomes(adoptable: AdoptableRecords, metrics: ProduceMetrics) -> None:
    """Report the due outcomes of offers until cancelled; continues after any error, because without outcomes
    gateways delete nothing."""
    while True:
        pause_s = _LOOK_AGAIN_S
        try:
            adoptable.look_again(asyncio.get_running_loop().time())
        except Exception as error:
            metrics.objects.labels("defect").inc()
            log.error("adoption_outcomes_defect", defect=defect_site(error))
            pause_s = _AFTER_DEFECT_S
        await asyncio.sleep(pause_s)


class AdoptionOffers:
    """The offers of one gateway connection to the write path. All times are monotonic seconds."""

    def __init__(self, adoptable: AdoptableRecords, channel: PeerChannel) -> None:
        self._adoptable = adoptable
        self._channel = channel
        self._open: dict[int, Offer] = {}
        """Offers of requests that the broker has not answered, by the requests' numbers."""
        self._is_closed = False

    def spliced(self, request: ZoneRouteRequest, content: Buffer, now_s: float) -> None:
        """Offer a request's records, `content`, before the request is sent to the broker."""
        offer = self._adoptable.offer(
            BatchSource(request.object_id, request.custom_metadata),
            request.start_position,
            content,
            [cut.length for cut in request.cuts],
            now_s,
            partial(self._tell, request.number),
        )
        if offer is None:
            self._tell(request.number, adopted=False)
            return
        self._open[request.number] = offer

    def answered(self, number: int | None, now_s: float) -> None:
        """Record that the broker responded to a request; `number` is that of a routed one, else None."""
        if number is not None and (offer := self._open.pop(number, None)) is not None:
            self._adoptable.answered(offer, now_s)

    def close(self, now_s: float) -> None:
        """End all offers, because the connection ended."""
        self._is_closed = True
        for offer in self._open.values():
            self._adoptable.answered(offer, now_s)

    def _tell(self, number: int, adopted: bool) -> None:
        if not self._is_closed:
            with suppress(ConnectionError):  # the task that reads the connection notices its end
                self._channel.send(MessageKind.ROUTE_OUTCOME, encode_outcome(number, adopted))
