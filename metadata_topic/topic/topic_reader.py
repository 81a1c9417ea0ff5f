"""What every reader of a topic lets others do with it; what becomes of the records is its own."""

from metadata_topic.topic.topic_follower import TopicFollower


class TopicReader:
    """Reads a topic on a thread of its own."""

    def __init__(self, follower: TopicFollower) -> None:
        self._follower = follower

    def start(self) -> None:
        """Begin reading."""
        self._follower.start()

    @property
    def ready(self) -> bool:
        """All that was in the topic when reading began is known, and reading goes on."""
        return self._follower.ready

    @property
    def is_there(self) -> bool | None:
        """As `TopicFollower.is_there`."""
        return self._follower.is_there

    def wait_until_ready(self, timeout_s: float) -> bool:
        """False when the time ran out first, or the reader died."""
        return self._follower.wait_until_ready(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """What ended the reader for good; None while all is well."""
        return self._follower.failure

    @property
    def counters(self) -> dict[str, int]:
        """Of the reading itself, as `TopicFollower.counters`."""
        return self._follower.counters

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._follower.close()
