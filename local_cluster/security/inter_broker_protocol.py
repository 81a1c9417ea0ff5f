"""What brokers can speak among each other, as Kafka names it; apart, as naming it needs nothing else."""

from enum import StrEnum


class InterBrokerProtocol(StrEnum):
    """Kafka's SecurityProtocol."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"
