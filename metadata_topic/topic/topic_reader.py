"""The common interface of all readers of a topic; each handles the records differently."""

from metadata_topic.topic.topic_follower import TopicFollower


class TopicReader:
    """Reads a topic on its own thread."""

    def __init__(self, follower: TopicFollower) -> None:
        self._follower = follower

    def start(self) -> None:
        """Begin reading."""
        self._follower.start()

    @property
    def ready(self) -> bool:
        """Whether everything that was in the topic at the start is known, and reading continues."""
        return self._follower.ready

    @property
    def is_there(self) -> bool | None:
        """Whether the topic exists; None until a broker has answered."""
        return self._follower.is_there

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait; False when the time ran out first, or the reader died."""
        return self._follower.wait_until_ready(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        """The defect that ended the reader for good; None while all is well."""
        return self._follower.failure

    @property
    def counters(self) -> dict[str, int]:
        """Counters of the reading, see `TopicFollower.counters`."""
        return self._follower.counters

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._follower.close()
