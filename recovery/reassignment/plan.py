"""Plans which replicas go where: as a file says, to drain a broker, or to balance all brokers. Sans-IO.

A plan changes as little as possible: replicas are replaced only if they must go, and moved only from a broker with at
least two more than the receiving one, so each step brings the counts closer together and the plan ends. A replica never
goes where it lowers the number of racks of its partition; among the possible brokers, one in a rack without the
partition comes first. Changing the leader costs nothing: it is the order of the replicas, the preferred leader first.

The number of replicas and of preferred leaders counts, not bytes: with replicas that begin at the tier, a move costs
about the same whatever the partition's size. Partitions without a leader cannot be moved and are left unchanged; the
plan says so.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


class ReassignmentPlanError(Exception):
    """Such a plan is impossible."""

    def __init__(self, operation: str, key: str, reason: str, hint: str = "") -> None:
        self.operation, self.key, self.reason, self.hint = operation, key, reason, hint
        super().__init__(f"{operation} {key}: {reason}" + (f" ({hint})" if hint else ""))


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition by name, as in Kafka's reassignments."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """A partition as in the cluster's metadata. `leader` is -1 when there is none."""

    topic_partition: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    """Broker ids, the preferred leader first."""
    in_sync: frozenset[int]


@dataclass(frozen=True, slots=True)
class ClusterReplicas:
    """All partitions and the living brokers."""

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
    """Moves, and what could not be planned."""

    moves: tuple[Move, ...]
    left: dict[TopicPartition, str] = field(default_factory=dict)
    """Partitions that should have been moved and cannot be, with the reason."""


def plan_drain(cluster: ClusterReplicas, broker: int) -> ReassignmentPlan:
    """Take every replica off a broker, which need not be alive; others stay where they are.

    Raises ReassignmentPlanError.
    """
    scope = [partition for partition in cluster.partitions if broker in partition.replicas]
    if not scope and broker not in cluster.racks:
        raise ReassignmentPlanError(
            "plan", f"broker {broker}", "no such broker lives, and no partition has a replica on it", _those(cluster)
        )
    draft = _Draft(cluster, scope, set(cluster.racks) - {broker}, counted=cluster.partitions)
    draft.replace()
    return draft.plan()


def plan_balance(cluster: ClusterReplicas) -> ReassignmentPlan:
    """Balance replicas and preferred leaders over all living brokers.

    Replicas on dead brokers stay, because those may come back; drain the brokers that will not.
    """
    draft = _Draft(cluster, cluster.partitions, set(cluster.racks), counted=cluster.partitions)
    draft.even_out()
    draft.even_leaders()
    return draft.plan()


def plan_as_given(cluster: ClusterReplicas, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> ReassignmentPlan:
    """Return the moves that lead to these replicas. Raises ReassignmentPlanError when that is impossible."""
    known = {partition.topic_partition: partition for partition in cluster.partitions}
    moves = []
    for where, replicas in sorted(wanted.items()):
        if where not in known:
            raise ReassignmentPlanError("plan", str(where), "there is no such partition")
        if not replicas or len(set(replicas)) != len(replicas):
            raise ReassignmentPlanError("plan", str(where), f"{list(replicas)} is not a list of different brokers")
        _check_living(cluster, set(replicas) - set(known[where].replicas))
        moves.append(Move(where, known[where].replicas, replicas))
    return _without_leaderless([move for move in moves if move.before != move.after], known)


def write_plan(plan: ReassignmentPlan) -> str:
    """Return the plan as kafka-reassign-partitions.sh takes it with --reassignment-json-file."""
    partitions = [
        {"topic": move.topic_partition.topic, "partition": move.topic_partition.partition, "replicas": list(move.after)}
        for move in plan.moves
    ]
    return json.dumps({"version": 1, "partitions": partitions})


def read_plan(text: str, source: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Parse such a plan: the wanted replicas by partition. Raises ReassignmentPlanError; `source` is named in it."""
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


def _check_living(cluster: ClusterReplicas, brokers: Collection[int]) -> None:
    unknown = set(brokers) - set(cluster.racks)
    if unknown:
        raise ReassignmentPlanError("plan", f"broker {min(unknown)}", "no such broker lives", _those(cluster))


def _without_leaderless(moves: Sequence[Move], known: dict[TopicPartition, PartitionReplicas]) -> ReassignmentPlan:
    left = {
        move.topic_partition: "it has no leader, from which a replica could be made"
        for move in moves
        if known[move.topic_partition].leader < 0
    }
    return ReassignmentPlan(tuple(move for move in moves if move.topic_partition not in left), left)


class _Draft:
    """The planned replicas, changed step by step."""

    def __init__(
        self,
        cluster: ClusterReplicas,
        scope: Sequence[PartitionReplicas],
        allowed: set[int],
        counted: Sequence[PartitionReplicas],
    ) -> None:
        """Partitions of `scope` may change, brokers of `allowed` may get replicas, `counted` are balanced."""
        self._racks = cluster.racks
        self._allowed = allowed
        self._before = {partition.topic_partition: partition for partition in scope}
        self._movable = sorted(where for where, partition in self._before.items() if partition.leader >= 0)
        self._after = {where: list(partition.replicas) for where, partition in self._before.items()}
        self._replicas = Counter(broker for partition in counted for broker in partition.replicas)
        self._leaders = Counter(partition.replicas[0] for partition in counted)

    def plan(self) -> ReassignmentPlan:
        moves = [
            Move(where, partition.replicas, tuple(self._after[where]))
            for where, partition in sorted(self._before.items())
            if tuple(self._after[where]) != partition.replicas or not self._allowed >= set(partition.replicas)
        ]
        found = _without_leaderless(moves, self._before)
        return ReassignmentPlan(tuple(move for move in found.moves if move.before != move.after), found.left)

    def replace(self) -> None:
        """Replace each replica on a broker that is not allowed."""
        for where in self._movable:
            replicas = self._after[where]
            for position, broker in enumerate(replicas):
                if broker not in self._allowed:
                    self._set(where, position, self._taker(where, position))
            if replicas[0] != self._before[where].replicas[0]:
                # The one that leads fewest, preferably one already in sync.
                in_sync = self._before[where].in_sync
                best = min(replicas, key=lambda broker: (self._led(broker, replicas[0]), broker not in in_sync, broker))
                self._lead(where, best)

    def _led(self, broker: int, now_leading: int) -> int:
        return self._leaders[broker] - (broker == now_leading)

    def _taker(self, where: TopicPartition, position: int) -> int:
        replicas = self._after[where]
        others = [broker for at, broker in enumerate(replicas) if at != position]
        racks = Counter(self._racks.get(broker) for broker in others)
        takers = sorted(self._allowed - set(replicas))
        if not takers:
            raise ReassignmentPlanError(
                "plan",
                str(where),
                f"{len(replicas)} replicas need as many brokers, and {len(self._allowed)} may take them",
                "add a broker, or lower the replication factor first",
            )
        return min(takers, key=lambda broker: (racks[self._racks[broker]], self._replicas[broker], broker))

    def even_out(self) -> None:
        """Move replicas from the fullest to the emptiest, until no such move helps."""
        while self._even_step():
            pass

    def _even_step(self) -> bool:
        by_count = sorted(self._allowed, key=lambda broker: (self._replicas[broker], broker))
        for full in reversed(by_count):
            for empty in by_count:
                if self._replicas[full] - self._replicas[empty] < 2:
                    break
                if self._move_one(full, empty):
                    return True
        return False

    def _move_one(self, full: int, empty: int) -> bool:
        # A replica that does not lead goes first: its leader stays where it is.
        candidates = sorted((self._after[where][0] == full, where) for where in self._movable)
        for _, where in candidates:
            replicas = self._after[where]
            if full not in replicas or empty in replicas:
                continue
            moved = [empty if broker == full else broker for broker in replicas]
            if self._rack_count(moved) >= self._rack_count(replicas):
                self._set(where, replicas.index(full), empty)
                return True
        return False

    def _rack_count(self, replicas: Iterable[int]) -> int:
        return len({self._racks.get(broker, f"broker {broker}") for broker in replicas})

    def even_leaders(self) -> None:
        """Reorder replicas until no broker is the preferred leader of two more than another that could be."""
        changed = True
        while changed:
            changed = False
            for where in self._movable:
                replicas = self._after[where]
                heir = min(
                    (broker for broker in replicas if broker in self._allowed),
                    key=lambda broker: (self._leaders[broker], broker),
                    default=replicas[0],
                )
                if self._leaders[replicas[0]] - self._leaders[heir] >= 2:
                    self._lead(where, heir)
                    changed = True

    def _set(self, where: TopicPartition, position: int, broker: int) -> None:
        replicas = self._after[where]
        old, replicas[position] = replicas[position], broker
        self._replicas[old] -= 1
        self._replicas[broker] += 1
        if position == 0:
            self._leaders[old] -= 1
            self._leaders[broker] += 1

    def _lead(self, where: TopicPartition, broker: int) -> None:
        replicas = self._after[where]
        self._leaders[replicas[0]] -= 1
        self._leaders[broker] += 1
        replicas.remove(broker)
        replicas.insert(0, broker)
