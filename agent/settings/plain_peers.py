"""Whether whoever reaches the peer listener could get from agents what brokers give to nobody without a login.

What passes to a broker is judged by the broker. But some of what agents ask each other is answered by the agent itself:
ranges of objects, and what is visible to consumers. Without TLS between agents anybody may ask. So where clients must
log in, agents without TLS do not answer that.
"""

from agent.settings.agent_settings import AgentSettings
from agent.settings.http_listener import is_loopback
from agent.settings.setting_types import AgentSettingsError
from kafka_log.broker_files.server_properties import BrokerProperties

_SERVE = "remote.wal.gateway.fetch.serve.enable"


def listener_with_login(broker: BrokerProperties, settings: AgentSettings) -> str | None:
    """Return a listener whose clients must log in, if agents speak plaintext beside it; None if there is none.

    None also if clients of another listener may do everything without a login.
    """
    if settings.tls.certificate_file is not None or settings.is_shadow:
        return None
    names = {
        name: _wants_login(broker, name) for name in broker.listeners if name not in broker.controller_listener_names
    }
    is_open = "authorizer.class.name" not in broker.raw and any(
        not wants_login and name != broker.inter_broker_listener_name and not is_loopback(broker.listeners[name].host)
        for name, wants_login in names.items()
    )
    return None if is_open else next((name for name, wants_login in names.items() if wants_login), None)


def _wants_login(broker: BrokerProperties, name: str) -> bool:
    protocol, key = broker.security_protocols.get(name, ""), "ssl.client.auth"
    asked = broker.raw.get(f"listener.name.{name.lower()}.{key}", broker.raw.get(key, "none"))
    return protocol.startswith("SASL") or (protocol == "SSL" and asked.strip().lower() == "required")


def check_plain_peers(broker: BrokerProperties, settings: AgentSettings) -> None:
    """Raise AgentSettingsError if a setting would give records without a login that clients need."""
    listener = listener_with_login(broker, settings)
    if listener is not None and settings.gateway.enable and settings.gateway.fetch_serve_enable:
        raise AgentSettingsError(
            f"{_SERVE}: clients of {listener} must log in, and agents speak plaintext, so whoever reaches "
            "remote.wal.agent.peer.listener could read all records; set remote.wal.agent.ssl.* on all agents"
        )
