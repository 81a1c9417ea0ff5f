"""Checks that answers to producers of durable topics are held, whatever way their clients come."""

from doctor.facts import Facts, known
from doctor.findings import Level, Verdict, some_of
from metadata_topic.settings.topic_settings import why_not_durable

_KEY = "remote.wal.gateway"
_PLAN = "print the lines by remote-wal gateway plan --durable"


def durable_topics(facts: Facts) -> Verdict:
    """Check topics with remote.wal.durable.enable, and the listeners of this broker, which may come to lead them."""
    durable = sorted(name for name, topic in known(facts.topics).items() if topic.is_durable)
    if not durable:
        return Verdict(Level.OK, "no topic is durable")
    settings, told = facts.settings.gateway, some_of(durable)
    if not settings.enable or not settings.durable_listener:
        found = f"{told} is durable, and this agent holds no answers: producers are answered before records are stored"
        return Verdict(Level.ERROR, found, f"{_KEY}.durable.listener; {_PLAN}")
    broker = facts.broker
    reserved = {broker.inter_broker_listener_name, *broker.controller_listener_names}
    for_agents = facts.settings.client.client_listener
    past = sorted(set(broker.advertised_listeners) - reserved - settings.by_agents - {for_agents})
    if past:
        found = f"{told} is durable, and {', '.join(past)} leads past the agent: producers there are answered too soon"
        return Verdict(Level.ERROR, found, f"{_PLAN}, and have no other listener for clients that produce")
    elsewhere = {one: agent for one, agent in facts.registered.items() if one != broker.node_id}
    if (reason := why_not_durable(elsewhere)) is not None:
        return Verdict(Level.ERROR, f"{told} is durable, and {reason}", f"{_PLAN} on all brokers")
    found = f"{told}: nothing is held of producers with acks=0"
    change = "acks=1 or acks=all"
    if for_agents in broker.advertised_listeners:
        found += f"; {for_agents} leads past the agent, too, as agents need it"
        change += f"; let nobody but agents and operators reach {for_agents}, by firewall or by ACLs"
    return Verdict(Level.INFORMATION, found, change)
