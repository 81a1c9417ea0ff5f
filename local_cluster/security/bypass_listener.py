"""The brokers' second listener for each other, under TLS, through which agents bypass another agent that is dead.

Broker and agent of one id share a certificate here. Its subject, CN=broker-<id>, is the principal that another broker
sees, and needs ClusterAction if an authorizer is on.
"""

from local_cluster.layout import ClusterLayout
from local_cluster.security.agent_certificates import certificate_of, keystore_of

LISTENER = "BYPASS"


def principal(broker_id: int) -> str:
    """Return the principal that other brokers see when this broker's agent bypasses one of theirs."""
    return f"User:CN=broker-{broker_id}"


def broker_properties(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return keys to add to the broker's own; `listeners` and the protocol map must be joined with the existing
    ones.
    """
    prefix = f"listener.name.{LISTENER.lower()}.ssl."
    return {
        "listeners": f"{LISTENER}://{layout.bypass_address(broker_id)}",
        "listener.security.protocol.map": f"{LISTENER}:SSL",
        f"{prefix}keystore.type": "PEM",
        f"{prefix}keystore.location": str(keystore_of(layout, broker_id)),
        f"{prefix}truststore.type": "PEM",
        f"{prefix}truststore.location": str(certificate_of(layout, broker_id).ca_file),
        f"{prefix}client.auth": "required",
    }


def agent_properties(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return the agents' settings."""
    files = certificate_of(layout, broker_id)
    listeners = ",".join(f"{other}@{layout.bypass_address(other)}" for other in layout.broker_ids)
    return {
        "remote.wal.agent.bypass": listeners,
        "remote.wal.agent.bypass.ssl.certificate.file": str(files.certificate_file),
        "remote.wal.agent.bypass.ssl.key.file": str(files.key_file),
        "remote.wal.agent.bypass.ssl.ca.file": str(files.ca_file),
    }
