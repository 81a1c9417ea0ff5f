"""A leader, its agent, a store and a follower in virtual time, driven by one seed.

Every step lets one actor act: append, read the log's tail, begin or end an upload, fetch, hand over leadership, crash
the agent, lose an object. The store fails before or after its effect, and reads come back short, wrong or not at all.
No sockets and no threads: the sans-IO parts are the real ones (queue, group commit, decider, index, planner, link,
splicer, the metadata store, and what it says of where an upload goes on).

What is stored is told in a metadata topic, in the order of the objects; an agent that crashes takes along what it has
not told, and the next one resumes by the topic. What counts as uploaded must be stored, and at the end all of it.

A change of leadership cuts what the follower has not got, and what is appended then takes the same offsets. The agent
learns of it later, so its index lists dead batches for a while.
"""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.leader_epochs import LeaderEpochChain
from metadata_topic.records.offset_ranges import ranges_common
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_object_id import StoredObjectId
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from replication.leader.link_index import LinkIndex
from replication.leader.link_planner import LinkPlanner, PassThrough, PlannerLimits, WaitForUploads
from replication.leader.links_of_stored_batches import SendLinked
from replication.wire.fetch_frame import scan_fetch_response
from replication.wire.link import LinkedResponse, decode_linked_response, encode_linked_response
from replication.wire.splicer import SpliceError, splice
from rlm.write_path.group_commit import CommitLimits, GroupCommit, Load, UploadNow, Urgency
from rlm.write_path.link_policy import CostLimits, LinkDecider, LinkMode
from rlm.write_path.resume_point import LedLog, ResumePoint, resume_of
from rlm.write_path.segment_queue import MetaQueueItem, RemoteSegmentQueue
from tests.kafka_log.batches import batch
from tests.replication.fake_led import store
from tests.replication.fetch_frames import decode, partition, response

PARTITIONS = range(3)
MAX_FETCH_BYTES = 3000
COMMIT = CommitLimits(0.01, 0.1, 2000, 3, 0.05, 0.4)
WAIT_MAX_S = 0.5


@dataclass
class Upload:
    segment: CombinedSegmentId
    items: list[MetaQueueItem]
    started_s: float


class OlderIndex(LinkIndex):
    """All that was ever uploaded, by agents before as well, dead batches and lost objects included."""

    def expected(self, partition: TopicIdPartition, offset: int) -> bool:
        return False


class LeadersAgent:
    """One incarnation. Everything in it is lost when it crashes."""

    def __init__(
        self, incarnation: int, resumed: dict[int, ResumePoint], policy: LinkPolicy, older: "OlderIndex"
    ) -> None:
        self.incarnation, self.sequence, self.policy = incarnation, 0, policy
        self.read_offsets = {number: point.next_offset or 0 for number, point in resumed.items()}
        self.missing = {number: list(point.missing) for number, point in resumed.items()}
        self.unpublished: dict[int, RemoteWalCombinedLogSegmentMetadata | None] = {}
        self.next_to_publish = 0
        self.queue, self.commit = RemoteSegmentQueue(50, 20_000), GroupCommit(COMMIT)
        self.decider = LinkDecider(CostLimits(500, 0.01))
        self.uploads: list[Upload] = []
        self.index = LinkIndex(max_batches=40)
        self.planner = LinkPlanner(self.index, self, PlannerLimits(WAIT_MAX_S, 500), older)
        self.now_s = self.read_s = 0.0

    def uploaded_offset(self, number: int) -> int:
        """As LedPartition tells it: nothing below is queued, under way, or yet to be read."""
        under_way = [item for upload in self.uploads for item in upload.items]
        unstored = [
            item.first_offset
            for item in (*self.queue._items, *under_way)
            if item.topic_id_partition == partition(number)
        ]
        unread = [begin for begin, _ in self.missing[number]] or [self.read_offsets[number]]
        return min(*unstored, *unread) if unstored else unread[0]

    # LedPartitions

    def mode_of(self, partition: TopicIdPartition, size: int) -> LinkMode:
        return self.decider.mode(self.policy, 20, size, self.now_s)

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        self.decider.fetched(follower_id, size, self.now_s)

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        return self.commit.is_prompt(math.inf, self.now_s)

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        pass

    def find(self, topic_id: bytes | None, number: int) -> TopicIdPartition | None:
        return None if topic_id is None else TopicIdPartition(TopicId(topic_id), number)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.epoch = 0
        self.faults = True
        self.leader: dict[int, list[bytes]] = {number: [] for number in PARTITIONS}
        self.follower: dict[int, list[bytes]] = {number: [] for number in PARTITIONS}
        self.objects: dict[CombinedSegmentId, bytes] = {}
        self.policy = self.rng.choice([LinkPolicy.ALWAYS, LinkPolicy.COST])
        self.older = OlderIndex()
        self.topic = RemoteWalMetadataStore()
        self.epochs = {number: [(0, 0)] for number in PARTITIONS}
        self.stored: dict[int, set[tuple[int, int]]] = {number: set() for number in PARTITIONS}
        """Leader epoch and offset of what was stored, whatever became of the object since."""
        self.agent = LeadersAgent(0, self.resumed(), self.policy, self.older)
        self.untold_cuts: list[tuple[int, int]] = []
        self.waiting: tuple[bytes, float] | None = None
        """The response that waits for its links, and until when."""
        self.trace: list[str] = []
        self.linked = self.refused = self.waited = 0

    def run(self, steps: int) -> None:
        actions: list[tuple[Callable[[], object], int]] = [
            (self.append, 15), (self.read, 25), (self.begin_upload, 25), (self.end_upload, 25), (self.fetch, 25),
            (self.publish, 10), (self.tell_cuts, 3), (self.hand_over, 1), (self.crash_agent, 1), (self.lose_object, 1),
        ]  # fmt: skip
        choices, weights = zip(*actions, strict=True)
        for _ in range(steps):
            self.now_s += self.rng.choice([0.0, 0.001, 0.005, 0.02])
            self.agent.now_s = self.now_s
            action = self.rng.choices(choices, weights)[0]
            self.trace.append(f"{self.now_s:.3f} {action.__name__} {action()}")
            self.check()

    def check(self) -> None:
        for number in PARTITIONS:
            got, sent = self.follower[number], self.leader[number]
            assert got == sent[: len(got)], f"partition {number} differs from the leader's log"
            if not any(cut == number for cut, _ in self.untold_cuts):
                uploaded = self.agent.uploaded_offset(number)
                left_out = [at for at in range(uploaded) if (_epoch_of(sent[at]), at) not in self.stored[number]]
                assert not left_out, f"partition {number}: {left_out} count as uploaded, and are in no object"

    def settle(self) -> None:
        """No more faults and no more appends: the follower must get everything."""
        self.faults = False
        self.tell_cuts(every=True)
        for _ in range(2000):
            if self.follower == self.leader and all(self.told(number) for number in PARTITIONS):
                return
            self.now_s += 0.05
            self.agent.now_s = self.now_s
            for act in (self.read, self.begin_upload, self.end_upload, self.publish, self.fetch):
                act()
            self.check()
        raise AssertionError("the follower does not catch up, or not all of the log is told as stored")

    def told(self, number: int) -> bool:
        """Whether the topic tells of the whole log."""
        end = len(self.leader[number])
        chain = LeaderEpochChain(self.epochs[number])
        return self.topic.stored_ranges(partition(number), chain) == ([(0, end)] if end else [])

    def resumed(self) -> dict[int, ResumePoint]:
        """Where an agent that begins now goes on."""
        found = {}
        for number in PARTITIONS:
            log = LedLog(partition(number), LeaderEpochChain(self.epochs[number]), [0])
            found[number] = resume_of(self.topic, ArchiveStore(), log)
        return found

    # What may happen.

    def append(self) -> str:
        number = self.rng.choice(PARTITIONS)
        log = self.leader[number]
        payload = self.rng.randbytes(self.rng.choice([1, 40, 400, 1500]))
        log.append(batch(len(log), 1, self.epoch, payload))  # one record each: a batch's index is its offset
        return f"{number}:{len(log)}"

    def read(self) -> str:
        agent, number = self.agent, self.rng.choice(PARTITIONS)
        missing = agent.missing[number]
        offset, end = missing[0] if missing else (agent.read_offsets[number], len(self.leader[number]))
        run = self.leader[number][offset : min(offset + self.rng.randint(1, 5), end)]
        if not run or not agent.queue.free_items or not agent.queue.free_bytes:
            return "nothing"
        epochs = {raw[12:16] for raw in run}
        run = [raw for raw in run if raw[12:16] == run[0][12:16]] if len(epochs) > 1 else run
        records = b"".join(run)
        spans = tuple(scan_batches(records, 0, len(records)))
        agent.queue.put([MetaQueueItem(partition(number), spans, memoryview(records), self.now_s, self.now_s)])
        agent.decider.appended(len(records), agent.read_s, self.now_s)
        agent.read_s = self.now_s
        read_to = spans[-1].last_offset + 1
        if missing:
            missing[:1] = [(read_to, end)] if read_to < end else []
        else:
            agent.read_offsets[number] = read_to
        return f"{number}:{read_to}"

    def begin_upload(self) -> str:
        agent = self.agent
        urgency = Urgency.LINKS if agent.mode_of(partition(0), 0) is LinkMode.LINK else Urgency.ARCHIVE
        load = Load(agent.queue.size_bytes, math.inf, False, 0.0, urgency)
        if not isinstance(agent.commit.next_step(load, self.now_s), UploadNow):
            return "not now"
        segment = CombinedSegmentId(1, agent.incarnation, agent.sequence)
        agent.sequence += 1
        items = agent.queue.drain(COMMIT.upload_bytes)
        agent.uploads.append(Upload(segment, items, self.now_s))
        agent.commit.started(self.now_s, sum(len(item.records) for item in items))
        return str(segment)

    def end_upload(self) -> str:
        agent = self.agent
        if not agent.uploads:
            return "none"
        upload = agent.uploads.pop(self.rng.randrange(len(agent.uploads)))
        outcome = self.rng.choices(["stored", "before", "after"], [8, 1, 1])[0] if self.faults else "stored"
        if outcome != "before":
            self.objects[upload.segment] = b"".join(bytes(item.records) for item in upload.items)
        if outcome != "stored":
            agent.commit.failed(upload.started_s, self.now_s)
            agent.queue.put_back(upload.items)
            agent.unpublished[upload.segment.sequence] = None
            return f"{upload.segment} failed {outcome}"
        agent.commit.stored(upload.started_s)
        agent.decider.uploaded(self.now_s - upload.started_s)
        start = 0
        for item in upload.items:
            for index in (agent.index, self.older):
                store(index, item.topic_id_partition, bytes(item.records), upload.segment, start)
            start += len(item.records)
        entries = tuple(item.metadata_entry() for item in upload.items)
        for entry in entries:
            for offset in range(entry.first_offset, entry.last_offset + 1):
                self.stored[entry.topic_id_partition.partition].add((entry.leader_epoch, offset))
        agent.unpublished[upload.segment.sequence] = RemoteWalCombinedLogSegmentMetadata(
            upload.segment, entries, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 0, start
        )
        return f"{upload.segment} stored"

    def publish(self) -> str:
        """What is next in the order of the objects."""
        agent = self.agent
        while agent.next_to_publish in agent.unpublished:
            record = agent.unpublished.pop(agent.next_to_publish)
            agent.next_to_publish += 1
            if record is not None:
                self.topic.apply(record)
        return str(agent.next_to_publish)

    def fetch(self) -> str:
        """Go on with the response that waits, or ask for a new one."""
        agent = self.agent
        if self.waiting is None:
            records = {n: self.answer(n) for n in PARTITIONS}
            frame = response(dict(records))
            agent.planner.begin(frame, scan_fetch_response(frame, 17), 2)
            self.waiting = frame, self.now_s
        frame, asked_s = self.waiting
        verdict = agent.planner.decide(self.now_s)
        if isinstance(verdict, WaitForUploads):
            self.waited += 1
            assert verdict.until_s <= asked_s + WAIT_MAX_S + 1e-9, "a response waits too long"
            return "waits"
        self.waiting = None
        if isinstance(verdict, PassThrough):
            self.receive(frame)
            return "inline"
        assert isinstance(verdict, SendLinked)
        payload = b"".join(map(bytes, encode_linked_response(verdict.response)))
        return self.hydrate(decode_linked_response(payload, 1_000_000), frame)

    def answer(self, number: int) -> bytes:
        """Records from where the follower stands, cut off at the byte limit but for a first batch."""
        log = self.leader[number][len(self.follower[number]) :]
        return b"".join(log)[: max(MAX_FETCH_BYTES, len(log[0]))] if log else b""

    def hydrate(self, linked: LinkedResponse, original: bytes) -> str:
        data = [self.fetched(link.object_id, link.start_position, link.end_position) for link in linked.links]
        try:
            frame = b"".join(map(bytes, splice(linked, [part for part in data if part is not None])))
        except (SpliceError, ValueError):  # ValueError: an object was gone
            self.refused += 1
            self.receive(original)
            return "inline after a refusal"
        self.linked += 1
        self.receive(frame)
        return f"linked {len(linked.links)}"

    def fetched(self, segment: StoredObjectId, start: int, end: int) -> bytes | None:
        assert isinstance(segment, CombinedSegmentId)
        stored = self.objects.get(segment)
        fault = self.rng.choices(["", "gone", "short", "wrong", "shifted"], [20, 1, 1, 1, 1])[0] if self.faults else ""
        if stored is None or fault == "gone":
            return None
        if fault == "wrong":
            stored = stored[:start] + self.rng.randbytes(end - start) + stored[end:]
        return stored[start + (fault == "shifted") : end - (fault == "short")]

    def receive(self, frame: bytes) -> None:
        """As a follower's broker: whole batches that continue its log, a cut-off one ignored."""
        for found in decode(frame, 17).responses[0].partitions:
            raw = bytes(found.records or b"")
            log = self.follower[found.partition_index]
            for span in scan_batches(raw, 0, len(raw)):
                assert span.base_offset == len(log), "offsets that do not continue the follower's log"
                log.append(raw[span.start : span.end])

    def hand_over(self) -> str:
        """The next leader has what the follower has, and perhaps some more."""
        self.epoch += 1
        self.waiting = None
        for number in PARTITIONS:
            end = self.rng.randint(len(self.follower[number]), len(self.leader[number]))
            del self.leader[number][end:]
            kept = [(epoch, start) for epoch, start in self.epochs[number] if start < end]
            self.epochs[number] = [*kept, (self.epoch, end)]
            self.untold_cuts.append((number, end))
        return f"epoch {self.epoch}"

    def tell_cuts(self, every: bool = False) -> str:
        """The agent's tail sees that the log was cut."""
        told = 0
        while self.untold_cuts and (every or self.rng.random() < 0.7):
            number, offset = self.untold_cuts.pop(0)
            self.agent.queue.discard(partition(number), offset)
            self.agent.index.drop_from(partition(number), offset)
            self.agent.read_offsets[number] = min(self.agent.read_offsets[number], offset)
            self.agent.missing[number] = ranges_common((0, offset), self.agent.missing[number])
            told += 1
        return str(told)

    def crash_agent(self) -> str:
        """Uploads under way may have taken effect. The next agent goes on by what the topic tells."""
        for upload in self.agent.uploads:
            if self.rng.random() < 0.5:
                self.objects[upload.segment] = b"".join(bytes(item.records) for item in upload.items)
        self.agent = LeadersAgent(self.agent.incarnation + 1, self.resumed(), self.policy, self.older)
        self.agent.now_s = self.now_s
        self.waiting, self.untold_cuts = None, []
        return str(self.agent.incarnation)

    def lose_object(self) -> str:
        if not self.objects:
            return "none"
        segment = self.rng.choice(sorted(self.objects))
        del self.objects[segment]
        return str(segment)


def _epoch_of(raw: bytes) -> int:
    return int.from_bytes(raw[12:16], "big")
