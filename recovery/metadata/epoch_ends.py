"""Where epochs end and begin, by what leaders declared dead: beyond the objects that they name. Sans-IO.

Theory. A leader that declares an epoch's records dead from an offset on (`rlm.lifecycle.failover`) names a combined
segment, and that mark goes when the segment does. But what it says is of the log: as of that leader, the older epoch
ends there, or before, if the segment begins behind the end. So it holds as well for copies that no declaration can
name, because nobody had told of them: an object whose agent died before it published it, and an archive object that
reaches beyond the end. Above all this is so after a restoration to a point in time, whose end no record tells until
something is written behind it.

An unclean election, or a recovery that did not know of the declaration, may bring such records back. To cut them off
again would lose acknowledged records, those that were written behind them above all. So a declaration stands only while
nothing speaks against it:

- The declarer's own epoch was declared dead in turn, at or before that offset: its log is not the one that went on.
- Records of the older epoch beyond the end were uploaded after the declaration (as whoever leads then does:
  `rlm.write_path.reading.resume_point`). The topic remembers that even where the upload was released, as an archive
  object covers it.
- A newer leader than the declarer wrote behind that end, and what is stored of epochs before the declarer's reaches up
  to there without a break, if nothing is cut off. (What the declarer wrote does not count: where it stands, its log
  went on. Compaction may have taken the records at its begin, and left a hole that cut off ones would fill.)

Declarations are judged from the newest declarer's down, so that nothing counts that is cut off itself.

Where the newest declarer's own epoch begins follows from them at times, though nothing of it was uploaded: if it says
that the very epoch before ends at an offset, and that epoch's record before this offset is in the segment that it
names, it is its own that begins there. Without that record, the epoch may have ended before. If epochs lie between, it
is not known which of them begins there, and nothing is concluded. They do lie between wherever a partition was without
a leader in the meantime, as KRaft counts that as an epoch too: so it is with each partition of one replica. (Of leaders
before the newest one nothing need be known: an epoch without records has no place in a log that a later one follows.)

Declarations outlive the unpublished objects: the topic keeps its records for longer than any object of it lives.
Archive objects live longer than that; what follows from a declaration that the topic has forgotten is not known. Nor is
it known of an epoch that was abandoned when no combined segment beyond its end was left to be named, or told of: what
archive and unpublished objects hold of it is taken for the log's, up to where a newer epoch begins.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from plugin.format.entry_columns import decode_columns
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from recovery.logs.log_plan import EpochStart
from recovery.logs.stored_run import StoredRun


class _Declaration(NamedTuple):
    """All that one leader said of one older epoch: its own log's leader epochs do not change while it leads."""

    end_offset: int
    """The epoch ends there, or before."""
    declared_ms: int
    """The last time it said so."""
    is_exact: bool
    """Whether the epoch ends at that very offset."""


class _Reach(NamedTuple):
    """A finished segment was written at this time and reaches up to this offset, inclusive."""

    written_ms: int
    last_offset: int


class StandingEnds:
    """One partition's declarations that stand."""

    def __init__(self, by_epoch: Mapping[int, Sequence[_Declaration]]) -> None:
        self._by_epoch = by_epoch

    def end_of(self, leader_epoch: int, written_ms: int) -> int | None:
        """From which offset on the epoch's records are dead in an object that was written then, in milliseconds since
        1970 by its writer's clock; None when nobody said so.
        """
        declared = self._by_epoch.get(leader_epoch, ())
        return min((one.end_offset for one in declared if written_ms <= one.declared_ms), default=None)

    def cut(self, run: StoredRun) -> StoredRun:
        """What is left of a run that no declaration can name."""
        end = self.end_of(run.leader_epoch, run.stored_in.written_ms)
        if end is None or end > run.living_last_offset:
            return run
        return run._replace(living_last_offset=end - 1)


class EpochEnds:
    """Filled by one thread, then read."""

    def __init__(self) -> None:
        self._declared: dict[TopicIdPartition, dict[int, dict[int, _Declaration]]] = {}
        """By the declarer's epoch, then by the one that it says ends."""
        self._uploaded: dict[tuple[TopicIdPartition, int], list[_Reach]] = {}
        """By partition and epoch, without those that an other one, as young at least, reaches as far as."""

    def add(
        self, record: RemoteWalLogSegmentMetadataUpdate, named: Iterable[RemoteLogSegmentMetadataEntry] = ()
    ) -> None:
        """Take in what a leader declared, in any order. Of its own epoch, or a newer one, it cannot know.

        `named` are the segment's entries, as far as they are known.
        """
        of_segment = list(named)
        for entry in record.entries:
            if entry.leader_epoch >= record.leader_epoch:
                continue
            end = entry.first_offset
            is_exact = any(
                (one.topic_id_partition, one.leader_epoch) == (entry.topic_id_partition, entry.leader_epoch)
                and one.first_offset < end <= one.last_offset + 1
                for one in of_segment
            )
            new = _Declaration(end, record.event_timestamp_ms, is_exact)
            by_declarer = self._declared.setdefault(entry.topic_id_partition, {})
            ends = by_declarer.setdefault(record.leader_epoch, {})
            known = ends.get(entry.leader_epoch, new)
            ends[entry.leader_epoch] = _Declaration(
                min(known.end_offset, new.end_offset),
                max(known.declared_ms, new.declared_ms),
                min(known, new, key=_tightest).is_exact,
            )

    def uploaded(self, entry_block: bytes, written_ms: int) -> None:
        """Take in what a finished segment holds, in any order; entries as `plugin.format.entry_columns` encodes them.

        The topic tells of many more segments than there are, so whole entries are not made of them.
        """
        if not entry_block:
            return
        columns = decode_columns(entry_block)
        topics = [TopicId(topic_id.tobytes()) for topic_id in columns["topic_ids"]]
        names = ("topic_index", "partition", "leader_epoch", "last_offset")
        for topic, partition, epoch, last in zip(*(columns[name].tolist() for name in names), strict=True):
            new = _Reach(written_ms, last)
            key = (TopicIdPartition(topics[topic], partition), epoch)
            known = self._uploaded.get(key)
            if known is None:
                self._uploaded[key] = [new]
            elif not any(one.written_ms >= written_ms and one.last_offset >= last for one in known):
                known[:] = [one for one in known if one.written_ms > written_ms or one.last_offset > last]
                known.append(new)

    def partitions(self) -> list[TopicIdPartition]:
        """Those about which anything was declared."""
        return list(self._declared)

    def standing(
        self, partition: TopicIdPartition, named: Sequence[StoredRun] = (), unnamed: Sequence[StoredRun] = ()
    ) -> StandingEnds:
        """What is left of the declarations, beside all that is stored: `named` are the runs of finished segments, as
        far as they live, and `unnamed` those of other objects, whole.
        """
        by_declarer = self._declared.get(partition, {})
        standing: dict[int, list[_Declaration]] = {}
        for declarer in sorted(by_declarer, reverse=True):
            ends = StandingEnds(standing)
            runs = sorted([*named, *map(ends.cut, unnamed)], key=lambda run: run.first_offset)
            newer = [run.first_offset for run in runs if run.leader_epoch > declarer and _lives(run)]
            older = [run for run in runs if run.leader_epoch < declarer]
            said = [
                (epoch, declared)
                for epoch, declared in by_declarer[declarer].items()
                if not self._is_overtaken(partition, declarer, declared.end_offset)
                and not self._was_uploaded_anew(partition, epoch, declared, unnamed)
                and not _goes_on(declared.end_offset, older, newer)
            ]
            for epoch, declared in said:
                standing.setdefault(epoch, []).append(declared)
        return StandingEnds(standing)

    def starts(self) -> dict[TopicIdPartition, list[EpochStart]]:
        """Where epochs begin of which there may be no record."""
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

    def _was_uploaded_anew(
        self, partition: TopicIdPartition, leader_epoch: int, declared: _Declaration, unnamed: Iterable[StoredRun]
    ) -> bool:
        """Whether anything of the epoch beyond that end was written after it was declared."""
        reaches = [*self._uploaded.get((partition, leader_epoch), ())]
        reaches += [
            _Reach(run.stored_in.written_ms, run.last_offset) for run in unnamed if run.leader_epoch == leader_epoch
        ]
        return any(one.written_ms > declared.declared_ms and one.last_offset >= declared.end_offset for one in reaches)


def _tightest(declaration: _Declaration) -> tuple[int, bool]:
    return declaration.end_offset, not declaration.is_exact


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
