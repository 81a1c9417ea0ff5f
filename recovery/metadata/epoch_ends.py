"""Finds where epochs end and begin, by leaders' death declarations, beyond the objects that they name. Sans-IO.

A leader that declares an epoch's records dead from an offset on (`rlm.lifecycle.failover`) names a combined segment,
and that mark goes when the segment does. But the declaration is about the log: in that leader's log, the older epoch
ends there, or before, if the segment begins behind the end. So it also holds for copies that no declaration can name:
archive objects that reach beyond the end. This matters most after a restoration to a point in time, whose end no record
shows until something is written behind it.

Only clocks of two hosts could say whether an object was written before a declaration or after it, and they prove
nothing. So an object that nobody published, or that is younger than the snapshot with the declarations, is the log's.

An unclean election, or a recovery that did not know of the declaration, may bring such records back. Cutting them off
again would lose acknowledged records, above all those that were written behind them. So a declaration is valid only
while nothing contradicts it:

- The declarer's own epoch was declared dead in turn, at or before that offset: the log that continued is another one.
- A segment has records of the older epoch beyond the end that no declaration names: the leader names all that it
  knows, so they may have been uploaded again (as the next leader does: `rlm.write_path.reading.resume_point`). The
  topic remembers that even if the segment was released because an archive object covers it.
- A newer leader than the declarer wrote behind that end, and the stored records of epochs before the declarer's reach
  up to there without a break, if nothing is cut off. (What the declarer wrote does not count: if it exists, its log
  continued. Compaction may have removed the records at its begin, and left a hole that cut-off ones would fill.)

Declarations are judged from the newest declarer's down, so that a cut-off one never counts.

Sometimes they show where the newest declarer's own epoch begins, although nothing of it was uploaded: if it says that
exactly the previous epoch ends at an offset, and that epoch's record before this offset is in the named segment, its
own epoch begins there. Without that record, the epoch may have ended earlier. If epochs lie between, it is unknown
which of them begins there, and nothing is concluded. Epochs do lie between whenever a partition was without a leader in
the meantime, because KRaft counts that as an epoch too: for instance with each partition of one replica. (Leaders
before the newest one do not matter: an epoch without records has no place in a log that a later one follows.)

Declarations outlive the objects, because the metadata store and its snapshots keep them. The effect is unknown only of
a declaration that no snapshot kept and the topic has forgotten. It is also unknown
for an epoch that was abandoned when no combined segment beyond its end was left to be named: what archive objects hold
of it counts as the log's, up to where a newer epoch begins.
"""

from collections.abc import Iterable, Mapping, Sequence

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.store.declared_ends import DeclaredEnd
from metadata_topic.store.released_offsets import ReleasedUpTo
from recovery.logs.log_plan import EpochStart
from recovery.logs.stored_run import StoredRun


class StandingEnds:
    """The declared ends of one partition's epochs that are valid."""

    def __init__(self, by_epoch: Mapping[int, Sequence[DeclaredEnd]]) -> None:
        self._by_epoch = by_epoch

    def end_of(self, leader_epoch: int) -> int | None:
        """Return the offset from which on the epoch's records are dead; None if none are."""
        return min((one.end_offset for one in self._by_epoch.get(leader_epoch, ())), default=None)

    def cut(self, run: StoredRun) -> StoredRun:
        """Return the living part of a run of an archive object."""
        end = self.end_of(run.leader_epoch)
        if end is None or end > run.living_last_offset:
            return run
        return run._replace(living_last_offset=end - 1)


class EpochEnds:
    """Decides which of the declared ends of epochs in a metadata store are valid."""

    def __init__(self, declared: Iterable[DeclaredEnd] = (), gone: Iterable[ReleasedUpTo] = ()) -> None:
        """`gone` are, by partition and epoch, the offsets that living records reached which are no longer stored."""
        self._declared: dict[TopicIdPartition, dict[int, dict[int, DeclaredEnd]]] = {}
        """By the declarer's epoch, then by the epoch that ends."""
        for one in declared:
            by_declarer = self._declared.setdefault(one.topic_id_partition, {})
            by_declarer.setdefault(one.declarer_epoch, {})[one.leader_epoch] = one
        self._gone = {one[:2]: max(one.offset, one.reached) for one in gone if one.topic_id_partition in self._declared}

    def partitions(self) -> list[TopicIdPartition]:
        """Return the partitions with any declaration."""
        return list(self._declared)

    def find_valid(
        self,
        partition: TopicIdPartition,
        living: Sequence[StoredRun] = (),
        archived: Sequence[StoredRun] = (),
    ) -> StandingEnds:
        """Return the valid declarations, given the runs of archive objects, and other stored runs that declarations
        do not name."""
        by_declarer = self._declared.get(partition, {})
        standing: dict[int, list[DeclaredEnd]] = {}
        for declarer in sorted(by_declarer, reverse=True):
            ends = StandingEnds(standing)
            runs = sorted([*living, *map(ends.cut, archived)], key=lambda run: run.first_offset)
            newer = [run.first_offset for run in runs if run.leader_epoch > declarer and _lives(run)]
            older = [run for run in runs if run.leader_epoch < declarer]
            said = [
                (epoch, declared)
                for epoch, declared in by_declarer[declarer].items()
                if not self._is_overtaken(partition, declarer, declared.end_offset)
                and not self._lives_on(declared, living)
                and not _goes_on(declared.end_offset, older, newer)
            ]
            for epoch, declared in said:
                standing.setdefault(epoch, []).append(declared)
        return StandingEnds(standing)

    def starts(self) -> dict[TopicIdPartition, list[EpochStart]]:
        """Return by partition the start of the newest declarer's epoch, if known; that epoch may have no record."""
        found = {}
        for partition, by_declarer in self._declared.items():
            newest = max(by_declarer)
            before = by_declarer[newest].get(newest - 1)
            if before is not None and before.is_exact:
                found[partition] = [EpochStart(newest, before.end_offset)]
        return found

    def _is_overtaken(self, partition: TopicIdPartition, declarer: int, end_offset: int) -> bool:
        """Whether the declarer's own records are dead from there on."""
        said = (ends.get(declarer) for ends in self._declared[partition].values())
        return any(own is not None and own.end_offset <= end_offset for own in said)

    def _lives_on(self, declared: DeclaredEnd, living: Iterable[StoredRun]) -> bool:
        """Whether there are, or were, living records of the epoch beyond that end."""
        ends = (
            run.living_last_offset + 1 for run in living if _lives(run) and run.leader_epoch == declared.leader_epoch
        )
        gone = self._gone.get((declared.topic_id_partition, declared.leader_epoch), 0)
        return max(gone, *ends, 0) > declared.end_offset


def _lives(run: StoredRun) -> bool:
    return run.living_last_offset >= run.first_offset


def _goes_on(end_offset: int, runs: Iterable[StoredRun], newer: Iterable[int]) -> bool:
    """Whether `runs`, by their first offsets, reach from `end_offset` to a first offset of `newer` without a break."""
    wanted = min((first for first in newer if first > end_offset), default=None)
    if wanted is None:
        return False
    reached = end_offset
    for run in runs:
        if run.first_offset > reached or reached >= wanted:
            break
        reached = max(reached, run.living_last_offset + 1)
    return reached >= wanted
