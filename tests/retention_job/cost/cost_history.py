"""A small history with known costs, as the tables that the job reads, and as plain Python that computes them anew."""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

from pyspark.sql import SparkSession

from kafka_log.topic_partition import TopicId
from metadata_topic.records.usage_record import (
    USAGE,
    ClientUsage,
    ClientZoneUsage,
    FollowerUsage,
    RouterUsage,
    StoreUsage,
    TopicUsage,
    UsageRecord,
    encode_usage,
    encode_usage_key,
)
from retention_job import schemas
from retention_job.cost import usage_table
from retention_job.cost.cost_tables import CostSources

DAY_MS = 86_400_000
FIRST_DAY = 20_000
NOW_MS = (FIRST_DAY + 3) * DAY_MS + 5_000_000
TOPICS = [TopicId(name.encode().ljust(16)) for name in ("orders", "payments", "clicks")]
ZONES = {1: "a", 2: "b", 3: "a"}
"""Broker 4 has none."""
HEADER_BYTES = 100


@dataclass
class Segment:
    broker_id: int
    sequence: int
    finished_ms: int
    deleted_ms: int | None
    entries: list[tuple[TopicId, int, int]]
    """(topic, partition, bytes)"""
    is_new: bool = True
    elsewhere_bytes: int | None = 0

    @property
    def size_bytes(self) -> int:
        return HEADER_BYTES + sum(size for _, _, size in self.entries) - (self.elsewhere_bytes or 0)


@dataclass
class Archived:
    """An archive object; prepared and written right before its commit, where the time of that is known."""

    broker_id: int
    sequence: int
    topic: TopicId
    started_ms: int | None
    finished_ms: int
    deleted_ms: int | None
    size_bytes: int
    stored_ms: int | None


@dataclass
class CostHistory:
    segments: list[Segment] = field(default_factory=list)
    archived: list[Archived] = field(default_factory=list)
    records: list[UsageRecord] = field(default_factory=list)

    def sources(self, spark: SparkSession, **changes: object) -> CostSources:
        segments = [
            (s.broker_id, 1, s.sequence, 3 if s.deleted_ms else 1, s.finished_ms - 5, s.finished_ms, None, s.deleted_ms,
             s.size_bytes, s.elsewhere_bytes, len(s.entries), None, None, None, None, s.is_new)
            for s in self.segments
        ]  # fmt: skip
        entries = [row for s in self.segments if s.is_new for row in _entry_rows(s)]
        others = [(USAGE, encode_usage_key(record), encode_usage(record)) for record in self.records]
        return CostSources(
            spark.createDataFrame(segments, schemas.SEGMENTS),
            spark.createDataFrame(entries, schemas.ENTRIES),
            spark.createDataFrame([], schemas.TIERED),
            spark.createDataFrame([_archive_row(one) for one in self.archived], schemas.ARCHIVE_OBJECTS),
            usage_table.counters(spark.createDataFrame(others, "record_type INT, key BINARY, value BINARY")),
            **{"now_ms": NOW_MS, "since_ms": FIRST_DAY * DAY_MS, **changes},  # type: ignore[arg-type]
        )


def _archive_row(one: Archived) -> tuple[object, ...]:
    state = 3 if one.deleted_ms else 1
    return (
        bytearray(one.topic), 0, 0, 99, one.broker_id, 1, one.sequence, state, one.started_ms, one.finished_ms, None,
        one.deleted_ms, None, one.size_bytes, [(0, 0, 99)], one.stored_ms is not None, one.size_bytes, one.stored_ms,
        True,
    )  # fmt: skip


def _entry_rows(segment: Segment) -> Iterator[tuple[object, ...]]:
    at = HEADER_BYTES // 2
    for topic_id, partition, size in segment.entries:
        yield (segment.broker_id, 1, segment.sequence, segment.finished_ms, bytearray(topic_id), partition, 0, 10, 19,
               at, at + size)  # fmt: skip
        at += size


def random_history(seed: int, segments: int = 120) -> CostHistory:
    """Objects and usage of four brokers over three days and a bit; broker 4 publishes no usage."""
    generator = random.Random(seed)
    history = CostHistory()
    for number in range(segments):
        finished_ms = FIRST_DAY * DAY_MS + generator.randrange(3 * DAY_MS + 4_000_000)
        life_ms = generator.choice([1_000, 3_600_000, DAY_MS, 2 * DAY_MS])
        entries = [
            (generator.choice(TOPICS), partition, generator.randrange(1, 100_000))
            for partition in range(generator.randrange(1, 6))
        ]
        deleted_ms = finished_ms + life_ms if finished_ms + life_ms < NOW_MS else None
        segment = Segment(generator.randrange(1, 5), number, finished_ms, deleted_ms, entries)
        segment.elsewhere_bytes = generator.choice([None, 0, sum(size for _, _, size in entries) // 2])
        history.segments.append(segment)
    history.archived += _archive(generator)
    of_brokers = {broker_id: list(_usage(broker_id, generator)) for broker_id in (1, 2, 3)}
    for broker_id, records in of_brokers.items():
        history.records += records if broker_id == 3 else _with_clients(broker_id, generator, records)
    generator.shuffle(history.records)
    history.records.append(history.records[0])  # published twice
    return history


def _archive(generator: random.Random) -> Iterator[Archived]:
    """Half of them older than the time that is counted, as far as metadata tells; some of them deleted."""
    for number in range(20):
        is_old = number % 2 == 0
        finished_ms = FIRST_DAY * DAY_MS + generator.randrange(3 * DAY_MS)
        stored_ms = finished_ms - (40 * DAY_MS if is_old else 3)
        deleted_ms = finished_ms + DAY_MS if number % 5 == 0 and finished_ms + DAY_MS < NOW_MS else None
        yield Archived(
            generator.randrange(1, 4),
            number,
            generator.choice(TOPICS),
            None if is_old else finished_ms - 10,
            finished_ms,
            deleted_ms,
            generator.randrange(1, 10**6),
            stored_ms if number % 3 else None,
        )


def _with_clients(broker_id: int, generator: random.Random, records: list[UsageRecord]) -> Iterator[UsageRecord]:
    """That broker's agent is a gateway: its own zone's clients come in by it, and it tells of the other gateway's what
    their zone has a replica of.
    """
    own, other = ZONES[broker_id], ZONES[3 - broker_id]
    moved, told, router, before = [0] * 5, [0] * 2, [0] * 4, None
    for record in records:
        if record.sequence == 0:
            moved, told, router = [0] * 5, [0] * 2, [0] * 4
        elif before is not None:
            put, get, *_, put_bytes, get_bytes = (
                generator.randint(0, now - then)
                for now, then in zip(record.stores[0][1:], before.stores[0][1:], strict=True)
            )
            router = [a + b for a, b in zip(router, (put, get, put_bytes, get_bytes), strict=True)]
            sent, given = generator.randrange(80_000), generator.randrange(200_000)
            crossed = generator.randint(0, sent), generator.randint(0, given)
            grown = (sent, crossed[0], given, crossed[1], given // 10)
            moved = [a + b for a, b in zip(moved, grown, strict=True)]
            told = [told[0] + generator.randrange(4_000), told[1] + generator.randrange(30_000)]
        before = record
        zones = ClientZoneUsage(own, *moved), ClientZoneUsage(other, untold_bytes=told[0], near_bytes=told[1])
        yield replace(record, clients=ClientUsage(own, "s3_express", RouterUsage(*router), zones))


def _usage(broker_id: int, generator: random.Random) -> Iterator[UsageRecord]:
    """Three incarnations' worth of one record each 6 hours, the first record of each a baseline of zero."""
    followers = [other for other in (1, 2, 3, 4) if other != broker_id]
    incarnation, sequence = 0, 0
    for quarter in range(13):
        at_ms = FIRST_DAY * DAY_MS + quarter * DAY_MS // 4
        if quarter % 5 == 0:
            incarnation, sequence = incarnation + 1, 0
            store, archive = [0] * 7, [0] * 7
            peer: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
            topic: defaultdict[tuple[TopicId, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        else:
            store = [amount + generator.randrange(1000) for amount in store]
            archive = [amount + generator.randrange(500) for amount in archive]
            for follower in followers:
                linked, inline = generator.randrange(50_000), generator.randrange(5_000)
                moved = topic[generator.choice(TOPICS), follower]
                moved[0] += linked
                moved[1] += inline
                moved[2] += 4 * inline
                peer[follower][0] += inline + 700
                peer[follower][1] += 4 * inline + linked + 900
        yield UsageRecord(
            broker_id, incarnation, sequence, at_ms, at_ms, ZONES.get(broker_id),
            (StoreUsage("s3_express", *store), StoreUsage("s3_standard", *archive)),
            tuple(FollowerUsage(follower, *moved) for follower, moved in peer.items()),
            tuple(TopicUsage(topic_id, follower, *moved) for (topic_id, follower), moved in topic.items()),
        )  # fmt: skip
        sequence += 1


# The same by plain Python: no table, no window, no linear sums.


@dataclass
class PlainCosts:
    amounts: dict[tuple[TopicId | None, int, int], defaultdict[str, float]]
    days_known: set[tuple[int, int]]
    clients: dict[tuple[str, int], defaultdict[str, float]]
    """By zone and day."""


def plain_costs(history: CostHistory, now_ms: int = NOW_MS) -> PlainCosts:
    amounts: dict[tuple[TopicId | None, int, int], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for segment in history.segments:
        entry_bytes = sum(size for _, _, size in segment.entries)
        day = segment.finished_ms // DAY_MS
        for topic_id in {topic for topic, _, _ in segment.entries}:
            own = sum(size for topic, _, size in segment.entries if topic == topic_id)
            size = segment.size_bytes * own / entry_bytes
            stored = size + (segment.elsewhere_bytes or 0) * own / entry_bytes
            uploaded = amounts[topic_id, segment.broker_id, day]
            uploaded["objects"] += 1
            uploaded["puts"] += own / entry_bytes
            uploaded["upload_bytes"] += size
            end_ms = segment.deleted_ms or now_ms
            for stored_day in range(day, end_ms // DAY_MS + 1):
                begin, end = max(segment.finished_ms, stored_day * DAY_MS), min(end_ms, (stored_day + 1) * DAY_MS)
                if end > begin:
                    amounts[topic_id, segment.broker_id, stored_day]["stored_byte_ms"] += stored * (end - begin)
    _add_archive(history, amounts, now_ms)
    clients: dict[tuple[str, int], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    days_known = _add_usage(history, amounts, clients)
    return PlainCosts(amounts, days_known, clients)


def _add_archive(
    history: CostHistory, amounts: dict[tuple[TopicId | None, int, int], defaultdict[str, float]], now_ms: int
) -> None:
    for one in history.archived:
        if one.started_ms is not None:
            made = amounts[one.topic, one.broker_id, one.finished_ms // DAY_MS]
            made["archive_objects"] += 1
            made["archive_puts"] += 1
            made["archive_upload_bytes"] += one.size_bytes
        first_ms = max(FIRST_DAY * DAY_MS, min(one.stored_ms or one.finished_ms, one.finished_ms))
        end_ms = one.deleted_ms or now_ms
        for day in range(first_ms // DAY_MS, end_ms // DAY_MS + 1):
            begin, end = max(first_ms, day * DAY_MS), min(end_ms, (day + 1) * DAY_MS)
            if end > begin:
                amounts[one.topic, one.broker_id, day]["archive_stored_byte_ms"] += one.size_bytes * (end - begin)


def _add_usage(
    history: CostHistory,
    amounts: dict[tuple[TopicId | None, int, int], defaultdict[str, float]],
    clients: dict[tuple[str, int], defaultdict[str, float]],
) -> set[tuple[int, int]]:
    known: set[tuple[int, int]] = set()
    gets: defaultdict[int, float] = defaultdict(float)
    retrieved: defaultdict[int, float] = defaultdict(float)
    unique = {(r.broker_id, r.incarnation, r.sequence): r for r in history.records}
    for (broker_id, incarnation, sequence), record in unique.items():
        before = unique.get((broker_id, incarnation, sequence - 1))
        middle_ms = (record.event_timestamp_ms + (before or record).event_timestamp_ms) / 2
        day = int(middle_ms // DAY_MS)
        known.add((broker_id, day))
        store = [b - a for a, b in zip(before.stores[0][1:] if before else [0] * 7, record.stores[0][1:], strict=True)]
        gets[day] += store[1] + store[2]
        retrieved[day] += store[6]
        beside = amounts[None, broker_id, day]
        beside["raw_puts"] += store[0]
        beside["lists"] += store[4]
        beside["raw_put_bytes"] += store[5]
        archive = [
            b - a for a, b in zip(before.stores[1][1:] if before else [0] * 7, record.stores[1][1:], strict=True)
        ]
        beside["raw_archive_puts"] += archive[0]
        beside["archive_lists"] += archive[4]
        beside["raw_archive_bytes"] += archive[5]
        beside["archive_gets"] += archive[1] + archive[2]
        old_topics = {row[:2]: row for row in before.topics} if before else {}
        for row in record.topics:
            linked, inline, plain = (
                now - old for now, old in zip(row[2:], old_topics.get(row[:2], [0] * 5)[2:], strict=True)
            )
            moved = amounts[row.topic_id, broker_id, day]
            moved["linked_bytes"] += linked
            moved["inline_bytes"] += inline
            moved["plain_bytes"] += plain
            if _is_remote(broker_id, row.follower):
                moved["linked_remote_bytes"] += linked
                moved["inline_remote_bytes"] += inline
                moved["plain_remote_bytes"] += plain
                beside["protocol_bytes"] -= inline
                beside["protocol_stock_bytes"] -= plain + linked
        old_peers = {peer.follower: peer for peer in before.followers} if before else {}
        for peer in record.followers:
            old_peer = old_peers.get(peer.follower, FollowerUsage(peer.follower, 0, 0))
            if _is_remote(broker_id, peer.follower):
                beside["protocol_bytes"] += peer.peer_bytes - old_peer.peer_bytes
                beside["protocol_stock_bytes"] += peer.stock_bytes - old_peer.stock_bytes
    _add_clients(history, clients)
    for (zone, day), moved in clients.items():
        broker_id = next(one for one in (1, 2) if ZONES[one] == zone)
        amounts[None, broker_id, day]["raw_puts"] -= moved["puts"]
        amounts[None, broker_id, day]["raw_put_bytes"] -= moved["upload_bytes"]
        gets[day] -= moved["gets"]
        retrieved[day] -= moved["retrieval_bytes"]
    _share_gets(amounts, clients, gets, retrieved)
    _put_the_rest_beside(amounts)
    return known


def _add_clients(history: CostHistory, clients: dict[tuple[str, int], defaultdict[str, float]]) -> None:
    unique = {(r.broker_id, r.incarnation, r.sequence): (r, r.clients) for r in history.records if r.clients}
    router_gets: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for (broker_id, incarnation, sequence), (record, moved_here) in unique.items():
        before, old_usage = unique.get((broker_id, incarnation, sequence - 1), (record, None))
        day = int((record.event_timestamp_ms + before.event_timestamp_ms) / 2 // DAY_MS)
        router, old_router = moved_here.router, old_usage.router if old_usage else RouterUsage()
        clients[moved_here.zone, day]["puts"] += router.put - old_router.put
        clients[moved_here.zone, day]["upload_bytes"] += router.put_bytes - old_router.put_bytes
        router_gets[day][0] += router.get - old_router.get
        router_gets[day][1] += router.get_bytes - old_router.get_bytes
        old_zones = {one.zone: one for one in old_usage.zones} if old_usage else {}
        for one in moved_here.zones:
            old = old_zones.get(one.zone, ClientZoneUsage(one.zone))
            for name, amount in asdict(one).items():
                if name != "zone":
                    clients[one.zone, day][name] += amount - getattr(old, name)
    for (_, day), moved in clients.items():
        linked = sum(row["sent_bytes"] - row["sent_crossed_bytes"] for (_, at), row in clients.items() if at == day)
        of_day = sum(at == day for _, at in clients)
        share = (moved["sent_bytes"] - moved["sent_crossed_bytes"]) / linked if linked else 1 / of_day
        moved["gets"], moved["retrieval_bytes"] = (share * made for made in router_gets[day])
        moved["near_bytes"] = min(moved["near_bytes"], moved["given_bytes"])
        moved["untold_bytes"] = min(moved["untold_bytes"], moved["given_bytes"] - moved["near_bytes"])


def _is_remote(leader: int, follower: int) -> bool:
    return ZONES.get(leader) is None or ZONES.get(leader) != ZONES.get(follower)


def _share_gets(
    amounts: dict[tuple[TopicId | None, int, int], defaultdict[str, float]],
    clients: dict[tuple[str, int], defaultdict[str, float]],
    gets: dict[int, float],
    retrieved: dict[int, float],
) -> None:
    for day, made in gets.items():
        given = {
            zone: row["given_bytes"] - row["given_crossed_bytes"] for (zone, at), row in clients.items() if at == day
        }
        linked = sum(given.values())
        linked += sum(row["linked_bytes"] for (_, _, at), row in amounts.items() if at == day)
        for zone, size in given.items():
            if linked:
                clients[zone, day]["consumer_gets"] = made * size / linked
                clients[zone, day]["consumer_retrieval_bytes"] = retrieved[day] * size / linked
        for (_, _, at), row in list(amounts.items()):
            if at == day and linked:
                row["gets"] += made * row["linked_bytes"] / linked
                row["retrieval_bytes"] += retrieved[day] * row["linked_bytes"] / linked


def _put_the_rest_beside(amounts: dict[tuple[TopicId | None, int, int], defaultdict[str, float]]) -> None:
    for (topic_id, broker_id, day), row in list(amounts.items()):
        if topic_id is None:
            of_topics = [r for (t, b, d), r in amounts.items() if t is not None and (b, d) == (broker_id, day)]
            row["puts"] = max(0, row["raw_puts"] - sum(r["puts"] for r in of_topics)) + row["lists"]
            row["upload_bytes"] = max(0, row["raw_put_bytes"] - sum(r["upload_bytes"] for r in of_topics))
            made = sum(r["archive_puts"] for r in of_topics)
            row["archive_puts"] = max(0, row["raw_archive_puts"] - made) + row["archive_lists"]
            written = sum(r["archive_upload_bytes"] for r in of_topics)
            row["archive_upload_bytes"] = max(0, row["raw_archive_bytes"] - written)
