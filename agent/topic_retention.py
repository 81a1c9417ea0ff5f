"""Whether the metadata topic remembers for as long as objects live: by the longest local retention of their topics.

Set where an agent makes the topic, and checked for as long as it runs; what is there is never altered, as an operator
may keep it longer, and shortening would lose metadata.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog

from metadata_topic.errors import TopicSetupError
from metadata_topic.topic import AdminLike, check_retention
from rlm.release import NEVER

log = structlog.get_logger(__name__)


class Gauge(Protocol):
    """What is used of a prometheus_client.Gauge."""

    def set(self, value: float) -> None: ...


def longest_retention_ms(retentions_ms: Iterable[int]) -> int | None:
    """NEVER when one of them is; None of none at all."""
    known = list(retentions_ms)
    return NEVER if NEVER in known else max(known, default=None)


class RetentionCheck:
    """Tells what is wrong with the topic once, and again when that changes. Blocks; one thread at a time."""

    def __init__(self, make_admin: Callable[[], AdminLike], grace_ms: int, problems: Gauge) -> None:
        """`grace_ms` is how long an object stays after it may go. `problems` is set to how many there are."""
        self._make_admin = make_admin
        self._admin: AdminLike | None = None
        self._grace_ms = grace_ms
        self._gauge = problems
        self._told: list[str] = []

    def check(self, retention_ms: Mapping[object, int]) -> list[str]:
        """What is wrong, given the topics' local retentions; as before when the cluster does not answer."""
        longest_ms = longest_retention_ms(retention_ms.values())
        if longest_ms is None:
            return self._told
        try:
            self._admin = self._admin or self._make_admin()
            problems = check_retention(self._admin, longest_ms, self._grace_ms)
        except TopicSetupError as error:
            log.info("metadata_topic_retention_not_checked", error=str(error))
            return self._told
        for problem in problems:
            if problem not in self._told:
                log.warning("metadata_topic_retention", problem=problem, consequence="objects may be lost sight of")
        self._told = problems
        self._gauge.set(len(problems))
        return problems
