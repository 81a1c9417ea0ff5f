"""The state that a run leaves for the next one, and the way to tell a half-written run from a whole one.

Each run writes its tables into a directory of its own, `runs/<run id>/`. Only when all of them are written does it
replace `CURRENT.json`, a small file that names the run, the offsets to which it read the metadata topic, and the
directories that still count. So a run that was killed at any moment has changed nothing: no `CURRENT.json` names its
directory, and the next run deletes it.

If two runs overlap, one counts. The second takes the first's directory for such a leftover. Whichever finishes finds
that its directory is gone, or that another run than the one it continued from is now the last, and ends with an error
that says so. Nothing that was committed is lost.

An incremental run continues from there if it is the same metadata topic, and has all that the last run read. If it lost
its end and grew beyond it again, the leader epochs show that (KIP-320). What the topic lost stays unknown until it is
rebuilt. So until then no run may conclude anything from what the topic does not tell (`RunRecord.whole_ms`). If a topic
was deleted, or its retention changed, the objects that hold some of it are judged again by their kept entries.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from metadata_topic.records.topic_doubt import EpochEnds, end_of
from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.errors import StateError
from retention_job.sources.kafka import Cluster
from retention_job.spark.file_system import FileSystem

FORMAT_VERSION: Final = 9
CHECKPOINTS: Final = "checkpoints"
"""Under a run's directory, what the run alone needs, and where a lost executor does not take it along."""
_CURRENT: Final = "CURRENT.json"
_RUNS: Final = "runs"
_GONE: Final = "gone"
_FULL_EVERY_MS: Final = 7 * 86_400_000
"""Only a full run sees that a log start released an object of which nothing new is told."""
_ONE_AT_A_TIME: Final = "one run at a time; this one is to be made again"


@dataclass(frozen=True, slots=True)
class RunRecord:
    run_id: str
    now_ms: int
    full_ms: int
    """The time of the last run that read everything."""
    offsets: Mapping[int, int]
    """The offsets up to which it read the metadata topic, by partition."""
    topic_id: str
    """The metadata topic's id, hexadecimal: offsets of another topic mean nothing."""
    retention: Mapping[str, int | None]
    """The retention by which segments were judged, by topic id, hexadecimal."""
    entry_runs: Mapping[str, int]
    """The runs whose entries still count, with their times in ms."""
    layers: Sequence[str]
    """The runs whose tables of objects are the state, the newest last (`objects`)."""
    listed: Sequence[str]
    """The kinds of objects whose stores were listed, by their tables."""
    epochs: Mapping[int, int]
    """The leader epoch of each partition of the metadata topic, of the last record below `offsets` or a later one."""
    whole_ms: int
    """When the metadata topic was last known to be whole: `now_ms`, or earlier if it lost records since."""


class RunState:
    """The state of runs under one path: which run is complete, and what the next one continues from."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._begun_from: RunRecord | None = None

    def last(self) -> RunRecord | None:
        """Return the last complete run; None if there is none, or one of another format. Raises StateError."""
        text = self._files.read_text(_CURRENT)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            if fields.pop("version") != FORMAT_VERSION:
                return None
            for name in ("offsets", "epochs"):
                fields[name] = {int(partition): number for partition, number in fields[name].items()}
            return RunRecord(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(
                "read", self._files.resolve(_CURRENT), f"not a state: {error}", "remove it to start anew"
            ) from error

    def begin(self, run_id: str, last: RunRecord | None) -> list[str]:
        """Remove the directories of runs that were killed; returns their ids."""
        wanted = {*last.entry_runs, *last.layers, last.run_id} if last else set[str]()
        leftovers = [found for found in self._files.directories(_RUNS) if found not in wanted]
        for found in leftovers:
            self._files.delete(f"{_RUNS}/{found}")
        if run_id in wanted:
            raise StateError("begin", self.path_of(run_id, ""), "a finished run has this id")
        self._begun_from = last
        return leftovers

    def commit(self, record: RunRecord) -> None:
        """Make this the last run; delete directories that no longer count.

        Raises StateError if another run was begun, or finished, meanwhile: then this one has changed nothing.
        """
        found = self.last()
        if found is not None and (self._begun_from is None or found.run_id != self._begun_from.run_id):
            raise StateError(
                "commit", self._files.resolve(_CURRENT), f"run {found.run_id} finished meanwhile", _ONE_AT_A_TIME
            )
        if record.run_id not in self._files.directories(_RUNS):
            raise StateError("commit", self.path_of(record.run_id, ""), "another run removed it", _ONE_AT_A_TIME)
        self._files.replace_text(_CURRENT, json.dumps({"version": FORMAT_VERSION, **asdict(record)}, sort_keys=True))
        for directory in self._files.directories(_RUNS):
            if directory != record.run_id and directory not in {*record.entry_runs, *record.layers}:
                self._files.delete(f"{_RUNS}/{directory}")
        self._files.delete(f"{_RUNS}/{record.run_id}/{CHECKPOINTS}")

    def path_of(self, run_id: str, table: str) -> str:
        return self._files.resolve(f"{_RUNS}/{run_id}/{table}")


@dataclass(frozen=True, slots=True)
class ReadSummary:
    now_ms: int
    starting_offsets: Mapping[int, int]
    ending_offsets: Mapping[int, int]
    is_incremental: bool
    full_because: str | None
    """The reason why an incremental run reads everything after all."""
    whole_ms: int
    """When the metadata topic was last known to be whole, if it was not rebuilt since."""
    changed_topics: frozenset[str] = frozenset()
    """Topics, by hexadecimal id, that were deleted since the last run, or whose retention was changed."""

    @property
    def records(self) -> int:
        """The number of offsets between start and end."""
        return sum(max(0, end - self.starting_offsets.get(number, 0)) for number, end in self.ending_offsets.items())


def plan_reading(
    cluster: Cluster, last: RunRecord | None, now_ms: int, epoch_ends: EpochEnds, *, is_incremental: bool
) -> ReadSummary:
    """Plan the offsets to read; an incremental run continues from the last run's state if it can. Sans-IO.

    `epoch_ends`: where the last run's leader epochs end now.
    """
    offsets = cluster.offsets[METADATA_TOPIC]
    lost = find_loss(cluster, last.topic_id, last.offsets, last.epochs, epoch_ends) if last is not None else None
    was_whole = last is None or last.whole_ms == last.now_ms
    whole_ms = now_ms if last is None or (was_whole and lost is None) else last.whole_ms
    because = lost or _why_not(cluster, last, now_ms) if is_incremental else None
    if last is None or not is_incremental or because is not None:
        return ReadSummary(now_ms, dict(offsets.earliest), dict(offsets.latest), False, because, whole_ms)
    now = cluster.retentions
    changed = frozenset(one for one, kept_ms in last.retention.items() if now.get(one, _GONE) != kept_ms)
    starting = {**offsets.earliest, **last.offsets}
    return ReadSummary(now_ms, starting, dict(offsets.latest), True, None, whole_ms, changed)


def find_loss(
    cluster: Cluster, topic_id: str, read_to: Mapping[int, int], epochs: Mapping[int, int], epoch_ends: EpochEnds
) -> str | None:
    """Return why the metadata topic lacks some of what was read of it up to these offsets; None if it has all."""
    if topic_id != cluster.metadata_topic.topic_id.hex():
        return "the metadata topic is another one"
    latest = cluster.offsets[METADATA_TOPIC].latest
    if any(end_of(number, epochs.get(number), latest, epoch_ends) < offset for number, offset in read_to.items()):
        return "the metadata topic lost its end"
    return None


def _why_not(cluster: Cluster, last: RunRecord | None, now_ms: int) -> str | None:
    if last is None:
        return "no finished run to go on from"
    earliest = cluster.offsets[METADATA_TOPIC].earliest
    if any(earliest.get(number, 0) > offset for number, offset in last.offsets.items()):
        return "the metadata topic no longer holds what followed the last run"
    if now_ms - last.full_ms >= _FULL_EVERY_MS:
        return "the last run that read everything is a week old"
    return None
