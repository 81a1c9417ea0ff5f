"""Checks the bypass around dead agents: this broker's own listener for it, and those of the others."""

from agent.settings.http_listener import is_loopback
from doctor.facts import Facts
from doctor.findings import Level, Verdict

_KEY = "remote.wal.agent.bypass"


def bypass_listener(facts: Facts) -> Verdict:
    """Check that other brokers can bypass this host's agent, and nobody else can."""
    broker, settings = facts.broker, facts.settings
    if not settings.bypass.brokers:
        found = f"{_KEY} is empty: nobody replicates from a broker whose agent is dead"
        return Verdict(Level.INFORMATION, found, f"a second listener of each broker, and {_KEY}")
    own = settings.bypass.brokers.get(broker.node_id)
    if own is None:
        found = f"broker {broker.node_id} is not in {_KEY}: no other host's list, if alike, leads past this agent"
        return Verdict(Level.WARNING, found, f"add {broker.node_id}@<host>:<port> to {_KEY} on all hosts")
    names = [name for name, where in broker.listeners.items() if where.port == own.port]
    if not names:
        found = f"{_KEY} has {own} for this broker, which listens at no such port"
        return Verdict(Level.ERROR, found, f"listeners: add BYPASS://{own}, or correct {_KEY}")
    faults = _faults(facts, names[0])
    if faults:
        level, found, change = max(faults, key=lambda fault: list(Level).index(fault[0]))
        return Verdict(level, found, change)
    return Verdict(Level.OK, f"{names[0]} at {own}")


def _faults(facts: Facts, name: str) -> list[tuple[Level, str, str]]:
    """Return what is wrong with the listener of this name, and what to change."""
    broker, settings = facts.broker, facts.settings
    prefix, wanted = f"listener.name.{name.lower()}.", settings.bypass.security_protocol
    speaks = broker.security_protocols[name]
    auth = broker.raw.get(f"{prefix}ssl.client.auth", broker.raw.get("ssl.client.auth", "none"))
    faults = []
    if speaks != wanted:
        found = f"{name} speaks {speaks}, {_KEY}.security.protocol is {wanted}"
        faults.append((Level.ERROR, found, f"listener.security.protocol.map: {name}:{wanted}"))
    elif wanted == "SSL" and auth.lower() != "required":
        found = f"{name} wants no client certificate (ssl.client.auth={auth}), so everybody is the same User:ANONYMOUS"
        faults.append((Level.ERROR, found, f"{prefix}ssl.client.auth=required"))
    if is_loopback(broker.listeners[name].host) and not is_loopback(settings.bypass.brokers[broker.node_id].host):
        found = f"{name} listens at {broker.listeners[name].host} only: other hosts' agents do not reach it"
        faults.append((Level.ERROR, found, f"listeners: {name}://{settings.bypass.brokers[broker.node_id]}"))
    if wanted.endswith("PLAINTEXT"):
        found = f"{name} is unencrypted" + (
            "" if wanted.startswith("SASL") else ", and everybody there is User:ANONYMOUS"
        )
        faults.append((Level.WARNING, found, f"make it SSL, {_KEY}.security.protocol too"))
    if name in broker.advertised_listeners:
        found = f"{name} is advertised: clients that come by it would be sent to it again"
        faults.append((Level.WARNING, found, f"take {name} out of advertised.listeners"))
    return faults


def bypass_peers(facts: Facts) -> Verdict:
    """Check whether this agent would get past the others."""
    silent = [f"broker {broker_id}: {reason}" for broker_id, reason in sorted(facts.bypass.items()) if reason]
    if silent:
        change = f"correct {_KEY}, the listener, its certificates, or the firewall"
        return Verdict(Level.WARNING, "; ".join(silent), change)
    return Verdict(Level.OK, f"{len(facts.bypass)} brokers answer past their agents")
