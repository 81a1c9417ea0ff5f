"""What a run leaves for the next one, and how a half-written run is told from a whole one.

Theory. Each run writes its tables into a directory of its own, `runs/<run id>/`. Only when all of them are there does
it replace `CURRENT.json`, a small file that names the run, how far it read the metadata topic, and the directories that
still count. So a run that was killed at any moment has changed nothing: its directory is named by no `CURRENT.json`,
and the next run deletes it.

Of two runs at once one counts. The second takes the first's directory for such a leftover; and whoever finishes finds
that its directory is gone, or that another run than the one it began from is the last by now, and ends with an error
that says so. Nothing that was committed is lost by it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from retention_job.errors import StateError
from retention_job.spark.file_system import FileSystem

FORMAT_VERSION: Final = 4
_CURRENT: Final = "CURRENT.json"
_RUNS: Final = "runs"
_ONE_AT_A_TIME: Final = "one run at a time; this one is to be made again"


@dataclass(frozen=True, slots=True)
class InventoryRead:
    """What was read of the inventories of objects of a kind."""

    files: Mapping[str, Sequence[int]]
    """By path: which bucket's it is, its length, and when it was changed."""
    newest_ms: Mapping[str, int]
    """By the bucket's number in digits: when the newest object was written."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished run."""

    run_id: str
    now_ms: int
    offsets: Mapping[int, int]
    """How far it read the metadata topic, by partition."""
    topic_id: str
    """The metadata topic's, hexadecimal: offsets of another one mean nothing."""
    retention: Mapping[str, int | None]
    """The retention by which segments were judged, by topic id, hexadecimal."""
    entry_runs: Mapping[str, int]
    """Runs whose entries still count, with their times in ms."""
    layers: Sequence[str]
    """Runs whose tables of objects are the state, the newest last (`object_layers`)."""
    inventories: Mapping[str, InventoryRead]
    """By the table of the objects' kind; none of what was listed."""


class RunState:
    """The state under one path."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._begun_from: RunRecord | None = None

    def last(self) -> RunRecord | None:
        """The last run that finished; None when there is none, or one of another format. Raises StateError."""
        text = self._files.read_text(_CURRENT)
        if text is None:
            return None
        try:
            fields = json.loads(text)
            if fields.pop("version") != FORMAT_VERSION:
                return None
            fields["offsets"] = {int(partition): offset for partition, offset in fields["offsets"].items()}
            fields["inventories"] = {kind: InventoryRead(**read) for kind, read in fields["inventories"].items()}
            return RunRecord(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StateError(
                "read", self._files.at(_CURRENT), f"not a state: {error}", "remove it to start anew"
            ) from error

    def begin(self, run_id: str, last: RunRecord | None) -> list[str]:
        """Remove what killed runs left behind; returns their ids."""
        wanted = {*last.entry_runs, *last.layers, last.run_id} if last else set[str]()
        leftovers = [found for found in self._files.directories(_RUNS) if found not in wanted]
        for found in leftovers:
            self._files.delete(f"{_RUNS}/{found}")
        if run_id in wanted:
            raise StateError("begin", self.path_of(run_id, ""), "a finished run has this id")
        self._begun_from = last
        return leftovers

    def commit(self, record: RunRecord) -> None:
        """From now on this is the last run; directories that no longer count go. Raises StateError when another run
        was begun, or finished, meanwhile: then this one has changed nothing.
        """
        found = self.last()
        if found is not None and (self._begun_from is None or found.run_id != self._begun_from.run_id):
            raise StateError(
                "commit", self._files.at(_CURRENT), f"run {found.run_id} finished meanwhile", _ONE_AT_A_TIME
            )
        if record.run_id not in self._files.directories(_RUNS):
            raise StateError("commit", self.path_of(record.run_id, ""), "another run removed it", _ONE_AT_A_TIME)
        self._files.replace_text(_CURRENT, json.dumps({"version": FORMAT_VERSION, **asdict(record)}, sort_keys=True))
        for directory in self._files.directories(_RUNS):
            if directory != record.run_id and directory not in {*record.entry_runs, *record.layers}:
                self._files.delete(f"{_RUNS}/{directory}")

    def path_of(self, run_id: str, table: str) -> str:
        """Where a run has a table."""
        return self._files.at(f"{_RUNS}/{run_id}/{table}")
