"""The protocols that brokers can use among each other, by Kafka's names; a module without further imports."""

from enum import StrEnum


class InterBrokerProtocol(StrEnum):
    """Kafka's SecurityProtocol."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"
