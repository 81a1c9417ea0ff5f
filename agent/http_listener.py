"""Where metrics, health and state are served: in plain HTTP, so on loopback, unless more is accepted."""

import ipaddress

from agent.process_settings import HttpSettings
from agent.setting_types import AgentSettingsError
from replication.wire.peer_connection import Address, Listener

_KEY = "remote.wal.agent.http"


def is_loopback(host: str) -> bool:
    """Whether nobody but this host reaches it, as far as the name itself tells."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_http_listener(listener: Listener, settings: HttpSettings, source: object) -> None:
    """Raises AgentSettingsError, naming the key, and `source`, which says to listen there."""
    address = listener if isinstance(listener, Address) else Address(*listener.getsockname()[:2])
    if not settings.plaintext_accepted and not is_loopback(address.host):
        raise AgentSettingsError(
            f"{source}: {_KEY}.listener: {address} is open to other hosts, and what it tells (topics, brokers, store) "
            "goes there unencrypted and to whoever asks; take a loopback address or, in a network that you trust, set "
            f"{_KEY}.plaintext.accepted=true"
        )
