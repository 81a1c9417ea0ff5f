"""Checks the HTTP listener: on loopback, or encrypted and with access control, or as explicitly accepted."""

import ipaddress

from agent.settings.process_settings import HttpSettings
from agent.settings.setting_types import AgentSettingsError, has_pair
from replication.wire.peer_connection import Address, Listener

_KEY = "remote.wal.agent.http"


def is_loopback(host: str) -> bool:
    """Whether this host name is a loopback one, as far as the name itself shows."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_http_listener(listener: Listener, settings: HttpSettings) -> None:
    """Check that the listener is on loopback, or encrypted and with access control. Raises AgentSettingsError naming
    the key."""
    is_encrypted = has_pair(settings.ssl_certificate_file, settings.ssl_key_file, f"{_KEY}.ssl.*")
    if settings.ssl_ca_file is not None and not is_encrypted:
        raise AgentSettingsError(f"{_KEY}.ssl.ca.file: needs {_KEY}.ssl.certificate.file and .key.file")
    address = listener if isinstance(listener, Address) else Address(*listener.getsockname()[:2])
    if settings.plaintext_accepted or is_loopback(address.host):
        return
    missing = [] if is_encrypted else [f"unencrypted; set {_KEY}.ssl.certificate.file and {_KEY}.ssl.key.file"]
    if settings.ssl_ca_file is None and settings.token_file is None:
        missing.append(f"to whoever asks; set {_KEY}.ssl.ca.file or {_KEY}.token.file")
    if missing:
        raise AgentSettingsError(
            f"{_KEY}.listener: {address} is open to other hosts, and what it tells (topics, brokers, store) "
            f"goes there {', and '.join(missing)}. Or take a loopback address or, in a network that you trust, set "
            f"{_KEY}.plaintext.accepted=true"
        )
