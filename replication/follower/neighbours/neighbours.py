"""Chooses the neighbour in the own zone to ask for an object's bytes, and avoids neighbours that fail.

A neighbour is trusted no more than the store: its bytes are checked against the link like any others. It gets a quarter
of the time that a response has. After that, or at once if it refuses or is gone, the range is read from the store. A
neighbour that failed repeatedly is avoided for a while (`CircuitBreaker`), one that gave wrong bytes for longer
(`LinkRest`). The next reader of the zone takes its place for all that notice this.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace

import structlog

from plugin.errors import defect_site
from replication.follower.follower_context import FollowerContext
from replication.follower.neighbours.neighbour_connection import (
    NeighbourConnection,
    RangeAlteredError,
    RangeRefusedError,
)
from replication.follower.range_cache import CachedRange
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link_defects import LinkRest
from replication.wire.peer_connection import KnownPeers, connect_framed, exchange_hellos
from replication.wire.peer_protocol import PeerCapabilities, PeerRefusedError
from replication.wire.shared_reads import ZoneReading

log = structlog.get_logger(__name__)

_SHARE_OF_TIMEOUT = 4
GIVEN = "given"


class _Neighbour:
    def __init__(self, connection: NeighbourConnection) -> None:
        self.connection = connection
        self.breaker = CircuitBreaker(BreakerLimits())
        self.rest = LinkRest()


class Neighbours:
    """The agents of the own zone. Used from the event loop only."""

    def __init__(self, context: FollowerContext, peers: KnownPeers, is_near: Callable[[int], bool]) -> None:
        """`is_near` says whether a broker is in the own zone."""
        self._context = context
        self._peers = peers
        self._is_near = is_near
        self._hello = replace(context.hello, capabilities=PeerCapabilities.RANGES)
        self._metrics = context.metrics.shared_reads
        self._known: dict[int, _Neighbour] = {}

    @property
    def own_id(self) -> int:
        """The id of the own broker."""
        return self._hello.broker_id

    def reader(self, zone: ZoneReading) -> int | None:
        """Return the first reader that may be asked, which may be our own broker; None if there is none."""
        now_s = self._context.clock()
        for broker_id in zone.readers:
            if broker_id == self.own_id:
                return broker_id
            if broker_id not in self._peers or not self._is_near(broker_id):
                continue
            neighbour = self._neighbour(broker_id)
            if neighbour.rest.is_over(now_s) and neighbour.breaker.allows(now_s):
                return broker_id
        return None

    async def ask(self, neighbour: int, wanted: CachedRange, read: tuple[int, int]) -> bytes | None:
        """Return the range; None if it must be read from the store. Errors are counted, not raised."""
        one = self._neighbour(neighbour)
        try:
            async with asyncio.timeout(self._context.limits.hydration_timeout_s / _SHARE_OF_TIMEOUT):
                data = await one.connection.ask(wanted, read)
        except TimeoutError:
            self._failed(neighbour, "slow", "no answer in time")
        except RangeRefusedError as error:
            self._failed(neighbour, "refused", str(error))
        except (RangeAlteredError, MalformedFrameError) as error:
            self._failed(neighbour, "altered", str(error))
            self._rest(neighbour)
        except (OSError, ssl.SSLError, PeerRefusedError) as error:
            self._failed(neighbour, "gone", str(error) or type(error).__name__)
        except Exception as error:  # the range is read from the store in any case
            self._failed(neighbour, "defect", defect_site(error))
            self._rest(neighbour)
        else:
            if one.breaker.succeeded():
                log.info("neighbour_asked_again", neighbour=neighbour)
            self._metrics.asked(GIVEN, len(data))
            return data
        return None

    def gave_wrong_bytes(self, neighbour: int) -> None:
        """Record that a neighbour gave bytes that differ from the leader's."""
        self._metrics.asked("wrong")
        self._rest(neighbour)

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(one.connection.close() for one in self._known.values()))

    def _failed(self, neighbour: int, outcome: str, detail: str) -> None:
        self._metrics.asked(outcome)
        if self._neighbour(neighbour).breaker.failed(self._context.clock()):
            log.warning("neighbour_left_alone", neighbour=neighbour, reason=outcome, detail=detail)

    def _rest(self, neighbour: int) -> None:
        rest_s = self._neighbour(neighbour).rest.begin(self._context.clock())
        if rest_s:
            log.error("neighbour_gave_wrong_bytes", neighbour=neighbour, not_asked_for_s=rest_s)

    def _neighbour(self, broker_id: int) -> _Neighbour:
        if broker_id not in self._known:
            self._known[broker_id] = _Neighbour(NeighbourConnection(lambda: self._connect(broker_id)))
        return self._known[broker_id]

    async def _connect(self, broker_id: int) -> FramedConnection:
        context, address = self._context, self._peers.get(broker_id)
        if address is None:
            raise PeerRefusedError(f"broker {broker_id}'s agent is not known any more")
        limits = context.limits
        connection = FramedConnection(limits.max_response_bytes, limits.frame_timeout_s, budget=context.budget)
        try:
            await connect_framed(address, connection, context.tls())
            if PeerCapabilities.RANGES not in await exchange_hellos(connection, self._hello, broker_id):
                raise PeerRefusedError(f"broker {broker_id}'s agent gives no ranges")
        except BaseException:
            connection.abort()
            self._peers.failed(broker_id, address)
            raise
        self._peers.answered(broker_id, address)
        log.info("neighbour_connected", neighbour=broker_id)
        return connection
