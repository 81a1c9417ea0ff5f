"""Clusters whose brokers log in at each other under TLS, with an authorizer."""

from dataclasses import replace

from local_cluster.broker_config import ClusterSettings
from local_cluster.security.listeners import InterBroker

_CLUSTER_OPERATIONS = ("Create", "Describe", "DescribeConfigs", "Alter", "AlterConfigs", "IdempotentWrite")
_CLIENTS_MAY = (
    ("--topic", "*", "--group", "*", "--transactional-id", "*", "--operation", "All"),
    ("--cluster", *(part for operation in _CLUSTER_OPERATIONS for part in ("--operation", operation))),
)
"""All permissions except ClusterAction, which lets a client act as a broker."""


def secured(settings: ClusterSettings) -> ClusterSettings:
    """Brokers log in by PLAIN; agents speak TLS, too.

    The brokers' JVMs use the full compiler, because the quick one has no AES instructions: without it, even stock
    brokers took twice the processor time for the same bytes.
    """
    agents = settings.agents and replace(settings.agents, tls=True)
    spoken = InterBroker("SASL_SSL", mechanism="PLAIN", clients_may=_CLIENTS_MAY)
    return replace(settings, agents=agents, inter_broker=spoken, full_compiler=True)
