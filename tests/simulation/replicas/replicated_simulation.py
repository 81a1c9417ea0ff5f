"""Seeded runs of replication whole: model brokers follow each other by way of the product's own agents.

Of the product are the write path and both proxies with all that they are made of, cores and shells. Models are the
brokers, the controller, the topic, the store, and the machine: time, threads, connections, and the kernel's word of
appends.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from unittest.mock import patch

from kafka_log.crc32c import Buffer
from replication.leader import fetch_waits, link_index, response_links
from replication.wire.link import LinkedResponse, encode_linked_response
from rlm.write_path.commit import cadence
from tests.simulation.plan import Event
from tests.simulation.replicas.replica_events import DO
from tests.simulation.replicas.replicated_world import BROKERS, ReplicatedWorld
from tests.simulation.seeded_storage import HEALTHY
from tests.simulation.virtual_time import run

SETTLED_WITHIN_S = 120.0
WAYS = {
    "remote_wal_fetch_responses_total": {"linked": "response linked", "inline": "response inline"},
    "remote_wal_bypass_switches_total": {"broker": "agent bypassed", "agent": "agent trusted again"},
    "remote_wal_shared_bytes_total": {"received": "bytes of a neighbour"},
    "remote_wal_shared_ranges_total": {
        "slow": "neighbour slow",
        "gone": "neighbour gone",
        "refused": "neighbour refuses",
        "wrong": "neighbour gave wrong bytes",
    },
    "remote_wal_faults_total": {
        "inline_requested_corrupt": "wrong bytes refused",
        "inline_requested_not_found": "object missed",
        "inline_requested_timeout": "object late",
        "splice_refetch": "wrong bytes read again",
        "link_wait_timeout": "link waited for in vain",
        "links_paused": "links paused",
        "links_resumed": "links resumed",
        "stale_response": "response too late",
        "peer_silent": "peer silent",
        "peer_unreachable": "peer unreachable",
        "broker_unreachable": "broker unreachable",
    },
}
"""What the proxies count, by metric and label."""


class ReplicatedSimulation(ReplicatedWorld):
    def run(self, events: Sequence[Event]) -> None:
        """Raises AssertionError where an invariant is broken."""
        bulk_bytes = 200 if self.seed // 8 % 2 else fetch_waits.BULK_BYTES
        newest_objects = 4 if self.seed // 16 % 2 else 40

        def encoded(response: LinkedResponse) -> list[Buffer]:
            self.checked(lambda: self.invariants.linked(response))
            return encode_linked_response(response)

        with (
            patch.object(response_links, "encode_linked_response", encoded),
            patch.object(cadence, "OBJECT_BYTES", 4 * bulk_bytes),
            patch.object(fetch_waits, "BULK_BYTES", bulk_bytes),
            patch.object(link_index, "_NEWEST_OBJECTS", newest_objects),
        ):
            run(self.loop, self.live(events))

    def begin(self) -> None:
        for broker in BROKERS:
            self.start_broker(broker)
            self.start_agent(broker)

    def in_the_midst(self) -> None:
        """Nothing more than after each event."""

    def do(self, kind: str, number: int) -> Awaitable[None] | None:
        return DO[kind](self, number)

    async def settle(self) -> None:
        """Replicas are equal and in sync, and all is stored."""
        self.storage.read_mode = HEALTHY
        self.network.slowest_s = 0.002
        self.network.join()
        for process in sorted(self.paused):
            self.resume(process)
        until_s = self.loop.time() + SETTLED_WITHIN_S
        while True:
            for broker in BROKERS:
                if broker not in self.brokers:
                    self.start_broker(broker)
                self.controller.heard(broker)
                if broker not in self.agents:
                    self.start_agent(broker)
                self.tell_later(self.agents[broker], 0.0)
            await asyncio.sleep(2.5)
            self.look()
            if not (left := self._unsettled()):
                break
            assert self.loop.time() < until_s, f"replication does not come to an end: {left}"
        for broker in BROKERS:
            self.count(self.agents[broker])
            await self.agents[broker].stop(1.0)
            self.brokers[broker].crash()
        self._count_ways()

    def _unsettled(self) -> list[str]:
        left = []
        for number, leadership in enumerate(self.controller.partitions):
            found = self.leader_of(number)
            if found is None:
                left.append(f"{number} is led by nobody")
                continue
            leader = found[1]
            ends = {broker: self.replicas[broker][number].end for broker in BROKERS}
            if set(ends.values()) != {leader.end} or leader.high_watermark != leader.end:
                left.append(f"{number} ends at {ends}, and is known up to {leader.high_watermark}")
            if leadership.isr != frozenset(BROKERS):
                left.append(f"{number} is in sync at {sorted(leadership.isr)}")
            uploaded = self.agents[leadership.leader].writing.manager.uploaded_offset(leader.files.partition)
            if uploaded != leader.end:
                left.append(f"{number} is uploaded to {uploaded} of {leader.end}")
            if not left:
                self._equal(number)
        agents = self.agents.values()
        return left + [f"{len(a.writing.publication)} unpublished" for a in agents if a.writing.publication]

    def _equal(self, number: int) -> None:
        replicas = [self.replicas[broker][number] for broker in BROKERS]
        start = max(replica.start for replica in replicas)
        logs = {
            b"".join(b.raw for b in replica.batches_from(start) if not self.invariants.is_compacted(number, b.key))
            for replica in replicas
        }
        assert len(logs) == 1, f"the replicas of {number} differ"

    def _count_ways(self) -> None:
        for family in self.replication_metrics.registry.collect():
            for sample in family.samples:
                met = WAYS.get(sample.name, {}).get(next(iter(sample.labels.values()), ""))
                if met is not None:
                    self.hits[met] += int(sample.value)
