"""What can end a run."""


class RetentionJobError(Exception):
    """A run that cannot go on: names the operation, what it was about, the reason, and a hint."""

    def __init__(self, operation: str, key: str, reason: str, hint: str = "") -> None:
        self.operation, self.key, self.reason, self.hint = operation, key, reason, hint
        super().__init__(f"{operation} {key}: {reason}" + (f" ({hint})" if hint else ""))


class SourceError(RetentionJobError):
    """A source cannot be reached, or not be read."""


class StateError(RetentionJobError):
    """The state that earlier runs left cannot be read or written."""


def one_line(error: BaseException, most: int = 300) -> str:
    """The line of an error's text that says what happened: of a Python traceback in a Spark error, its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    marked = [line for line in lines if "Error: " in line or "Exception: " in line]
    chosen = (marked or lines or [type(error).__name__])[-1 if marked else 0]
    return chosen if len(chosen) <= most else chosen[: most - 1] + "…"
