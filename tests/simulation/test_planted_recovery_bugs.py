"""The simulation finds what would bring back records that an election cut off."""

from collections.abc import Iterable, Iterator

import pytest

from recovery.logs.log_plan import EpochStart, LogRuns
from recovery.logs.stored_run import StoredRun
from tests.simulation.planted_bugs import Plant, find, of_the_write_path

_BEHIND_ALL = 2**63


def let_no_epoch_end_where_the_next_one_begins(patch: pytest.MonkeyPatch) -> None:
    def endless(self: LogRuns) -> Iterator[tuple[EpochStart, int]]:
        return ((epoch, _BEHIND_ALL) for epoch in self.lineage)

    patch.setattr(LogRuns, "_epoch_ranges", endless)


def prefer_the_older_epoch_at_the_same_offsets(patch: pytest.MonkeyPatch) -> None:
    make = LogRuns.__init__

    def older(
        self: LogRuns, runs: Iterable[StoredRun], lost: Iterable[StoredRun] = (), known: Iterable[EpochStart] = ()
    ) -> None:
        found, reached = list(runs), dict[int, int]()
        for run in found:
            reached[run.leader_epoch] = max(reached.get(run.leader_epoch, -1), run.living_last_offset)
        kept = [
            run
            for run in found
            if all(run.first_offset > last for epoch, last in reached.items() if epoch < run.leader_epoch)
        ]
        make(self, kept, lost, known)

    patch.setattr(LogRuns, "__init__", older)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "first"),
    [
        (let_no_epoch_end_where_the_next_one_begins, 16),
        (prefer_the_older_epoch_at_the_same_offsets, 2),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, plant: Plant, first: int) -> None:
    find(monkeypatch, plant, "would be recovered, and were cut off", of_the_write_path(first))
