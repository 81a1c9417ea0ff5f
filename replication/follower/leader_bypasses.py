"""The routes past dead agents: one for each leader whose broker has a listener for that.

They follow the leaders that this agent stands in for; a new route serves connections from then on.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from replication.follower.leader_bypass import AgentWay, Bypass, LeaderBypass
from replication.wire.broker_requests import BrokerRequests
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address


class LeaderBypasses(Mapping[int, LeaderBypass]):
    """The bypasses by broker id. Use it in the event loop; `stop` ends it."""

    def __init__(
        self,
        bypass: Bypass | None,
        way_of: Callable[[int], AgentWay],
        metrics: ReplicationMetrics,
        requests: BrokerRequests,
    ) -> None:
        """`bypass` is None if there is never a bypass. `way_of` returns the normal route to a leader."""
        self._bypass = bypass
        self._way_of = way_of
        self._metrics = metrics
        self._requests = requests
        self._bypasses: dict[int, LeaderBypass] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}

    def learned(self, registered: Mapping[int, Address]) -> None:
        """Replace the listeners that brokers' agents have registered. Takes effect with `keep_to`."""
        if self._bypass is not None and self._bypass.takes_registered:
            self._bypass.registered.clear()
            self._bypass.registered.update(registered)

    def keep_to(self, leader_ids: Iterable[int]) -> None:
        """Have a bypass for each of these leaders whose broker can be reached, and for no others."""
        bypass = self._bypass
        wanted = {one for one in leader_ids if bypass is not None and bypass.way_to(one) is not None}
        for broker_id in self._bypasses.keys() - wanted:
            self._watches.pop(broker_id).cancel()
            self._bypasses.pop(broker_id).end()
        if bypass is None:
            return
        loop = asyncio.get_running_loop()
        for broker_id in sorted(wanted - self._bypasses.keys()):
            made = LeaderBypass(broker_id, bypass, self._way_of(broker_id), self._metrics, self._requests)
            self._bypasses[broker_id] = made
            self._watches[broker_id] = loop.create_task(made.watch())

    @property
    def bypassed(self) -> list[int]:
        """The brokers whose agents are dead and bypassed now."""
        return sorted(one for one, bypass in self._bypasses.items() if bypass.is_bypassed)

    async def stop(self) -> None:
        """Stop probing agents. The connections belong to their owner."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    def __getitem__(self, broker_id: int) -> LeaderBypass:
        return self._bypasses[broker_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._bypasses)

    def __len__(self) -> int:
        return len(self._bypasses)
