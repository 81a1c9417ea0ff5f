"""Records pass through every failure of links and of the store, and nothing of them is told: not in the log, not in
metrics, not in an error.
"""

import struct
from collections.abc import Callable
from typing import NoReturn

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks
from plugin.wrappers.guarded_storage import GuardedStorageManager
from replication.follower import hydrated_responses
from replication.leader import response_links
from replication.leader.link_planner import LinkPlanner
from replication.wire.link import encode_linked_response
from rlm.write_path.metrics import WriteMetrics
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem
from tests.kafka_log.batches import batches
from tests.replication.two_agents import Agents, framed, two_agents
from tests.rlm.memory_storage import MemoryPublisher, MemoryStorage
from tests.rlm.test_combine_task import item

MARKER = b"words-of-a-record"
Fault = Callable[[Agents, pytest.MonkeyPatch], None]


def raise_with(*contents: object, **_: object) -> NoReturn:
    raise KeyError("a defect that shows what it was given", MARKER, contents)


def broken(owner: object, name: str) -> Fault:
    return lambda _, patch: patch.setattr(owner, name, raise_with)


def broken_storage(agents: Agents, _: pytest.MonkeyPatch) -> None:
    agents.storage.corrupt = raise_with


def altered(agents: Agents, _: pytest.MonkeyPatch) -> None:
    agents.storage.corrupt = lambda data: data.replace(MARKER, MARKER.upper())


def cut(agents: Agents, _: pytest.MonkeyPatch) -> None:
    agents.storage.corrupt = lambda data: data[:-5]


def garbled(_: Agents, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(response_links, "encode_linked_response", lambda linked: [MARKER, *encode_linked_response(linked)])


def no_frame(agents: Agents, _: pytest.MonkeyPatch) -> None:
    agents.broker.answer = lambda frame: frame[4:8] + MARKER * 20


@pytest.mark.parametrize(
    "fault",
    [
        broken(LinkPlanner, "begin"),
        broken(LinkPlanner, "decide"),
        broken(response_links, "encode_linked_response"),
        broken(hydrated_responses, "decode_linked_response"),
        broken(hydrated_responses, "splice"),
        broken_storage,
        altered,
        cut,
        garbled,
        no_frame,
    ],
)
async def test_no_failure_of_links_tells_anything_of_a_record(
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two_agents() as agents:
        agents.append({0: batches(2, 0, payload=MARKER)})
        fault(agents, monkeypatch)
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is not None
        metrics = b"".join(generate_latest(each.registry) for each in (agents.leader_metrics, agents.follower_metrics))
    told = "".join(capsys.readouterr()) + caplog.text + metrics.decode()
    assert "peer_connected" in told
    assert MARKER.decode() not in told
    assert MARKER.decode().upper() not in told


WORDS = MARKER * 3
REFUSED = {
    "DeleteTopics": framed(struct.pack(">hhih", 20, 6, 7, 1) + b"x\0\2\0" + bytes([len(MARKER) + 1]) + MARKER),
    "no API of Kafka's": framed(struct.pack(">hhih", 999, 0, 7, len(MARKER)) + WORDS),
    "a Fetch that is none": framed(struct.pack(">hhih", 1, 12, 7, len(MARKER)) + WORDS),
    "a hello that is none": framed(b"RWAL" + WORDS),
    "no frame": WORDS,
    "a request of HTTP": b"POST / HTTP/1.1\r\n\r\n" + WORDS,
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("listener", ["peer", "replica"])
async def test_no_refusal_of_what_is_sent_tells_anything_of_it(
    sent: bytes, listener: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with two_agents() as agents:
        asker = await agents.connect(agents.leader_address if listener == "peer" else agents.follower_address)
        asker.writer.write(sent)
        asker.writer.write_eof()
        assert WORDS not in (await asker.reader.read() or b"")
        await agents.until(lambda: not agents.leader.connections)
        metrics = b"".join(generate_latest(each.registry) for each in (agents.leader_metrics, agents.follower_metrics))
    told = "".join(capsys.readouterr()) + caplog.text + metrics.decode()
    assert "remote_wal_faults_total" in told
    assert MARKER.decode() not in told


async def test_no_failure_of_an_upload_tells_anything_of_a_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late, real = GuardedStorageManager(), MemoryStorage()
    late.arrived(real)
    monkeypatch.setattr(real, "copy_log_segment_data", raise_with)
    clocks = Clocks(lambda: 5.0, lambda: 1_700_000_000_000)
    metrics = WriteMetrics(CollectorRegistry())
    for storage in (late, real):
        task = RLMWalCombineTask(storage, MemoryPublisher(), CombinedSegmentId(1, 2, 0), metrics, clocks)
        assert await task.combine([item(0)]) is None
        task.close()
    told = "".join(capsys.readouterr())
    assert told.count("upload_failed") == 2
    assert MARKER.decode() not in told


def test_an_item_shows_no_records_of_its_own() -> None:
    """Whoever puts one into a log event by mistake."""
    made = item(0)
    shown = MetaQueueItem(made.topic_id_partition, made.batches, memoryview(MARKER), 0.0, 0.0)
    assert MARKER.decode() not in repr(shown)
