"""Two clusters with one id and one bucket, on every backend: one of them stops."""

import time
from collections.abc import Collection
from itertools import count

from metadata_topic.settings.settings_records import LeaseValue
from plugin.remote_wal_storage_manager import blobs_of
from plugin.wall_clock import wall_ms
from rlm.lifecycle.lease import KnownLeases, Lease
from tests.plugin.storage_backends import Backend


class Cluster:
    """Its settings topic, and its agents, each with a connection of its own."""

    def __init__(self, backend: Backend, past: Collection[LeaseValue] = ()) -> None:
        self.backend = backend
        self.topic = set(past)

    def read(self) -> KnownLeases:
        return KnownLeases(frozenset(self.topic))

    def record(self, lease: LeaseValue) -> None:
        self.topic.add(lease)

    def agent(self, values: "count[int]") -> Lease:
        blobs = blobs_of(self.backend.manager(), "renew", "lease")
        return Lease(blobs, self, lambda: f"value-{next(values)}", time.monotonic)


def test_a_clone_and_its_original_do_not_both_go_on(backend: Backend) -> None:
    values = count()
    original = Cluster(backend)
    agents = [original.agent(values) for _ in range(2)]
    for agent in (*agents, *agents):
        agent.look()
    assert all(agent.may_delete and agent.lost_because is None for agent in agents)
    assert all(abs(agent.host_is_ahead_ms(wall_ms())) < 5000 for agent in agents), "store and test share a clock"

    clone = Cluster(backend, original.topic)
    cloned = clone.agent(values)
    cloned.look()  # renews
    assert states([cloned]) == [(False, True)]
    for agent in agents:
        agent.look()
    assert states(agents) == [(True, False)] * 2

    original.agent(values).take()
    for agent in (cloned, *agents):
        agent.look()
    assert states([cloned]) == [(True, False)]
    assert [is_lost for is_lost, _ in states(agents)] == [False] * 2


def states(agents: Collection[Lease]) -> list[tuple[bool, bool]]:
    """Whether each has lost the lease, and whether it deletes."""
    return [(agent.lost_because is not None, agent.may_delete) for agent in agents]
