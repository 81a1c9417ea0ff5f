"""Decides which failures to log: one line when a broker becomes unreachable, however many connections notice it."""


class News:
    """The log state of one broker that many connections try to reach. Not thread-safe."""

    def __init__(self) -> None:
        self._told = ""

    def is_new(self, error: str) -> bool:
        """Whether this error differs from the one logged last, or the broker was reached in between."""
        is_new, self._told = error != self._told, error
        return is_new

    @property
    def present(self) -> str | None:
        """The error that was logged last; None once the broker was reached again."""
        return self._told or None

    def is_over(self) -> None:
        """Record that the broker was reached."""
        self._told = ""
