"""Lets one of several processes balance a cluster, and another take over from a dead one.

Theory. A row of the settings topic names the process at work, and changes with each of its signs of life. Another
takes over when it saw no change for `PATIENCE_S`, by its own monotonic clock: no hosts' clocks are compared. The topic
has one partition, so of two that take over at once both read the later one's row, and only that one works. A process
that was suspended may end its round beside its successor. Kafka moves each partition once at a time, and no plan has a
partition that is being moved.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.settings_records import Balancer
from metadata_topic.settings.settings_table import BALANCER, CLUSTER
from metadata_topic.settings.settings_topic import FOLLOW_SETTINGS, SettingsReader, SettingsWriter
from metadata_topic.topic.topic import SETTINGS_TOPIC

log = structlog.get_logger(__name__)

BEAT_S: Final = 15.0
PATIENCE_S: Final = 4 * BEAT_S
_TIMEOUT_S: Final = 30.0


class RowOfSettings:
    """The record of who balances, in the settings topic."""

    def __init__(self, client: KafkaClientConfig) -> None:
        self._reader = SettingsReader(client, settings=replace(FOLLOW_SETTINGS, absence_check_ms=1000))
        self._writer = SettingsWriter(client)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._reader.close()

    def is_there(self) -> bool:
        """Whether the topic exists: without it no agent ever started. Raises MetadataTopicError."""
        if not self._reader.wait_until_ready(_TIMEOUT_S) and self._reader.is_there is not False:
            raise MetadataTopicError("read who balances", SETTINGS_TOPIC, f"no answer within {_TIMEOUT_S:g} s")
        return bool(self._reader.is_there)

    def read(self) -> Balancer | None:
        """Return the newest record of who balances. Raises MetadataTopicError."""
        if not self._reader.read_to_end(_TIMEOUT_S):
            raise MetadataTopicError("read who balances", SETTINGS_TOPIC, f"not read within {_TIMEOUT_S:g} s")
        return self._reader.table.balancer.get(CLUSTER)

    def write(self, row: Balancer | None) -> None:
        """Write the record, or remove it with None; durable when this returns. Raises MetadataTopicError."""
        self._writer.put(BALANCER, {CLUSTER: row})


class BalanceTurn:
    """One process's part in taking turns. `take` and `tell` are for one thread, signs of life come from another."""

    def __init__(self, row: RowOfSettings, name: str, clock: Callable[[], float]) -> None:
        """`name` identifies this process; `clock` gives monotonic seconds."""
        self._row, self._clock = row, clock
        self._own = Balancer(name, 0)
        self._seen: tuple[Balancer | None, float] = (None, clock())
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._is_mine = False
        self._thread = threading.Thread(target=self._live, name="balance-turn", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the turn up, so that others can have it at once."""
        self._is_over.set()
        self._thread.join()
        if self._is_mine:
            with suppress(KafkaClusterError):  # then others wait until they miss its signs of life
                known = self._row.read()
                if known is not None and known.holder == self._own.holder:  # suspended, it may not have seen another
                    self._row.write(None)

    def take(self) -> bool:
        """Return whether it is this process's turn to balance. Raises KafkaClusterError."""
        with self._lock:
            known, now_s = self._row.read(), self._clock()
            if known != self._seen[0]:
                self._seen = known, now_s
            if known is None or known.holder == self._own.holder or now_s - self._seen[1] >= PATIENCE_S:
                self._beat()
            else:
                self._is_mine = False
            return self._is_mine

    def tell(self, apart: tuple[float, float, float], now_ms: int) -> None:
        """Record how far brokers' loads are apart; the next sign of life publishes it."""
        with self._lock:
            self._own = replace(self._own, apart=apart, measured_ms=now_ms)

    def _beat(self) -> None:
        self._own = replace(self._own, beat=self._own.beat + 1)
        self._row.write(self._own)
        known = self._row.read()
        self._is_mine = known is not None and known.holder == self._own.holder

    def _live(self) -> None:
        while not self._is_over.wait(BEAT_S):
            if self._is_mine:
                try:
                    self.take()
                except KafkaClusterError as error:
                    log.warning("balancer_not_told", error=str(error))
