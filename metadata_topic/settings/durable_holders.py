"""Checks whether all agents hold answers to producers: a topic is only as durable as its leaders' agents."""

from collections.abc import Collection, Mapping

from metadata_topic.settings.topic_settings import AgentRegistration, GatewayPart


def why_not_durable(agents: Mapping[int, AgentRegistration], broker_ids: Collection[int] = ()) -> str | None:
    """Return why topics cannot be durable, by what agents registered at their start; None if they can.

    `broker_ids` are brokers that may lead, beside those whose agents have registered.
    """
    there = {one: agent for one, agent in agents.items() if one in broker_ids or not _is_gone(agent)}
    without = sorted(set(broker_ids) - agents.keys())
    silent = sorted(one for one, agent in there.items() if agent.gateway is None)
    off = sorted(one for one, agent in there.items() if agent.gateway is not None and not _holds(agent))
    told = [
        f"{what} {_listed(brokers)}"
        for what, brokers in (
            ("no agent has registered for broker", without),
            ("an older release, that does not say so, runs beside broker", silent),
            ("answers are not held beside broker", off),
        )
        if brokers
    ]
    if not told:
        return None
    return f"{'; '.join(told)}: who produces there would be answered before records are stored"


def _is_gone(agent: AgentRegistration) -> bool:
    """Whether its broker is gone, also if an older release decommissioned it, which left only a missing address."""
    return agent.is_gone or (agent.gateway is None and agent.peer_address is None)


def _holds(agent: AgentRegistration) -> bool:
    return agent.gateway is not None and GatewayPart.DURABLE in agent.gateway


def _listed(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers))
