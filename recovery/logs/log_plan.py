"""Plans which parts of object storage make up one partition's log, from its start to its end. Sans-IO.

Objects hold runs: batches of one partition and one leader epoch, with their offsets. Runs overlap (uploaded twice, by
two agents, before and after a failover, in the archive too), and some are no longer the log's. The leader epochs alone
decide what is the log's (KIP-101). The leader of an epoch began to write where the log ended for it, so from the first
offset of an epoch on nothing of an older epoch is the log's. So, from the newest epoch down: an epoch begins at the
first offset of its runs, and ends where the next newer one begins; one that would begin behind its own end was
overwritten completely. A stale leader's runs are excluded by the same rule.

Two more facts come from the metadata topic if there is one: which runs are dead from some offset on, and where an epoch
began of which no record was uploaded (KIP-1176's failover: B2 leads with a log end offset of 5, and declares what B1
uploaded from there on dead). Without them, the end of an old leader's runs that a newer one truncated counts as the
log's as long as the newer one has uploaded nothing; no object can show otherwise. Such an epoch's start counts only
while the living records of older epochs end there. If older epochs' records continue past this offset, an unclean
election restored them: ignore the marker. If they end before it, the log was truncated again: their end counts.

Within an epoch any run that covers an offset is usable, because one leader writes an offset once; the one reaching
furthest is used. Runs that are known and cannot be read (their object is gone) count for finding the epochs and the
log's end, not for covering. Offsets that nothing covers are a gap, unless the log may have holes (it was compacted). If
the log's leader has declared that they cannot be had any more (`metadata_topic.records.declared_gaps`), the log
continues behind them, because Kafka's logs may lack offsets. Everything behind the first undeclared gap is left out.

But what is before a gap may be leftovers: old records that still exist because they share an object with younger ones.
The log begins behind the gap if everything before it is older than the topic's retention, or if the metadata says that
the gap's records were released because nobody wanted them: then nothing older is wanted either, however young its
object is. This also holds if the gap's first records were released and the others declared. The released records may be
all there was of an epoch. And it holds if the gap lies before the begin of the log's upload: what is before it was
uploaded by an agent whose objects are not known. If nothing of the kind explains why the first records of the log
cannot be read, because their objects are known and lost, the log ends before them, and is empty.

The log's own start comes from its leader or, once that is gone, from what leaders published last. Nothing below comes
back: somebody deleted it, or retention did. If KIP-405's tier holds what is before the local records, the log has the
leader epochs of that too: Kafka deletes from the tier what is of epochs older than the log's. A log of which nothing is
left comes back empty at its end, so that offsets continue: what was released, or declared, or lies below the log's
start had been written.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.declared_gaps import DeclaredGap
from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges, ranges_missing
from metadata_topic.store.released_offsets import ReleasedUpTo
from recovery.logs.stored_run import StoredRun


class Extent(NamedTuple):
    """The part of a run to restore: the batches from `first_offset` to `last_offset`, both inclusive."""

    run: StoredRun
    first_offset: int
    last_offset: int


class Gap(NamedTuple):
    """Offsets [from_offset, to_offset) that no readable run holds, although the log continued behind them."""

    from_offset: int
    to_offset: int


class EpochStart(NamedTuple):
    """The first offset of a leader epoch, or of its remaining records."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class PlanRules:
    """What is known about a log besides its runs: its start, released and declared offsets, retention."""

    may_have_holes: bool = False
    """Whether compaction removed records, so that offsets may be missing."""
    start_offset: int | None = None
    """The log's start; None: that of the runs."""
    retention_horizon_ms: int | None = None
    """Anything written before this time is expired; None: nothing is."""
    unexpired: frozenset[StoredRun] = frozenset()
    """Runs written before that time that are not expired, by their records' timestamps."""
    declared_gaps: tuple[DeclaredGap, ...] = ()
    """The leaders' declarations of offsets that nobody can have any more."""
    before_upload: tuple[DeclaredGap, ...] = ()
    """The leaders' declarations of where the upload began."""
    released: tuple[ReleasedUpTo, ...] = ()
    """Up to where the log's records went with their objects, because they were not wanted any more."""
    log_start: int | None = None
    """The log's start according to its leader; None: it has no leader."""
    log_starts: tuple[ReleasedUpTo, ...] = ()
    """The log's starts that its leaders published last."""
    begins_behind_last_gap: bool = False
    """Whether to take the newest unbroken stretch, whatever came before it."""
    tier_epochs: tuple[EpochStart, ...] | None = None
    """The leader epochs of the records that KIP-405's tier holds; None: unknown, or the log has no tier."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """One partition's log as it can be restored."""

    extents: tuple[Extent, ...]
    """In the order of the log. Without holes, each begins where the one before ends."""
    start_offset: int
    end_offset: int
    """Offset after the last one. Equal to `start_offset` when there is nothing."""
    leader_epochs: tuple[EpochStart, ...]
    """The lines of Kafka's leader-epoch-checkpoint; the newest may have no records."""
    gap: Gap | None = None
    """The gap that ends the log too early."""
    declared_gaps: tuple[Gap, ...] = ()
    """Declared gaps within the log."""

    @property
    def size_bytes(self) -> int:
        """Bytes to read; the log may be smaller, if only a part of a run is the log's."""
        return sum(extent.run.size_bytes for extent in self.extents)

    @property
    def written_ms(self) -> int | None:
        """When the newest object of the log was written: the recovery point. None without any."""
        return max((extent.run.stored_in.written_ms for extent in self.extents), default=None)


class LogRuns:
    """All stored runs of one partition, and the plans that follow from them. Immutable."""

    def __init__(
        self, runs: Iterable[StoredRun], lost: Iterable[StoredRun] = (), known_starts: Iterable[EpochStart] = ()
    ) -> None:
        """`lost` runs are in the metadata and cannot be read; `known_starts` are of epochs, with or without runs."""
        self._made_of = tuple(runs), tuple(lost), tuple(known_starts)
        runs, lost, known_starts = self._made_of
        self._runs: dict[int, list[StoredRun]] = {}
        for run in runs:
            if run.living_last_offset >= run.first_offset:
                self._runs.setdefault(run.leader_epoch, []).append(run)
        for of_epoch in self._runs.values():
            of_epoch.sort(key=lambda run: (run.first_offset, -run.living_last_offset, run.stored_in.is_archived))
        lost = [run for run in lost if run.living_last_offset >= run.first_offset]
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for of_epoch in (*self._runs.values(), lost):
            for run in of_epoch:
                epoch = run.leader_epoch
                starts[epoch] = min(run.first_offset, starts.get(epoch, run.first_offset))
                ends[epoch] = max(run.living_last_offset + 1, ends.get(epoch, 0))
        self.lineage = _lineage(starts)
        held = [(epoch, min(ends[epoch], end)) for (epoch, _), end in self._epoch_ranges()]
        for epoch, start in known_starts:
            reached = max((end for older, end in held if older < epoch), default=start)
            if reached == start:
                starts[epoch] = min(start, starts.get(epoch, start))
        self.lineage = _lineage(starts)
        self._reached = {
            epoch: min(max(ends.get(epoch, start), start), end) for (epoch, start), end in self._epoch_ranges()
        }
        self._known_end = max(self._reached.values(), default=0)
        self._first_lost = min((run.first_offset for run in lost), default=None)
        self._lost = lost

    def mark_unreadable(self, unreadable: Container[StoredRun]) -> "LogRuns":
        """Return the runs with these marked as unreadable."""
        readable = copy(self)
        readable._runs = {
            epoch: [run for run in of_epoch if run not in unreadable] for epoch, of_epoch in self._runs.items()
        }
        return readable

    def cut_off(self, from_offsets: Mapping[StoredRun, int]) -> "LogRuns":
        """Return the runs with each of these declared dead from its offset on."""
        runs, lost, known_starts = self._made_of
        living = (
            run._replace(living_last_offset=from_offsets[run] - 1) if run in from_offsets else run for run in runs
        )
        return LogRuns(living, lost, known_starts)

    def copies(self, offset: int) -> list[Extent]:
        """Return the runs that hold `offset` of this log as extents from `offset` on, the one that reaches furthest
        first."""
        found = []
        for (epoch, start), end in self._epoch_ranges():
            if start <= offset < end:
                for run in self._runs.get(epoch, ()):
                    last = min(run.living_last_offset, end - 1)
                    if run.first_offset <= offset <= last:
                        found.append(Extent(run, offset, last))
        return sorted(found, key=lambda extent: -extent.last_offset)

    def plan(self, rules: PlanRules) -> LogPlan:
        """Return how the log can be restored, under these rules."""
        plan = self._plan_of_stored(rules)
        return replace(plan, leader_epochs=self._epochs_with_tier(plan, rules)) if rules.tier_epochs else plan

    def _plan_of_stored(self, rules: PlanRules) -> LogPlan:
        stretches = list(self._stretches(rules))
        declared = self._declared(rules)
        begin = self._behind_released(stretches, rules, declared)
        while begin < len(stretches) - 1 and _is_passed_over(stretches[begin], rules):
            begin += 1
        if not stretches or self._are_leftovers(stretches, rules):
            return self._empty_plan(rules)
        if _lacks_its_start(stretches[0], rules, declared):
            return self._lacking_plan(rules.start_offset or 0, stretches[0][0].first_offset)
        chosen, missing = _over_declared(stretches[begin:], declared)
        passed_over = stretches[begin - 1][-1].last_offset + 1 if begin else 0
        if (first_lost := self._first_lost_between(passed_over, chosen[0].first_offset, rules)) is not None:
            return self._lacking_plan(first_lost, chosen[0].first_offset)
        start, end = chosen[0].first_offset, chosen[-1].last_offset + 1
        if rules.start_offset is not None and begin == 0:
            start = min(rules.start_offset, start) if rules.may_have_holes else start
        behind = next((one[0].first_offset for one in stretches if one[0].first_offset > end), self._known_end)
        gap = Gap(end, behind) if behind > end and not _is_within((end, behind), declared) else None
        epochs = self._epochs_between(start, end, is_natural_end=gap is None)
        return LogPlan(tuple(chosen), start, end, epochs, gap, missing)

    def passed_over(self, rules: PlanRules) -> list[Extent]:
        """Return the extents that are left out because they are before the log's start."""
        start = self.plan(rules).start_offset
        return [extent for stretch in self._stretches(rules) for extent in stretch if extent.last_offset < start]

    def lost_ranges(self, rules: PlanRules) -> list[OffsetRange]:
        """Return the offsets that lost objects alone hold and that the log should have, ascending.

        They are at or behind the log's start, and neither released, declared nor expired. Archived records are released
        with their combined segments, and needed all the same.
        """
        if not self._lost:
            return []
        begin, unwanted = max(rules.start_offset or 0, self.log_start(rules) or 0), self._unwanted_below(rules)
        bounds = {epoch: (start, end) for (epoch, start), end in self._epoch_ranges()}
        lost = []
        for run in self._lost:
            is_archived = run.stored_in.is_archived
            if run.leader_epoch not in bounds or (not is_archived and _has_expired(run, rules)):
                continue
            start, end = bounds[run.leader_epoch]
            first = max(run.first_offset, start, begin, 0 if is_archived else unwanted)
            if first < (end := min(run.living_last_offset + 1, end)):
                lost.append((first, end))
        held = [(one.first_offset, one.last_offset + 1) for stretch in self._stretches(rules) for one in stretch]
        known = joined_ranges([*held, *self._declared(rules)])
        return [part for whole in joined_ranges(lost) for part in ranges_missing(known, whole)]

    def log_start(self, rules: PlanRules) -> int | None:
        """Return the log's start; None if unknown."""
        if rules.log_start is not None or not rules.log_starts:
            return rules.log_start
        return max(map(self._start_of, rules.log_starts))

    def is_released(self, gap: Gap, rules: PlanRules) -> bool:
        """Whether the records at these offsets are no longer needed, except declared ones."""
        return _is_released(gap, self._unwanted_below(rules), self._declared(rules))

    def is_declared(self, gap: Gap, rules: PlanRules) -> bool:
        """Whether the log's leaders have declared that object storage can never have these offsets."""
        return _is_within(gap, self._declared(rules))

    def _behind_released(
        self, stretches: Sequence[Sequence[Extent]], rules: PlanRules, declared: Sequence[OffsetRange]
    ) -> int:
        """Return the first stretch that has no released gap behind it."""
        released = self._unwanted_below(rules)
        gaps = ((one[-1].last_offset + 1, other[0].first_offset) for one, other in pairwise(stretches))
        behind = (at for at, gap in enumerate(gaps, 1) if _is_released(gap, released, declared))
        return max(behind, default=0)

    def _are_leftovers(self, stretches: Sequence[Sequence[Extent]], rules: PlanRules) -> bool:
        """Whether everything that is stored has expired, and what was behind it was released."""
        is_released = self._unwanted_below(rules) > stretches[-1][-1].last_offset + 1
        return is_released and all(_is_expired(one, rules) for one in stretches)

    def _first_lost_between(self, begin: int, end: int, rules: PlanRules) -> int | None:
        """Return the first lost offset in [begin, end) that keeps the log from beginning at `end`; None without any."""
        if rules.may_have_holes or rules.begins_behind_last_gap:
            return None
        return next((first for first, _ in self.lost_ranges(rules) if begin <= first < end), None)

    def _unwanted_below(self, rules: PlanRules) -> int:
        """Return the offset below which everything was released, or was in the log before its upload began.

        The first agent that began counts, because later ones know everything from there on.
        """
        epochs = LeaderEpochs(self.lineage)
        begin = min((gap.end_in(epochs) for gap in rules.before_upload), default=0)
        return max(begin, *map(self._released_below, rules.released), 0)

    def _released_below(self, released: ReleasedUpTo) -> int:
        """Return the offset up to which this was released in this log; 0 if it is about another one.

        An epoch without remaining runs still has its place in the log, if no older records reach beyond it.
        """
        epoch = released.leader_epoch
        end = min(released.offset, *(start for newer, start in self.lineage if newer > epoch), _NO_END)
        is_of_log = epoch in self._reached or all(
            reached < end for older, reached in self._reached.items() if older < epoch
        )
        return end if is_of_log else 0

    def _start_of(self, told: ReleasedUpTo) -> int:
        """Return the log's start by a leader's record; 0 if that log was cut off below since."""
        newer = (start for epoch, start in self.lineage if epoch > told.leader_epoch)
        return 0 if any(start < told.offset for start in newer) else told.offset

    def _declared(self, rules: PlanRules) -> list[OffsetRange]:
        epochs = LeaderEpochs(self.lineage)
        return joined_ranges((gap.from_offset, gap.end_in(epochs)) for gap in rules.declared_gaps)

    def _lacking_plan(self, start: int, next_offset: int) -> LogPlan:
        """Return the plan of a log that lacks its first records; `next_offset` is where the next are held, or were."""
        return LogPlan((), start, start, (), Gap(start, next_offset))

    def _empty_plan(self, rules: PlanRules) -> LogPlan:
        """Return the plan of a log that holds nothing: it ends after its last record, unless those are lost."""
        begin = rules.start_offset if rules.start_offset is not None else self.log_start(rules) or 0
        released = [(one.leader_epoch, self._released_below(one)) for one in rules.released]
        gone = [*released, *((one.leader_epoch, self._start_of(one)) for one in rules.log_starts)]
        unwanted = max(begin, *(end for _, end in gone), *(end for _, end in self._declared(rules)), 0)
        if self._first_lost is not None and unwanted < self._known_end:
            return self._lacking_plan(max(begin, min(self._first_lost, self._known_end)), self._known_end)
        end = max(unwanted, self._known_end)
        newest = max((epoch for epoch, gone_to in gone if gone_to), default=-1)
        epochs = self._epochs_between(end, end, is_natural_end=True)
        if newest >= 0 and all(epoch.leader_epoch < newest for epoch in epochs):
            epochs = (EpochStart(newest, end),)
        return LogPlan((), end, end, epochs)

    def _epoch_ranges(self) -> Iterator[tuple[EpochStart, int]]:
        """Yield each epoch of the log with the offset behind its last one."""
        for index, epoch in enumerate(self.lineage):
            following = self.lineage[index + 1].start_offset if index + 1 < len(self.lineage) else _NO_END
            yield epoch, following

    def _stretches(self, rules: PlanRules) -> Iterator[list[Extent]]:
        """Yield unbroken, non-empty stretches of the log from the rules' start on."""
        stretch: list[Extent] = []
        position = rules.start_offset
        log_start = self.log_start(rules) or 0
        for (epoch, start), end in self._epoch_ranges():
            for extent in self._cover(epoch, max(position or 0, start, log_start), end):
                is_next = position is None or extent.first_offset == position or rules.may_have_holes
                if not is_next and stretch:
                    yield stretch
                    stretch = []
                stretch.append(extent)
                position = extent.last_offset + 1
        if stretch:
            yield stretch

    def _cover(self, epoch: int, start: int, end: int) -> Iterator[Extent]:
        """Yield the fewest runs that hold what is held of [start, end) of this epoch."""
        position = start
        best: StoredRun | None = None
        for run in self._runs.get(epoch, ()):
            if run.first_offset >= end or position >= end:
                break
            if run.living_last_offset < position:
                continue
            if best is not None and run.first_offset > position:
                last = min(best.living_last_offset, end - 1)
                yield Extent(best, max(position, best.first_offset), last)
                position, best = last + 1, None
                if run.living_last_offset < position:
                    continue
            if best is None or run.living_last_offset > best.living_last_offset:
                if best is None and run.first_offset > position:
                    position = run.first_offset
                best = run
        if best is not None and position < end:
            yield Extent(best, max(position, best.first_offset), min(best.living_last_offset, end - 1))

    def _epochs_with_tier(self, plan: LogPlan, rules: PlanRules) -> tuple[EpochStart, ...]:
        """Return the plan's leader epochs behind those that the log has before its local start, on the tier."""
        newest = plan.leader_epochs[0].leader_epoch if plan.leader_epochs else None
        starts = dict(plan.leader_epochs)
        for epoch, start in (*(rules.tier_epochs or ()), *self.lineage):
            if start < plan.start_offset and (newest is None or epoch <= newest):
                starts[epoch] = min(start, starts.get(epoch, start))
        begin, lineage = min(self.log_start(rules) or 0, plan.start_offset), _lineage(starts)
        ends = [*(start for _, start in lineage[1:]), _NO_END]
        return tuple(
            EpochStart(epoch, max(start, begin))
            for (epoch, start), end in zip(lineage, ends, strict=True)
            if end > begin
        )

    def _epochs_between(self, start: int, end: int, *, is_natural_end: bool) -> tuple[EpochStart, ...]:
        """Return the lineage of a log with these bounds."""
        found: list[EpochStart] = []
        for (epoch, epoch_start), epoch_end in self._epoch_ranges():
            if epoch_start < end and epoch_end > start:
                found.append(EpochStart(epoch, max(epoch_start, start)))
            elif is_natural_end and epoch_start == end and epoch == self.lineage[-1].leader_epoch:
                found.append(EpochStart(epoch, end))
        return tuple(found)


_NO_END = 2**63


def _lineage(starts: dict[int, int]) -> tuple[EpochStart, ...]:
    kept: list[EpochStart] = []
    bound = _NO_END
    for epoch in sorted(starts, reverse=True):
        if starts[epoch] < bound:
            kept.append(EpochStart(epoch, starts[epoch]))
            bound = starts[epoch]
    return tuple(reversed(kept))


def _over_declared(
    stretches: Sequence[Sequence[Extent]], declared: Sequence[OffsetRange]
) -> tuple[list[Extent], tuple[Gap, ...]]:
    """Return the first stretch and those behind it that only declared gaps separate; and these gaps."""
    extents, missing = list(stretches[0]), []
    for stretch in stretches[1:]:
        gap = Gap(extents[-1].last_offset + 1, stretch[0].first_offset)
        if not _is_within(gap, declared):
            break
        extents += stretch
        missing.append(gap)
    return extents, tuple(missing)


def _is_released(gap: OffsetRange, released: int, declared: Sequence[OffsetRange]) -> bool:
    """Whether at least a part of the gap was released, and the rest behind it was declared."""
    rest = (released, gap[1])
    return gap[0] < released and not _is_within(gap, declared) and (released >= gap[1] or _is_within(rest, declared))


def _is_within(gap: OffsetRange, declared: Iterable[OffsetRange]) -> bool:
    return any(begin <= gap[0] and gap[1] <= end for begin, end in declared)


def _lacks_its_start(first: Sequence[Extent], rules: PlanRules, declared: Iterable[OffsetRange]) -> bool:
    """Whether the first records of a log with a known start are missing."""
    if rules.start_offset is None or rules.may_have_holes or rules.begins_behind_last_gap:
        return False
    found = first[0].first_offset
    return found > rules.start_offset and not _is_within((rules.start_offset, found), declared)


def _is_passed_over(stretch: Sequence[Extent], rules: PlanRules) -> bool:
    """Whether the log begins behind this stretch, and not with it."""
    return rules.begins_behind_last_gap or _is_expired(stretch, rules)


def _is_expired(stretch: Sequence[Extent], rules: PlanRules) -> bool:
    """Whether all of it is older than the retention."""
    return all(_has_expired(extent.run, rules) for extent in stretch)


def _has_expired(run: StoredRun, rules: PlanRules) -> bool:
    horizon_ms = rules.retention_horizon_ms
    return horizon_ms is not None and run.stored_in.written_ms < horizon_ms and run not in rules.unexpired
