"""Takes care of the agents' two topics while the agent runs: they exist, and no record in them is lost.

A topic that is missing, at the start or later, is created explicitly, and by one agent: the living brokers' agents take
turns by their ids, a few seconds apart, because a broker may have no agent. No client of ours creates a topic by asking
for it, which would give it the broker's defaults. If two agents are equally fast, Kafka creates it once.

An existing topic is never altered: an operator may want it different, and shortening would lose metadata. Problems are
logged with the command that fixes them; while records would be lost, publication is held. Both end at the first look
after the fix.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cache

import structlog
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.records.errors import TopicSetupError
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC, MetadataTopicSettings, ensure_topics
from metadata_topic.topic.topic_requirements import (
    TopicNeeds,
    TopicProblem,
    retention_needed_ms,
    settings_problems,
    topic_problems,
)

log = structlog.get_logger(__name__)

_RETRY_S = 0.5
_LOOK_S = 5.0
_TURN_S = 3.0
_ASKING_TIMEOUT_S = 10.0


class MetadataTopics:
    """Creates and checks the agents' two topics. `look` blocks, so it runs on `threads`; the rest is for the event
    loop."""

    def __init__(
        self,
        client: KafkaClientConfig,
        made: MetadataTopicSettings,
        grace_ms: int,
        longest_retention_ms: Callable[[], int | None],
        broker_id: int,
        threads: Executor,
        hold_publication: Callable[[str | None], object],
        make_cluster: Callable[[], KafkaCluster] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The topics are created as `made`; their records live for `grace_ms` longer than an object's.

        `longest_retention_ms` is that of the enabled topics, used if only the metadata topic was lost; None if unknown.
        It blocks, and raises MetadataTopicError. `hold_publication` is called with why nothing may be published, or
        None; on any thread.
        """
        self._client = client
        self._made = made
        self._grace_ms = grace_ms
        self._ask_retention = longest_retention_ms
        self._broker_id = broker_id
        self._threads = threads
        self._hold_publication = hold_publication
        self._cluster = cache(make_cluster or (lambda: KafkaCluster(client, "remote-wal-topics", _ASKING_TIMEOUT_S)))
        self._clock = clock
        self._longest_retention_ms: int | None = None
        self._missing_since_s: float | None = None
        self.problems: tuple[TopicProblem, ...] = ()
        """Problems of both topics, as of the last look; any thread may read."""

    async def make(self) -> None:
        """Create the topics if they are missing; returns once both exist."""
        await AsyncRetrying(retry=retry_if_result(lambda exist: not exist), wait=wait_fixed(_RETRY_S))(self._look)

    async def watch(self) -> None:
        """Check both topics from time to time, as long as the agent runs."""
        while True:
            await asyncio.sleep(_RETRY_S if self._missing_since_s is not None else _LOOK_S)
            await self._look()

    def retention_seen(self, longest_ms: int | None) -> None:
        """Record the longest retention of objects of the enabled topics, in ms; None changes nothing."""
        if longest_ms is not None:
            self._longest_retention_ms = longest_ms

    async def _look(self) -> bool:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.look)
        except KafkaClusterError as error:
            log.info("metadata_topics_wait", reason=str(error))
            self._cluster.cache_clear()  # a new client reads certificates again, which may have been renewed
            return False

    def look(self) -> bool:
        """Create missing topics, if it is this agent's turn, and check existing ones. Returns whether both exist.

        Blocks. Raises MetadataTopicError.
        """
        cluster = self._cluster()
        missing = [topic for topic in (METADATA_TOPIC, SETTINGS_TOPIC) if cluster.find_topic(topic) is None]
        if missing:
            if self._missing_since_s is None:
                self._missing_since_s = self._clock()
                log.warning("metadata_topics_missing", topics=missing)
            if not self._is_my_turn(cluster):
                return False
            ensure_topics(cluster, self._covering(missing))
        self._judge(cluster)
        self._missing_since_s = None
        return True

    def _is_my_turn(self, cluster: KafkaCluster) -> bool:
        living = sorted(broker.broker_id for broker in cluster.brokers())
        before = sum(broker_id < self._broker_id for broker_id in living)
        since_s = self._clock() if self._missing_since_s is None else self._missing_since_s
        return self._clock() - since_s >= before * _TURN_S

    def _judge(self, cluster: KafkaCluster) -> None:
        longest_ms = self._longest_retention_ms
        needs = TopicNeeds(
            self._made.replication_factor,
            self._made.min_insync_replicas,
            None if longest_ms is None else retention_needed_ms(longest_ms, self._grace_ms),
        )
        found: list[TopicProblem] = []
        for topic, problems in ((METADATA_TOPIC, topic_problems), (SETTINGS_TOPIC, settings_problems)):
            described = cluster.find_topic(topic)
            if described is None:
                raise TopicSetupError("describe topic", topic, "the broker does not know it")
            config = cluster.topic_configurations([topic]).get_all()[topic]
            found += problems(topic, config, described.replication_factor, needs, self._client.bootstrap_servers)
        self._tell(tuple(found))
        fatal = [str(problem) for problem in found if problem.loses_records]
        self._hold_publication("; ".join(fatal) or None)

    def _tell(self, found: tuple[TopicProblem, ...]) -> None:
        for problem in found:
            if problem not in self.problems:
                tell = log.error if problem.loses_records else log.warning
                consequence = "nothing is published, nor uploaded" if problem.loses_records else "metadata may be lost"
                tell("metadata_topic_problem", found=problem.found, change=problem.change, consequence=consequence)
        for problem in self.problems:
            if problem.change not in {one.change for one in found}:
                log.info("metadata_topic_mended", key=problem.key)
        self.problems = found

    def _covering(self, missing: list[str]) -> MetadataTopicSettings:
        """Return settings with the retention that the enabled topics need.

        Those topics are known if only the metadata topic was lost. If both topics are new, no topic is enabled yet.
        Raises MetadataTopicError.
        """
        if METADATA_TOPIC not in missing or SETTINGS_TOPIC in missing:
            return self._made
        longest_ms = self._ask_retention()
        return self._made if longest_ms is None else self._made.covering(longest_ms, self._grace_ms)
