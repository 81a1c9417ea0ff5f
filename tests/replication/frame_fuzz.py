"""Mutated frames, as many as are wanted: `python -m tests.replication.frame_fuzz 1000000 [SEED]`.

Whole frames of kafka-python's codec, of ours, and of real brokers (`captured_requests`) are cut, joined and changed,
most often where counts and sizes stand. Whatever comes of it is read or refused: no other error, no memory beyond a
bound, no more steps than a frame of this size may take, and no replica that Kafka would see otherwise.
"""

import logging
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress

import structlog

from kafka_log.crc32c import crc32c
from replication.leader.follower_offsets import WatermarkTimes
from replication.leader.leader_relay import OwnFetches
from replication.leader.relay_core import RelayCore
from replication.wire.broker_requests import RequestRefusedError
from replication.wire.fetch_frame import replica_of, scan_fetch_request, scan_fetch_response
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.link import Cut, LinkedResponse, SegmentLink, decode_linked_response, encode_linked_response
from replication.wire.peer_protocol import CAPABILITIES, Announcement, Hello
from tests.kafka_log.batches import batches
from tests.replication.captured_requests import captured
from tests.replication.fetch_frames import VERSIONS, request, response
from tests.replication.replicas_of_frames import replica, replica_for_kafka
from tests.replication.test_link import SEGMENT
from tests.replication.test_relay_core import Rig

MAX_BYTES_FOR_ONE = 4 * 1024 * 1024
EDGES = (0, 1, 2, 0x0F, 0x7F, 0x80, 0xFF)
Read = Callable[[bytes, int], object]
FUZZED = Rig()


def linked(raw: bytes) -> bytes:
    link = SegmentLink(SEGMENT, 112, len(raw), crc32c(raw), b"bucket")
    proved = SegmentLink(SEGMENT, 112 + len(raw), len(raw), crc32c(raw), b"bucket", bytes(32))
    whole = LinkedResponse(2000, (Cut(3, (link, proved)), Cut(5, ())), (b"a skeleton",))
    return b"".join(map(bytes, encode_linked_response(whole)))


def requests_of(version: int) -> Iterator[bytes]:
    for partitions in (0, 1, 40):
        for replica_id in (-1, 2, 3):
            yield request(dict.fromkeys(range(partitions), 5), version=version, replica_id=replica_id)
    yield request({0: 5}, version=version, session_epoch=1, forgotten=range(1, 20))


def seeds() -> list[tuple[Read, bytes, int]]:
    """What reads it, a whole frame, and its version."""
    raw = batches(3, 0)
    answers: list[dict[int, bytes | None]] = [{}, {0: raw, 1: b"", 2: None}, dict.fromkeys(range(30), raw)]
    found: list[tuple[Read, bytes, int]] = []
    for version in VERSIONS:
        found += [(read, frame, version) for frame in requests_of(version) for read in (requested, as_kafka_would)]
        found += [(scan_fetch_response, response(records, version=version), version) for records in answers]
    announced = Announcement(SEGMENT, ((1, 9), (20, 30)), b"bucket").encode()
    found += [(lambda frame, _: Announcement.decode(frame), announced, 0)] * 5
    found += [(lambda frame, _: Hello.decode(frame), Hello("cluster", 2, 22).encode(), 0)] * 5
    real = [frame for frames in captured().values() for frame in frames]
    found += [(asked_of_a_leader, frame, 0) for frame in real] * 3
    return found + [(lambda frame, _: decode_linked_response(frame, 100_000), linked(raw), 0)] * 20


def asked_of_a_leader(frame: bytes, _version: int) -> object:
    """All that a leader's agent does with a request of a proven peer; an error that it goes on after is a find, too."""
    rig = FUZZED
    rig.core = RelayCore(rig.context, CAPABILITIES, WatermarkTimes(rig.context.stage_times))
    try:
        for _ in OwnFetches(2, rig.metrics).check(frame):
            pass
        passed = rig.core.request(frame, rig.now_s)
        rig.core.request_sent(len(passed))
    except RequestRefusedError as error:
        raise MalformedFrameError(0, "refused") from error
    finally:
        rig.core.close()
    assert not rig.faults("link_defect_request"), frame.hex()
    return passed


def requested(frame: bytes, version: int) -> object:
    return scan_fetch_request(frame, version)


def as_kafka_would(frame: bytes, version: int) -> object:
    here, there = replica(frame, version), replica_for_kafka(frame, version)
    assert here is None or there is None or here == there, (version, frame.hex())
    steps = 0
    with suppress(MalformedFrameError):
        for _ in replica_of(frame, version):
            steps += 1
    assert steps <= len(frame), (version, frame.hex())
    return here


def mutated(frame: bytes, chosen: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(chosen.randint(1, 4)):
        at = chosen.randrange(len(changed) + 1)
        match chosen.randrange(5):
            case 0:
                changed[at : at + 1] = bytes((chosen.choice(EDGES),))
            case 1:
                changed[at : at + 1] = bytes((chosen.randrange(256),))
            case 2:
                changed[at:at] = chosen.choice((b"\xff\xff\xff\xff\x07", struct.pack(">i", -1), chosen.randbytes(9)))
            case 3:
                del changed[at : at + chosen.randint(1, 20)]
            case _:
                other = chosen.randrange(len(changed) + 1)
                changed[at:at] = changed[other : other + chosen.randint(1, 40)]
    return bytes(changed)


def fuzz(count: int, seed: int) -> int:
    """So many frames; how many of them were read. An AssertionError, or any other error, is a find."""
    chosen, known, read = random.Random(seed), seeds(), 0
    tracemalloc.start()
    try:
        for _ in range(count):
            reader, whole, version = chosen.choice(known)
            frame = mutated(whole, chosen)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with suppress(MalformedFrameError):
                reader(frame, version)
                read += 1
            assert tracemalloc.get_traced_memory()[1] - before < MAX_BYTES_FOR_ONE, (version, frame.hex())
    finally:
        tracemalloc.stop()
    return read


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    wanted, from_seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.stdout.write(f"{fuzz(wanted, from_seed)} of {wanted} frames were read, the others refused\n")
