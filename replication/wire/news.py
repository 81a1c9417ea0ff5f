"""What is worth a line in the log: that a broker is away is told once, however many connections find it so."""


class News:
    """Of one broker that many connections try. Not thread-safe."""

    def __init__(self) -> None:
        self._told = ""

    def is_new(self, error: str) -> bool:
        """Whether this was not the last thing that was told, or it was over in between."""
        is_new, self._told = error != self._told, error
        return is_new

    @property
    def present(self) -> str | None:
        """What was told last, while it is not over."""
        return self._told or None

    def is_over(self) -> None:
        """The broker was reached."""
        self._told = ""
