"""What is worth a line in the log: that a broker is away is told once, however many connections find it so."""


class News:
    """Of one broker that many connections try. Not thread-safe."""

    def __init__(self) -> None:
        self._told = ""

    def is_new(self, error: str) -> bool:
        """Whether this was not the last thing that was told, or it was over in between."""
        is_new, self._told = error != self._told, error
        return is_new

    def is_over(self) -> None:
        """The broker was reached."""
        self._told = ""
