"""The brokers' second listener for each other, under TLS: where agents get past another agent that is dead.

Broker and agent of one id share a certificate here. Its subject, CN=broker-<id>, is the principal that another broker
sees, and needs ClusterAction where an authorizer is on.
"""

from local_cluster.layout import ClusterLayout

LISTENER = "BYPASS"
_CERTIFICATES = "certificates"


def principal(broker_id: int) -> str:
    """Whom other brokers see when this broker's agent bypasses one of theirs."""
    return f"User:CN=broker-{broker_id}"


def broker_properties(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """What is added to the broker's own keys; `listeners` and the protocol map are to be joined to what is there."""
    prefix = f"listener.name.{LISTENER.lower()}.ssl."
    directory = layout.directory / _CERTIFICATES
    return {
        "listeners": f"{LISTENER}://{layout.bypass_address(broker_id)}",
        "listener.security.protocol.map": f"{LISTENER}:SSL",
        f"{prefix}keystore.type": "PEM",
        f"{prefix}keystore.location": str(directory / f"broker-{broker_id}.keystore.pem"),
        f"{prefix}truststore.type": "PEM",
        f"{prefix}truststore.location": str(directory / "ca.pem"),
        f"{prefix}client.auth": "required",
    }


def agent_properties(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """What the agents read."""
    directory = layout.directory / _CERTIFICATES
    listeners = ",".join(f"{other}@{layout.bypass_address(other)}" for other in layout.broker_ids)
    return {
        "remote.wal.agent.bypass": listeners,
        "remote.wal.agent.bypass.ssl.certificate.file": str(directory / f"broker-{broker_id}.pem"),
        "remote.wal.agent.bypass.ssl.key.file": str(directory / f"broker-{broker_id}.key"),
        "remote.wal.agent.bypass.ssl.ca.file": str(directory / "ca.pem"),
    }


def write_certificates(layout: ClusterLayout) -> None:
    """All that the properties name, unless it is there."""
    from local_cluster.authority import Authority

    directory = layout.directory / _CERTIFICATES
    if (directory / "ca.pem").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority(directory)
    for broker_id in layout.broker_ids:
        host = layout.bypass_address(broker_id).rpartition(":")[0]
        files = authority.tls_for(f"broker-{broker_id}", [host])
        keystore = directory / f"broker-{broker_id}.keystore.pem"
        keystore.write_bytes(files.key_file.read_bytes() + files.certificate_file.read_bytes())
