"""Whether those who append wait for what is uploaded, sans-IO.

Producers with acks=all append, wait until the followers have it, and append again: between two of their rounds nothing
comes, so an upload should begin as soon as they are all waiting. Producers with acks=1 go on whatever becomes of their
records: the pauses between their batches mean nothing, and an upload at each of them would only make objects small.
The broker's files do not tell acks; what is appended while an upload is under way does.
"""

_WEIGHT = 1 / 4
"""Of the newest upload, so that a load that changes is recognised within a few."""
_MOST = 0.5


class AppendRhythm:
    """Judges by the last few uploads of a load. Until there are any, producers are taken to wait."""

    def __init__(self) -> None:
        self._share_disturbed = 0.0

    @property
    def producers_wait(self) -> bool:
        """Whether most of the last uploads met a silence that lasted until they were stored."""
        return self._share_disturbed < _MOST

    def upload_ended(self, appended_meanwhile: bool) -> None:
        """An upload is stored; whether anything was appended since it began."""
        self._share_disturbed += _WEIGHT * (appended_meanwhile - self._share_disturbed)
