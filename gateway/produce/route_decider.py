"""Decides between link and inline for Produce requests: by size, price, and whether uploads are fast. Sans-IO.

A linked request costs a read and, per byte, upload and retrieval; the object, which it shares with others, costs a PUT.
An inline byte costs cross-zone traffic. So records that are too small to pay for their read never use object storage;
and what all of them save beyond that must pay for the PUT (`RouteCosts.net_bytes`). `LinkDecider` decides whether an
interval brings that, as it does for followers.

A request whose leader is in the gateway's own zone does not cross zones; it is never asked for here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.prices import NEVER_PAYS, Prices, StorePrices
from replication.wire.circuit_breaker import CircuitBreaker
from rlm.write_path.commit.group_commit import Urgency
from rlm.write_path.commit.link_policy import CostLimits, LinkDecider, LinkMode

_READERS: Final = 1
"""Readers of a request's records: only the agent beside the leader."""
_URGENCY: Final = {
    LinkPolicy.ALWAYS: Urgency.LINKS,
    LinkPolicy.COST: Urgency.PAYING_LINKS,
}


@dataclass(frozen=True, slots=True)
class RouteCosts:
    """The costs of requests, in bytes across zones."""

    read_bytes: float
    """How many inline bytes cost as much as a read; inf: no linked byte saves anything."""
    put_bytes: float
    """How many inline bytes cost as much as a PUT."""

    @classmethod
    def of(cls, prices: Prices, store: StorePrices) -> Self:
        """Calculate the costs by the price table."""
        together = prices.break_even_bytes(_READERS, store)
        if together == NEVER_PAYS:
            return cls(math.inf, math.inf)
        read_share = store.requests_usd(0, _READERS, 0, 0) / store.requests_usd(1, _READERS, 0, 0)
        return cls(together * read_share, together * (1 - read_share))

    def net_bytes(self, size: int) -> int:
        """Return what a request's record bytes save towards the PUT; 0: they do not even pay for their read."""
        return max(int(size - self.read_bytes), 0) if self.read_bytes < math.inf else 0


class RouteDecider:
    """Decides for one gateway, because an object of the channel holds requests of all its connections.

    All times are monotonic seconds.
    """

    def __init__(self, policy: LinkPolicy, costs: RouteCosts, interval_s: float, breaker: CircuitBreaker) -> None:
        """The policy is always or cost; `interval_s` is that of the channel's uploads."""
        self._policy = policy
        self._costs = costs
        self._breaker = breaker
        break_even = NEVER_PAYS if costs.put_bytes == math.inf else round(costs.put_bytes)
        self.is_paused: Callable[[], bool] = lambda: False
        """Whether an operator paused links here."""
        self._decider = LinkDecider(CostLimits(break_even, interval_s, upload_wait_max_s=interval_s))

    def is_linked(self, size: int, now_s: float) -> bool:
        """Whether a cross-zone request with so many record bytes should use object storage."""
        net_bytes = self._costs.net_bytes(size)
        self._decider.appended(net_bytes, now_s, now_s)
        if self.is_paused() or (not net_bytes and self._policy is not LinkPolicy.ALWAYS):
            return False
        mode = self._decider.choose_mode(self._policy, 0, net_bytes, now_s)
        return mode is LinkMode.LINK and self._breaker.allows(now_s)

    def net_bytes(self, size: int) -> int:
        """Return the bytes that count towards the PUT, see `RouteCosts`."""
        return self._costs.net_bytes(size)

    @property
    def urgency(self) -> Urgency:
        """How uploads are wanted."""
        return _URGENCY[self._policy]

    @property
    def paying_bytes(self) -> float:
        """The net bytes from which on an object pays."""
        return self._costs.put_bytes

    def expected_bytes(self, now_s: float) -> float:
        """Return the net bytes that an interval brings at the recent rate."""
        return self._decider.expected_bytes(now_s)

    def judge(self, net_bytes: int, now_s: float) -> bool:
        """Whether to upload what an interval has brought; if not, requests go inline for a while."""
        if self._policy is LinkPolicy.ALWAYS:
            return True
        if self._decider.pays(net_bytes):
            self._decider.producers.did_well()
            return True
        self._decider.did_not_pay(now_s)
        return False

    def uploaded(self, duration_s: float) -> None:
        """Record that an upload took so long, and was not slow."""
        self._decider.uploaded(duration_s)
        self._breaker.succeeded()

    def failed(self, now_s: float) -> None:
        """Record that an upload failed, or that requests did not wait for it any longer."""
        self._breaker.failed(now_s)
