"""Plans which replicas go where: by a file, or to drain a broker; `balance` plans for all. Sans-IO.

A broker's load has three parts: the bytes a second that its replicas take in, those that it gives out as a leader, and
the bytes that its replicas store. Each counts as a multiple of the mean over all brokers.

Draining replaces only what must go; among the possible brokers, one in a rack without the partition comes first, then
the one with the smallest load. Partitions without a leader cannot be moved and are left unchanged; the plan says so.
"""

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple


class ReassignmentPlanError(Exception):
    """The requested plan is impossible; the message says why."""

    def __init__(self, operation: str, key: str, reason: str, hint: str = "") -> None:
        self.operation, self.key, self.reason, self.hint = operation, key, reason, hint
        super().__init__(f"{operation} {key}: {reason}" + (f" ({hint})" if hint else ""))


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition by topic name and number, as in Kafka's reassignments."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """A partition's replicas in the cluster's metadata. `leader` is -1 when there is none."""

    topic_partition: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    """Broker ids, the preferred leader first."""
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class ClusterReplicas:
    """All partitions of a cluster, and its living brokers."""

    racks: dict[int, str | None]
    """Racks of the living brokers."""
    partitions: tuple[PartitionReplicas, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's replicas before and after, the preferred leader first."""

    topic_partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        """Brokers that get a replica."""
        return tuple(broker for broker in self.after if broker not in self.before)


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """The moves of a plan, and what could not be planned."""

    moves: tuple[Move, ...]
    left: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that should have been moved and cannot be, with the reason."""
    not_known: str = ""
    """Why there may be more that should have been moved."""


class Load(NamedTuple):
    """The load of a partition or a broker: traffic and stored bytes."""

    in_bytes_per_s: float = 0.0
    """Written to each replica."""
    out_bytes_per_s: float = 1.0
    """Read from the leader, by followers and consumers."""
    stored_bytes: float = 1.0
    """Stored by each replica. Both are at least 1, so that idle leaders and empty replicas are spread by number."""


Loads = Mapping[TopicPartition, Load]
UNKNOWN_LOAD: Final = Load()
LEADERLESS: Final = "it has no leader, from which a replica could be made"
HIDDEN: Final = "Kafka does not show its topic to this client: may it describe it?"
MOVING: Final = "it is being moved; plan again when that has ended"


def plan_drain(
    cluster: ClusterReplicas,
    loads: Loads,
    broker: int,
    hidden: Collection[TopicPartition] = (),
    not_known: str = "",
) -> ReassignmentPlan:
    """Plan to take every replica off a broker, which need not be alive; others stay where they are.

    `hidden` are its replicas of topics that `cluster` lacks; `not_known` says why there may be more of them. Raises
    ReassignmentPlanError.
    """
    scope = [partition for partition in cluster.partitions if broker in partition.replicas]
    if not scope and broker not in cluster.racks:
        raise ReassignmentPlanError(
            "plan", f"broker {broker}", "no such broker lives, and no partition has a replica on it", _those(cluster)
        )
    takers = _Takers(cluster, loads, set(cluster.racks) - {broker})
    moves = tuple(
        Move(one.topic_partition, one.replicas, takers.replace(one))
        for one in sorted(scope, key=lambda one: one.topic_partition)
        if one.leader >= 0
    )
    left = {one.topic_partition: LEADERLESS for one in scope if one.leader < 0}
    return ReassignmentPlan(moves, left | dict.fromkeys(hidden, HIDDEN), not_known)


def without_moving(plan: ReassignmentPlan, moving: Collection[TopicPartition]) -> ReassignmentPlan:
    """Return the plan without partitions that are being moved: until that ends, their old replicas are shown with
    the new ones, so a plan would keep them all."""
    left = {move.topic_partition: MOVING for move in plan.moves if move.topic_partition in moving}
    moves = tuple(move for move in plan.moves if move.topic_partition not in left)
    return replace(plan, moves=moves, left=plan.left | left)


def broker_loads(cluster: ClusterReplicas, loads: Loads, plan: ReassignmentPlan | None = None) -> dict[int, Load]:
    """Return each broker's load, as it is now or after a plan."""
    after = {move.topic_partition: move.after for move in plan.moves} if plan is not None else {}
    sums = {broker: [0.0, 0.0, 0.0] for broker in cluster.racks}
    for one in cluster.partitions:
        replicas = after.get(one.topic_partition, one.replicas)
        for part, broker, amount in _shares(loads.get(one.topic_partition, UNKNOWN_LOAD), replicas):
            if broker in sums:
                sums[broker][part] += amount
    return {broker: Load(*parts) for broker, parts in sums.items()}


def scales(carried: Mapping[int, Load]) -> list[float]:
    """Return by what to multiply each part of a load, to get a multiple of these brokers' mean."""
    means = [sum(part) / len(part) for part in zip(*carried.values(), strict=True)] or [0.0] * 3
    # Nothing to divide: a part that nobody carries, or so little that its inverse overflows, says nothing.
    return [1 / mean if mean > sys.float_info.min else 0.0 for mean in means]


def apart(carried: Mapping[int, Load]) -> tuple[float, float, float]:
    """Return for each part of the load by how much the fullest and the emptiest broker differ, relative to the mean."""
    parts = list(zip(*carried.values(), strict=True)) or [(0.0,)] * 3
    found = [(max(part) - min(part)) * len(part) / whole if (whole := sum(part)) else 0.0 for part in parts]
    return found[0], found[1], found[2]


def _shares(load: Load, replicas: Sequence[int]) -> Iterator[tuple[int, int, float]]:
    """Yield which part of which broker's load a partition makes, and how much."""
    for broker in replicas:
        yield 0, broker, load.in_bytes_per_s
        yield 2, broker, load.stored_bytes
    if replicas:
        yield 1, replicas[0], load.out_bytes_per_s


def plan_as_given(cluster: ClusterReplicas, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> ReassignmentPlan:
    """Return the moves that lead to these replicas. Raises ReassignmentPlanError when that is impossible."""
    known = {partition.topic_partition: partition for partition in cluster.partitions}
    moves = []
    for where, replicas in sorted(wanted.items()):
        if where not in known:
            raise ReassignmentPlanError("plan", str(where), "there is no such partition")
        if not replicas or len(set(replicas)) != len(replicas):
            raise ReassignmentPlanError("plan", str(where), f"{list(replicas)} is not a list of different brokers")
        check_living(cluster, set(replicas) - set(known[where].replicas))
        moves.append(Move(where, known[where].replicas, replicas))
    moves = [move for move in moves if move.before != move.after]
    left = {move.topic_partition: LEADERLESS for move in moves if known[move.topic_partition].leader < 0}
    return ReassignmentPlan(tuple(move for move in moves if move.topic_partition not in left), left)


def write_plan(plan: ReassignmentPlan) -> dict[str, object]:
    """Return the plan as JSON values for kafka-reassign-partitions.sh --reassignment-json-file."""
    partitions = [
        {"topic": move.topic_partition.topic, "partition": move.topic_partition.partition, "replicas": list(move.after)}
        for move in plan.moves
    ]
    return {"version": 1, "partitions": partitions}


def read_plan(text: str, source: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Parse a plan for kafka-reassign-partitions.sh: the wanted replicas by partition. Raises ReassignmentPlanError,
    which names `source`."""
    try:
        document = json.loads(text)
        if document["version"] != 1:
            raise ValueError(f"version {document['version']!r} is not 1")
        wanted = {
            TopicPartition(str(row["topic"]), int(row["partition"])): tuple(int(broker) for broker in row["replicas"])
            for row in document["partitions"]
        }
    except (ValueError, KeyError, TypeError) as error:
        hint = 'it should be {"version": 1, "partitions": [{"topic", "partition", "replicas"}, …]}'
        raise ReassignmentPlanError("read plan", source, f"{type(error).__name__}: {error}", hint) from error
    if len(wanted) != len(document["partitions"]):
        raise ReassignmentPlanError("read plan", source, "a partition stands in it twice")
    return wanted


def _those(cluster: ClusterReplicas) -> str:
    return f"there are {', '.join(map(str, sorted(cluster.racks)))}"


def check_living(cluster: ClusterReplicas, brokers: Collection[int]) -> None:
    unknown = set(brokers) - set(cluster.racks)
    if unknown:
        raise ReassignmentPlanError("plan", f"broker {min(unknown)}", "no such broker lives", _those(cluster))


class _Takers:
    """The brokers that may take replicas: their load grows with each replica and leader that is planned for them."""

    def __init__(self, cluster: ClusterReplicas, loads: Loads, allowed: set[int]) -> None:
        self._racks, self._loads, self._allowed = cluster.racks, loads, allowed
        carried = broker_loads(cluster, loads)
        self._scale = scales(carried)
        self._load = {broker: self._scaled(load) for broker, load in carried.items()}
        self._led = Counter(partition.replicas[0] for partition in cluster.partitions)

    def _scaled(self, load: Load) -> list[float]:
        return [amount * scale for amount, scale in zip(load, self._scale, strict=True)]

    def replace(self, partition: PartitionReplicas) -> tuple[int, ...]:
        """Return the partition's replicas, where others are in the place of brokers that are not allowed.

        Raises ReassignmentPlanError.
        """
        replicas = list(partition.replicas)
        taken_in, led, stored = self._scaled(self._loads.get(partition.topic_partition, UNKNOWN_LOAD))
        for position, broker in enumerate(partition.replicas):
            if broker not in self._allowed:
                taker = replicas[position] = self._taker(partition.topic_partition, replicas, position)
                self._load[taker][0] += taken_in
                self._load[taker][2] += stored
        if replicas[0] != partition.replicas[0]:
            # The one that leads least, preferably one already in sync.
            leader = min(
                replicas,
                key=lambda one: (self._load[one][1], self._led[one], one not in partition.in_sync, one),
            )
            self._load[leader][1] += led
            self._led[leader] += 1
            replicas.remove(leader)
            replicas.insert(0, leader)
        return tuple(replicas)

    def _taker(self, where: TopicPartition, replicas: Sequence[int], position: int) -> int:
        racks = Counter(self._racks.get(broker) for at, broker in enumerate(replicas) if at != position)
        takers = sorted(self._allowed - set(replicas))
        if not takers:
            raise ReassignmentPlanError(
                "plan",
                str(where),
                f"{len(replicas)} replicas need as many brokers, and {len(self._allowed)} may take them",
                "add a broker, or lower the replication factor first",
            )
        return min(takers, key=lambda broker: (racks[self._racks[broker]], sum(self._load[broker]), broker))
