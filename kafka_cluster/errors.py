"""Errors of asking Kafka. Each names what was asked, the brokers that were asked, and the reason."""

from plugin.errors import StoreError


class KafkaClusterError(StoreError):
    """The cluster did not respond, or refused a request. `code` is Kafka's error code, None if no broker responded."""

    def __init__(self, operation: str, key: str, reason: str, hint: str = "", code: int | None = None) -> None:
        self.code = code
        super().__init__(operation, key, reason, hint)


class ClientPropertyError(KafkaClusterError):
    """A property of a Java client has no counterpart in librdkafka or kafka-python; `key` names it."""

    retriable = False
