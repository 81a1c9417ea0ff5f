"""The errors that can end a run."""

from plugin.errors import OperationError


class RetentionJobError(OperationError):
    """A run of the report job cannot continue."""


class SourceError(RetentionJobError):
    """A source of the report job cannot be reached or read."""


class StateError(RetentionJobError):
    """The state of earlier runs cannot be read, or a new one cannot be written."""


def one_line(error: BaseException, most: int = 300) -> str:
    """Return the telling line of an error's text: of a Python traceback in a Spark error, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line for line in lines if "Error: " in line or "Exception: " in line]
    chosen = (marked or lines or [type(error).__name__])[-1 if marked else 0]
    return chosen if len(chosen) <= most else chosen[: most - 1] + "…"
