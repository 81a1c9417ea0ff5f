"""The errors that can end a run."""

from plugin.errors import OperationError


class RetentionJobError(OperationError):
    """A run cannot go on."""


class SourceError(RetentionJobError):
    """A source cannot be reached, or not be read."""


class StateError(RetentionJobError):
    """The state that earlier runs left cannot be read or written."""


def one_line(error: BaseException, most: int = 300) -> str:
    """Return the line of an error's text that says what happened: of a Python traceback in a Spark error, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line for line in lines if "Error: " in line or "Exception: " in line]
    chosen = (marked or lines or [type(error).__name__])[-1 if marked else 0]
    return chosen if len(chosen) <= most else chosen[: most - 1] + "…"
