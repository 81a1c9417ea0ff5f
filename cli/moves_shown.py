"""Shows the progress of `remote-wal reassign` while it moves partitions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recovery.reassignment.moves import Reassignment


class MovesShown:
    """Shows a bar of moves, and a line for each that ended, on standard error: standard output is for the report."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("preparing", total=None)

    def __enter__(self) -> "MovesShown":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, reassignment: "Reassignment") -> None:
        """Show this progress."""
        from recovery.reassignment.moves import ENDS, MoveState

        states = [one.state for one in reassignment.progress.values()]
        busy = [
            f"{states.count(state)} {state.value}"
            for state in MoveState
            if state in states and state not in ENDS and state is not MoveState.WAITING
        ]
        ended = sum(state in ENDS for state in states)
        self._bar.update(self._task, total=len(states), completed=ended, description=", ".join(busy) or "moving")
