"""What becomes of the archive's store, of reads for the archive, and of who writes to it."""

import asyncio

from tests.simulation import agent_events
from tests.simulation.archive.agent_archive import AgentArchive
from tests.simulation.archive.seeded_archive_storage import SeededArchiveStorage
from tests.simulation.replicas.replica_storage import READ_MODES, ReplicaStorage
from tests.simulation.seeded_storage import AWAY, FLAKY, HANGING, HEALTHY, SLOW
from tests.simulation.world import BROKERS, World

_LOOK_S, _LOOKS = 0.05, 60


def store(storage: SeededArchiveStorage, number: int) -> None:
    storage.mode = (HEALTHY, HEALTHY, FLAKY, SLOW, HANGING, AWAY)[number % 6]


def reads(sources: ReplicaStorage, number: int) -> None:
    sources.read_mode = READ_MODES[number % len(READ_MODES)]


async def crash(world: World, archives: dict[int, AgentArchive], number: int) -> None:
    """In the middle of a write, if one begins soon."""
    for _ in range(_LOOKS):
        for at, broker in enumerate(BROKERS):
            if broker in archives and archives[broker].is_writing:
                await agent_events.crash(world, at | number >> 1 << 1)
                return
        await asyncio.sleep(_LOOK_S)
