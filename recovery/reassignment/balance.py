"""Plans to balance all brokers, or to fill one that joins. Sans-IO.

A broker's load has three parts (`plan.Load`), and each counts as a multiple of the mean over all brokers. One partition
is changed at a time: its leader, which costs nothing, or the broker of one replica. The change is that which brings the
sum of squares of these multiples down most, of all changes that take load from the broker with the largest multiple for
which one helps. So every step makes the loads more alike and the plan ends, at the latest once all brokers are within
`ALIKE` of each other.

A replica never goes where it lowers the number of racks of its partition. Partitions and brokers are rows of arrays,
because a cluster may have 100,000 of the one and tens of thousands of steps: a step looks at the partitions of one
broker together.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recovery.reassignment.plan import (
    LEADERLESS,
    UNKNOWN_LOAD,
    ClusterReplicas,
    Loads,
    Move,
    ReassignmentPlan,
    broker_loads,
    check_living,
    scales,
)

ALIKE: Final = 0.2
"""Loads that differ by less than this part of their mean are left as they are."""
_LEAST_GAIN: Final = 1e-9
_TAKERS: Final = 5
"""So many of the brokers with the smallest load are tried for a replica."""
_BROKERS_A_STEP: Final = 10
"""A broker for which nothing helped is looked at again after one step for so many brokers: in large clusters one step
changes little."""
_IN, _OUT, _STORED = range(3)
_NOBODY: Final = -1
"""Stands after the replicas of a partition that has fewer than others; the last row of arrays by broker."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class _Step(NamedTuple):
    """A change of one partition, by their rows."""

    added: float
    """What it adds to the sum of squares."""
    partition: int
    giver: int
    taker: int


def plan_balance(
    cluster: ClusterReplicas, loads: Loads, most: int | None = None, joining: int | None = None
) -> ReassignmentPlan:
    """Make the loads of all living brokers alike, or only fill the broker that is joining, by at most `most` moves.

    Replicas on dead brokers stay, because those may come back; drain the brokers that will not. Raises
    ReassignmentPlanError.
    """
    if joining is not None:
        check_living(cluster, [joining])
    if not cluster.partitions or not cluster.racks:
        return ReassignmentPlan(())
    return _Balance(cluster, loads, joining).plan(most)


class _Balance:
    """The replicas and loads, changed step by step."""

    def __init__(self, cluster: ClusterReplicas, loads: Loads, joining: int | None) -> None:
        self._partitions = sorted(
            (one for one in cluster.partitions if one.leader >= 0), key=lambda one: one.topic_partition
        )
        self._left = {one.topic_partition: LEADERLESS for one in cluster.partitions if one.leader < 0}
        dead = {broker for one in cluster.partitions for broker in one.replicas} - set(cluster.racks)
        self._ids = [*sorted(cluster.racks), *sorted(dead)]
        self._living = len(cluster.racks)
        row = {broker: at for at, broker in enumerate(self._ids)}
        widest = max((len(one.replicas) for one in self._partitions), default=0)
        rows = [[row[broker] for broker in one.replicas] for one in self._partitions]
        padded = [[*brokers, *[_NOBODY] * (widest - len(brokers))] for brokers in rows]
        self._replicas = np.array(padded, dtype=np.int32).reshape(len(rows), widest)
        racks = {rack: at for at, rack in enumerate(set(cluster.racks.values()))}
        alone = range(len(racks), len(racks) + len(dead) + 1)  # nobody knows the racks of the dead
        of_living = (racks[cluster.racks[one]] for one in self._ids[: self._living])
        self._rack = np.array([*of_living, *alone], dtype=np.int32)

        carried = broker_loads(cluster, loads)
        load = np.array([carried[one] for one in self._ids[: self._living]])
        self._scale = np.array(scales(carried))
        amounts = [loads.get(one.topic_partition, UNKNOWN_LOAD) for one in self._partitions]
        self._amounts = np.array(amounts).reshape(len(rows), 3) * self._scale
        self._load = np.zeros((len(self._rack), 3))
        self._load[: self._living] = load * self._scale
        self._of_broker = [np.flatnonzero((self._replicas == at).any(axis=1)) for at in range(self._living)]
        self._steps = 0
        self._idle_until: dict[tuple[int, int], int] = {}
        """By part and giver: the step before which nothing is expected to help."""
        self._joining = None if joining is None else row[joining]
        self._may_take = np.zeros(len(self._rack), dtype=bool)
        self._may_take[range(self._living) if self._joining is None else self._joining] = True

    def plan(self, most: int | None) -> ReassignmentPlan:
        """Change one partition at a time until loads are alike, nothing helps, or `most` partitions have changed."""
        changed = set[int]()
        while most is None or len(changed) < most:
            step = self._best_step()
            if step is None and self._idle_until:
                self._idle_until.clear()
                step = self._best_step()
            if step is None:
                break
            self._take(step)
            self._steps += 1
            changed.add(step.partition)
        after = {at: tuple(self._ids[broker] for broker in self._replicas[at] if broker >= 0) for at in sorted(changed)}
        moves = (Move(self._partitions[at].topic_partition, self._partitions[at].replicas, after[at]) for at in after)
        return ReassignmentPlan(tuple(move for move in moves if move.before != move.after), self._left)

    def _best_step(self) -> _Step | None:
        """Return the change that helps most, from the broker with the largest load for which there is one."""
        load = self._load[: self._living]
        parts = [part for part in range(3) if self._scale[part] and self._differs(load[:, part])]
        fullest = sorted(((load[at, part], part, at) for part in parts for at in range(self._living)), reverse=True)
        for _, part, giver in fullest:
            if self._steps < self._idle_until.get((part, giver), 0):
                continue
            takers = np.flatnonzero(self._may_take[: self._living])
            emptiest = takers[np.argsort(load[takers, part], kind="stable")]
            best = self._best_of(giver, emptiest[emptiest != giver][:_TAKERS])
            if best is not None and best.added < -_LEAST_GAIN:
                return best
            self._idle_until[part, giver] = self._steps + self._living // _BROKERS_A_STEP
        return None

    def _differs(self, load: Floats) -> bool:
        if self._joining is None:
            return bool(load.max() - load.min() > ALIKE)
        return bool(1.0 - load[self._joining] > ALIKE / 2)

    def _best_of(self, giver: int, takers: Ints) -> _Step | None:
        """Return the change of one of the giver's partitions that helps most; of equal ones, one that copies nothing,
        and the first partition.
        """
        rows = self._of_broker[giver]
        replicas, gap = self._replicas[rows], self._load - self._load[giver]
        leads = replicas[:, 0] == giver
        amounts = self._amounts[rows]
        amounts[:, _OUT] *= leads
        added = amounts @ gap[takers].T + (amounts**2).sum(axis=1)[:, np.newaxis]
        racks = np.where(replicas == giver, _NOBODY, self._rack[replicas])
        loses_a_rack = _any_is(racks, self._rack[takers]) & ~_any_is(racks, self._rack[[giver]])
        copied = np.where(_any_is(replicas, takers) | loses_a_rack, np.inf, added)
        heirs, out = replicas[leads, 1:], amounts[leads, _OUT, np.newaxis]
        led = np.where(self._may_take[heirs], out * (gap[heirs, _OUT] + out), np.inf)
        found = []
        for copies, sums, of, whose in (
            (False, led, heirs, rows[leads]),
            (True, copied, np.broadcast_to(takers, copied.shape), rows),
        ):
            if sums.size:
                at = int(np.argmin(sums))
                found.append((2 * float(sums.flat[at]), copies, int(whose[at // sums.shape[1]]), int(of.flat[at])))
        if not found:
            return None
        least, _, partition, taker = min(found)
        return _Step(least, partition, giver, taker)

    def _take(self, step: _Step) -> None:
        replicas = self._replicas[step.partition]
        moved = self._amounts[step.partition].copy()
        [place] = np.flatnonzero(replicas == step.giver)
        if step.taker in replicas:  # leads from now on
            rest = replicas[replicas != step.taker]
            replicas[:] = [step.taker, *rest]
            moved[[_IN, _STORED]] = 0.0
        else:
            replicas[place] = step.taker
            moved[_OUT] *= place == 0
            given, taken = self._of_broker[step.giver], self._of_broker[step.taker]
            self._of_broker[step.giver] = np.delete(given, np.searchsorted(given, step.partition))
            self._of_broker[step.taker] = np.insert(taken, np.searchsorted(taken, step.partition), step.partition)
        self._load[step.giver] -= moved
        self._load[step.taker] += moved


def _any_is(rows: Ints, wanted: Ints) -> NDArray[np.bool_]:
    """Return for each row and each wanted number whether the row has it; rows are short."""
    found = np.zeros((len(rows), len(wanted)), dtype=np.bool_)
    for column in rows.T:
        found |= column[:, np.newaxis] == wanted
    return found
