"""Decides between link and inline for Produce requests: by size, price, and whether uploads are fast. Sans-IO.

A linked request costs a read and, per byte, upload and retrieval; the object, which it shares with others, costs a PUT.
An inline byte costs cross-zone traffic. So records that are too small to pay for their read never use object storage;
and what all of them save beyond that must pay for the PUT (`RouteCosts.net_bytes`), if an interval brings so
much.

A request whose leader is in the gateway's own zone does not cross zones; it is never asked for here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import NEVER_PAYS, Prices, StorePrices
from replication.wire.circuit_breaker import CircuitBreaker
from rlm.write_path.commit.bandwidth import RateMeter
from rlm.write_path.commit.cadence import Urgency
from rlm.write_path.commit.constants import PAYS_TIMES, RATE_S

_INLINE_S: Final = 1.0
"""Seconds inline after an interval that did not pay."""
_READERS: Final = 1
"""Readers of a request's records: only the agent beside the leader."""
_URGENCY: Final = {
    LinkPolicy.ALWAYS: Urgency.LINKS,
    LinkPolicy.COST: Urgency.PAYING_LINKS,
}


@dataclass(frozen=True, slots=True)
class RouteCosts:
    """The costs of object storage's requests, expressed as bytes across zones."""

    read_bytes: float
    """How many inline bytes cost as much as a read; inf: no linked byte saves anything."""
    put_bytes: float
    """How many inline bytes cost as much as a PUT."""

    @classmethod
    def of(cls, prices: Prices, store: StorePrices) -> Self:
        """Calculate the costs from a price table and a store's section of it."""
        together = prices.break_even_bytes(_READERS, store)
        if together == NEVER_PAYS:
            return cls(math.inf, math.inf)
        read_share = store.requests_usd(0, _READERS, 0, 0) / store.requests_usd(1, _READERS, 0, 0)
        return cls(together * read_share, together * (1 - read_share))

    def net_bytes(self, size: int) -> int:
        """Return what linking `size` record bytes saves, less their read, as inline bytes; 0: not even the read."""
        return max(int(size - self.read_bytes), 0) if self.read_bytes < math.inf else 0


class RouteDecider:
    """Decides for one gateway, because an object of the channel holds requests of all its connections.

    All times are monotonic seconds.
    """

    def __init__(
        self,
        policy: LinkPolicy,
        costs: RouteCosts,
        interval_s: float,
        breaker: CircuitBreaker,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`policy` is always or cost; `interval_s` is the time between the channel's uploads.

        `is_paused` returns whether an operator paused links here.
        """
        self._policy = policy
        self._costs = costs
        self._interval_s = interval_s
        self._breaker = breaker
        self._rate = RateMeter(RATE_S)
        self._inline_until_s = -math.inf
        self._is_paused = is_paused

    def is_linked(self, size: int, now_s: float) -> bool:
        """Whether a cross-zone request with `size` record bytes should use object storage."""
        net_bytes = self._costs.net_bytes(size)
        self._rate.add(net_bytes, now_s)
        if self._is_paused():
            return False
        is_worth = self._policy is LinkPolicy.ALWAYS or (net_bytes > 0 and self._pays(net_bytes, now_s))
        return is_worth and self._breaker.allows(now_s)

    def _pays(self, net_bytes: int, now_s: float) -> bool:
        if now_s < self._inline_until_s:
            return False
        brings = self.bytes_per_s(now_s) * self._interval_s / PAYS_TIMES
        return max(net_bytes, brings) >= self._costs.put_bytes

    def net_bytes(self, size: int) -> int:
        """Return what a request of `size` record bytes adds towards its object's PUT (`RouteCosts.net_bytes`)."""
        return self._costs.net_bytes(size)

    @property
    def urgency(self) -> Urgency:
        """How soon uploads should start, by the policy."""
        return _URGENCY[self._policy]

    def bytes_per_s(self, now_s: float) -> float:
        """Return how much requests recently added towards PUTs (`net_bytes`) in a second."""
        return self._rate.bytes_per_second(now_s)

    def judge(self, net_bytes: int, now_s: float) -> bool:
        """Return whether to upload what an interval has gathered; if not, requests go inline for a while."""
        if self._policy is LinkPolicy.ALWAYS or net_bytes >= self._costs.put_bytes:
            return True
        self._inline_until_s = now_s + _INLINE_S
        return False

    def uploaded(self) -> None:
        """Record an upload that was fast enough."""
        self._breaker.succeeded()

    def failed(self, now_s: float) -> None:
        """Record an upload that failed, or took so long that its requests went inline."""
        self._breaker.failed(now_s)
