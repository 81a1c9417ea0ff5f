"""Bytes that no honest peer sends, to the listeners of an agent that replicates meanwhile."""

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from local_cluster.layout import ClusterLayout
from local_cluster.polling import wait_until
from tests.cluster.agent_views import FAULTS, RESIDENT_BYTES, AgentCounters, read_metrics
from tests.cluster.script import PATIENCE_S, PLAIN, Script

VICTIM, ANOTHER = 1, 2
MIB = 1024 * 1024
GROWTH_BYTES = 24 * MIB
"""What the victim's memory may grow by with all these connections; each of the sizes claimed is far beyond it."""

NEGATIVE = struct.pack(">i", -1)
ZERO = struct.pack(">i", 0)
HUGE = struct.pack(">i", 2**31 - 1) + b"\0" * 1000
ABOVE_THE_LIMIT = struct.pack(">i", 101 * MIB) + b"\0" * 1000
UNFINISHED = struct.pack(">i", 99 * MIB) + b"\0" * 1000

Address = tuple[str, int]


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def fetch_request(topics: bytes) -> bytes:
    """Fetch v17 from a replica's fetcher, up to its topics. Source: Kafka's protocol, request header v2."""
    client_id = b"broker-2-fetcher-0"
    header = struct.pack(">hhih", 1, 17, 7, len(client_id)) + client_id + b"\0"
    return header + struct.pack(">iiibii", 500, 1, MIB, 0, 0, 0) + topics


ABSURD_COUNTS = framed(fetch_request(b"\xff\xff\xff\xff\x07" + b"\0" * 100))
ABSURD_VARINT = framed(fetch_request(b"\xff" * 100))


def peer_listener(layout: ClusterLayout) -> Address:
    host, _, port = layout.peer_address(VICTIM).rpartition(":")
    return host, int(port)


def replica_listener(layout: ClusterLayout) -> Address:
    """Where the victim poses as the other broker."""
    return layout.agent_replica_host(VICTIM), layout.replica_port(ANOTHER)


@contextmanager
def connected(address: Address, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        yield connection


def expect_to_be_closed(address: Address, data: bytes) -> None:
    with connected(address, data) as connection:
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            return


@pytest.mark.gate
def test_hostile_frames_close_their_connection_and_nothing_else(agent_script: Script) -> None:
    script = agent_script
    layout = script.cluster.layout
    script.create_topic(assignment=[[VICTIM, ANOTHER, 3]])
    script.produce(PLAIN)
    script.expect_links_to_be_used()
    counters = AgentCounters(script.cluster, [VICTIM])
    before = read_metrics(script.cluster, VICTIM)[RESIDENT_BYTES, ()]
    noise = random.Random(8)

    with script.without_a_shrinking_isr(), ExitStack() as held:
        # connections that say nothing, and frames that never end, stay open beside all the rest
        for _ in range(30):
            held.enter_context(connected(peer_listener(layout)))
        for _ in range(10):
            held.enter_context(connected(replica_listener(layout)))
            held.enter_context(connected(peer_listener(layout), UNFINISHED))
            held.enter_context(connected(replica_listener(layout), UNFINISHED))

        for address, side in ((peer_listener(layout), "peer"), (replica_listener(layout), "broker")):
            for frame, reason in (
                (NEGATIVE, "negative"),
                (ZERO, "zero"),
                (HUGE, "too_large"),
                (ABOVE_THE_LIMIT, "too_large"),
            ):
                seen = counters.growth(FAULTS, reason=f"{side}_frame_{reason}")
                expect_to_be_closed(address, frame)
                wait_until(
                    lambda: counters.growth(FAULTS, reason=f"{side}_frame_{reason}") > seen,  # noqa: B023
                    f"{side}_frame_{reason} is counted",
                    PATIENCE_S,
                )
        everywhere = AgentCounters(script.cluster)
        attacks = [
            ABSURD_COUNTS,
            ABSURD_VARINT,
            *(framed(noise.randbytes(noise.randrange(1, 3000))) for _ in range(20)),
        ]
        for frame in attacks:
            for address in (peer_listener(layout), replica_listener(layout)):
                expect_to_be_closed(address, frame)
        wait_until(
            lambda: sum(everywhere.grown_labels(FAULTS, "reason").values()) >= 2 * len(attacks),
            "each hostile frame is counted",
            PATIENCE_S,
        )
        wait_until(lambda: counters.growth(FAULTS, reason="peer_silent") >= 40, "silent peers are closed", PATIENCE_S)
        script.expect_records_to_flow()
        script.expect_links_to_be_used()
        grown = read_metrics(script.cluster, VICTIM)[RESIDENT_BYTES, ()] - before
    assert grown < GROWTH_BYTES, f"{grown / MIB:.1f} MiB"
    script.expect_promises()
