"""Certificates of a cluster's brokers, each shared with its agent, and mutual TLS between agents with them."""

from pathlib import Path

from local_cluster.layout import ClusterLayout
from replication.wire.peer_connection import PeerTls


def certificates_directory(layout: ClusterLayout) -> Path:
    """Return the directory of all certificates."""
    return layout.directory / "certificates"


def certificate_of(layout: ClusterLayout, broker_id: int) -> PeerTls:
    """Return the files of a broker's certificate, which names broker-<id>."""
    directory = certificates_directory(layout)
    name = directory / f"broker-{broker_id}"
    return PeerTls(name.with_suffix(".pem"), name.with_suffix(".key"), directory / "ca.pem")


def keystore_of(layout: ClusterLayout, broker_id: int) -> Path:
    """Return the certificate and key as one file for Kafka."""
    return certificates_directory(layout) / f"broker-{broker_id}.keystore.pem"


def agent_properties(layout: ClusterLayout, broker_id: int) -> dict[str, str]:
    """Return the settings of agents that use TLS between each other."""
    files = certificate_of(layout, broker_id)
    return {
        "remote.wal.agent.ssl.certificate.file": str(files.certificate_file),
        "remote.wal.agent.ssl.key.file": str(files.key_file),
        "remote.wal.agent.ssl.ca.file": str(files.ca_file),
    }


def write_certificates(layout: ClusterLayout) -> None:
    """Write all certificates, unless they exist."""
    from local_cluster.security.authority import Authority

    directory = certificates_directory(layout)
    if (directory / "ca.pem").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    authority = Authority(directory)
    for broker_id in layout.broker_ids:
        host = layout.bypass_address(broker_id).rpartition(":")[0]
        files = authority.tls_for(f"broker-{broker_id}", [host])
        keystore_of(layout, broker_id).write_bytes(files.key_file.read_bytes() + files.certificate_file.read_bytes())
