"""Waits until transactions' markers are stored: asks where logs end, then asks their leaders.

The ends are asked for after the markers were acknowledged with acks=all, so the markers lie below them. The present
leader's answer counts, whoever led when the markers were written: a clean election loses none of them. A broker or
agent that cannot be asked is asked again, until nobody waits any more.
"""

import asyncio
import math
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

import structlog

from gateway.durable.durable_logs import DurableLogs
from gateway.durable.ended_transactions import Partitions
from gateway.durable.held_transactions import LetGo
from gateway.durable.log_asking import NothingHeldError
from gateway.durable.log_question import MAX_LOGS, LogUpTo
from gateway.durable.log_waits import stored_here
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.topic.log_ends import LogEnd
from plugin.errors import defect_site
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import PeerRefusedError

log = structlog.get_logger(__name__)

ROUND_S = 5.0
"""How long an agent is asked before the leader is looked up again."""
GONE_S = 5.0
"""A topic that brokers have not known for so long, at each look, is gone, and its markers with it."""
_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0

Where = tuple[str, int]


class Ends(Protocol):
    """Asks the cluster where logs end, see `metadata_topic.topic.log_ends.LogEnds`."""

    def look(self, partitions: Mapping[str, frozenset[int] | None]) -> dict[Where, LogEnd]: ...


class Agents(Protocol):
    """Asks other agents whether logs are stored, see `gateway.durable.log_asking.LogAsking`."""

    async def are_stored(self, broker_id: int, logs: Sequence[LogUpTo]) -> bool: ...


class MarkerWaits:
    """Waits for transaction markers. Use it in the event loop; `close` it."""

    def __init__(
        self,
        broker_id: int,
        logs: DurableLogs,
        ends: Ends,
        agents: Agents,
        threads: Executor,
        unasked: Callable[[], object] = lambda: None,
    ) -> None:
        """`broker_id` is the own one; `threads` are for `ends`; `unasked` is called if an agent holds no answers."""
        self._broker_id = broker_id
        self._logs = logs
        self._ends = ends
        self._agents = agents
        self._threads = threads
        self._unasked = unasked
        self._tasks: set[asyncio.Task[None]] = set()
        self.silent: frozenset[int] = frozenset()
        """Brokers whose agents hold no answers, as they said when they were last asked."""

    def wait(self, partitions: Partitions | None, tell: Callable[[], object]) -> LetGo:
        task = asyncio.get_running_loop().create_task(self._wait(partitions, tell))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task.cancel

    async def close(self) -> None:
        """Stop all waiting, and tell nobody."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _wait(self, partitions: Partitions | None, tell: Callable[[], object]) -> None:
        pause_s = _PAUSE_S
        one: _Wait | None = None
        while True:
            if one is None and (durable := self._logs.durable) is not None:
                one = _Wait(_wanted(partitions, durable))
            if one is not None:
                try:
                    await self._look(one)
                except Exception as defect:  # it is tried again
                    log.error("marker_wait_defect", defect=defect_site(defect))
                if one.is_over:
                    tell()
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _look(self, one: "_Wait") -> None:
        """Ask about all logs that are not known to be stored."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, self._ends.look, one.find_unstored())
        except KafkaClusterError as error:
            log.info("log_ends_unknown", error=str(error))
            return
        one.learned(found, loop.time())
        questions = [
            (leader, logs[begin : begin + MAX_LOGS])
            for leader, logs in one.by_leader(found).items()
            for begin in range(0, len(logs), MAX_LOGS)
        ]
        answers = await asyncio.gather(*(self._ask(leader, logs) for leader, logs in questions))
        for (_, logs), are_stored in zip(questions, answers, strict=True):
            if are_stored:
                one.stored(logs)

    async def _ask(self, leader: int, logs: list[LogUpTo]) -> bool:
        try:
            async with asyncio.timeout(ROUND_S):
                if leader == self._broker_id:
                    return await stored_here(self._logs, logs)
                are_stored = await self._agents.are_stored(leader, logs)
        except NothingHeldError as error:
            self._untold(leader, str(error))
            return True
        except TimeoutError:
            return False
        except (OSError, ssl.SSLError, PeerRefusedError, MalformedFrameError) as error:
            log.info("agent_not_asked_for_markers", broker=leader, error=str(error) or type(error).__name__)
            return False
        self.silent -= {leader}
        return are_stored

    def _untold(self, leader: int, why: str) -> None:
        self._unasked()
        if leader not in self.silent:
            log.warning("markers_not_waited_for", broker=leader, reason=why)
        self.silent |= {leader}


def _wanted(partitions: Partitions | None, durable: frozenset[str]) -> dict[str, frozenset[int] | None]:
    """Return the wanted partitions of durable topics, by topic; None for all partitions of a topic."""
    if partitions is None:
        return dict.fromkeys(durable)
    topics = {topic for topic, _ in partitions} & durable
    return {one: frozenset(partition for topic, partition in partitions if topic == one) for one in topics}


class _Wait:
    """What one transaction waits for."""

    def __init__(self, wanted: Mapping[str, frozenset[int] | None]) -> None:
        """`wanted` has partitions by topic; None for all partitions of a topic."""
        self._unresolved = {topic for topic, ones in wanted.items() if ones is None}
        """Topics whose partitions are not known."""
        self._left = {(topic, one) for topic, ones in wanted.items() for one in ones or ()}
        """Partitions that are not known to be stored."""
        self._ends: dict[Where, int] = {}
        """Where logs ended when that was first told: markers lie below."""
        self._missing_since_s: dict[Where | str, float] = {}
        """When brokers first did not know a partition, or an unresolved topic, since they last knew it."""

    @property
    def is_over(self) -> bool:
        return not self._unresolved and not self._left

    def find_unstored(self) -> dict[str, frozenset[int] | None]:
        """Return the partitions that are not known to be stored, by topic; None for all partitions of a topic."""
        by_topic = defaultdict[str, set[int]](set)
        for topic, partition in self._left:
            by_topic[topic].add(partition)
        return {**dict.fromkeys(self._unresolved), **{topic: frozenset(ones) for topic, ones in by_topic.items()}}

    def learned(self, found: Mapping[Where, LogEnd], now_s: float) -> None:
        """Note the logs' ends that the cluster says. What it has not known for `GONE_S` is gone.

        One answer does not tell that: a broker may know less than the others.
        """
        for where, end in found.items():
            if where[0] in self._unresolved:
                self._left.add(where)
            if end.end_offset is not None:
                self._ends.setdefault(where, end.end_offset)
        self._unresolved -= {topic for topic, _ in found}
        missing: set[Where | str] = {*self._unresolved, *(self._left - found.keys())}
        gone = {one for one in missing if now_s - self._missing_since_s.get(one, math.inf) >= GONE_S}
        self._missing_since_s = {one: self._missing_since_s.get(one, now_s) for one in missing - gone}
        self._unresolved.difference_update(gone)
        self._left.difference_update(gone)

    def by_leader(self, found: Mapping[Where, LogEnd]) -> dict[int, list[LogUpTo]]:
        """Return the logs to ask about, up to their noted ends, by leader."""
        asked = defaultdict[int, list[LogUpTo]](list)
        for where in sorted(self._left & found.keys()):
            if where in self._ends and found[where].leader_id >= 0:
                asked[found[where].leader_id].append(LogUpTo(*where, self._ends[where]))
        return asked

    def stored(self, logs: Iterable[LogUpTo]) -> None:
        """Note that all of these logs are stored."""
        self._left -= {(topic, partition) for topic, partition, _ in logs}
