"""Gateways: they store what clients produce before its leader has it, and delete what no log wants.

What is offered to the leader's agent, and what is swept, is the product's own (`AdoptableRecords`, `RouterSweep`,
`WantedObjects`, `UnpublishedSegments`). A gateway hears of an outcome only while the agent lives and the client is
connected; of all else it keeps its hands off.
"""

import asyncio
import random
from collections import Counter
from functools import partial
from itertools import count
from typing import Protocol

from gateway.produce.router_channel import RouterSweep
from gateway.router_uploads import KnownNames, WantedObjects
from plugin.adopted_records import STAMPS, BatchSource
from plugin.blob_storage import StoredBlob
from plugin.errors import RemoteStorageError
from plugin.router_object_id import ROUTER_KIND, RouterObjectId, epoch_of
from plugin.store_loop import ask, ask_each
from rlm.lifecycle.unpublished_segments import UnpublishedSegments
from rlm.write_path.uploads.adoptable_records import Offer
from tests.kafka_log.log_writer import WrittenBatch
from tests.simulation.adoption.adoptable_storage import AdoptableStorage
from tests.simulation.agent_model import AgentModel
from tests.simulation.led_log import LedLog
from tests.simulation.virtual_time import VirtualTimeLoop

NEAR_S = 12.0
"""Longer than offers are kept and an upload takes, but for agents that stand still."""
KEEP_S = 20.0
"""At times shorter than a topic cannot be written to."""
_LOOK_AGAIN_S, _SWEEP_S = 0.25, 5.0
_GATEWAY = 9


class WorldParts(Protocol):
    loop: VirtualTimeLoop
    agents: dict[int, AgentModel]
    incarnations: Counter[int]
    """By broker whose agent has ever run."""

    def wall_ms(self) -> int: ...

    def hit(self, fault: str) -> None: ...

    def random(self, name: str) -> random.Random: ...


class Gateways:
    def __init__(self, world: WorldParts, storage: AdoptableStorage) -> None:
        self._world, self._storage = world, storage
        self._rng = world.random("gateways")
        self._sequence = count()
        self._leaders: dict[RouterObjectId, AgentModel] = {}
        """Of objects whose outcome is not told yet: who is to tell it, while the client is connected."""
        self._sweep = RouterSweep(self._is_live, KEEP_S)
        self.defect: BaseException | None = None
        """What has ended `run`."""

    def produced(self, log: LedLog, written: WrittenBatch) -> None:
        """A client of another zone has, or one of the leader's."""
        rng, agent = self._rng, self._world.agents.get(log.leader)
        if agent is None or rng.random() < 0.3:
            return
        object_id = RouterObjectId(_GATEWAY, 1, epoch_of(self._world.wall_ms()), next(self._sequence))
        content, before = bytearray(written.raw), bytes(rng.choice((0, 30)))
        for start, size in STAMPS:
            content[start : start + size] = bytes(size)
        if rng.random() < 0.1:
            content[-1] ^= 0xFF
            self._world.hit("other bytes offered")
        ask(self._storage.router.put_blob(object_id.blob_name, before, bytes(content)))
        self._leaders[object_id] = agent
        source, now_s = BatchSource(object_id, b""), self._world.loop.time()
        tell = partial(self._told, object_id)
        offer = agent.adoptable.offer(source, len(before), bytes(content), [len(content)], now_s, tell)
        if offer is None:
            self._told(object_id, adopted=False)
            return
        self._world.loop.call_later(rng.uniform(0, 0.5), self._answered, agent, offer)
        if rng.random() < 0.3:
            self._world.loop.call_later(rng.uniform(0.5, 5), self._leaders.pop, object_id, None)

    def _answered(self, agent: AgentModel, offer: Offer) -> None:
        agent.adoptable.answered(offer, self._world.loop.time())

    def _is_live(self, object_id: RouterObjectId) -> bool:
        agent = self._leaders.get(object_id)
        return agent is not None and agent.is_living

    def _told(self, object_id: RouterObjectId, adopted: bool) -> None:
        if self._leaders.pop(object_id, None) is None:
            return
        if adopted:
            self._world.hit("adopted")
            return
        try:
            ask(self._storage.router.delete_blob(StoredBlob(object_id.blob_name, 0)))
        except RemoteStorageError:
            self._world.hit("a gateway's deletion fails")

    async def run(self) -> None:
        """Outcomes are told and what is left is swept, until it is cancelled."""
        try:
            await self._go_on()
        except Exception as defect:
            self.defect = defect

    async def _go_on(self) -> None:
        swept_s = self._world.loop.time()
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            now_s = self._world.loop.time()
            for agent in self._world.agents.values():
                agent.adoptable.look_again(now_s)
            if now_s - swept_s >= _SWEEP_S:
                swept_s = now_s
                self._sweep_once()

    def _sweep_once(self) -> None:
        """By what one agent knows: of the oldest, as any of them sweeps for all."""
        agents = list(self._world.agents.values())
        if not agents:
            return
        wanted, agent = WantedObjects(int(NEAR_S * 1000)), self._rng.choice(agents)
        untold = UnpublishedSegments(self._storage, agent.store, lambda: self._world.incarnations)
        wanted.arrived(KnownNames(agent.store.find_adopters, untold.stored_ms, agent.consumption.read_to_end, str))
        dead = self._sweep.dead(list(ask_each(self._storage.router.list_blobs(ROUTER_KIND))), self._world.loop.time())
        try:
            unwanted = wanted.find_unwanted(dead)
        except RemoteStorageError:
            return
        for blob in unwanted:
            try:
                ask(self._storage.router.delete_blob(blob))
            except RemoteStorageError:
                continue
            self._world.hit("swept")
