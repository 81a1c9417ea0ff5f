"""Asks brokers and agents whether a broker may be restarted. Changes nothing; a missing answer is `Unknown`."""

import urllib.error
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from agent.http.http_asking import ask_agent_page, is_away, is_on_own_host, why_silent
from agent.release import this_release
from agent.settings.agent_settings import AgentSettings
from agent.settings.http_listener import is_loopback
from agent.settings.kafka_client import client_config
from agent.settings.process_settings import HttpSettings
from agent.settings.setting_types import AgentSettingsError
from doctor.before_restart import AgentReadiness, AgentState, RestartFacts, RunningCluster, uses_agent
from doctor.cluster_questions import ask_properties, cluster_of
from doctor.facts import Unknown, get_fact
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.preflight import reach
from kafka_cluster.responses import TOPIC_AUTHORIZATION_FAILED, ClusterListing, DescribedPartition, error_text
from kafka_log.broker_files.server_properties import BrokerProperties
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.topic_settings import AgentRegistration
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC
from recovery.reassignment.admin import ReassignmentAdmin

TIMEOUT_S = 10.0
_RESPONSE_BYTES = 2000
_ASKED_AT_ONCE = 16


def gather_restart_facts(broker: BrokerProperties, settings: AgentSettings, restarts_agent: bool) -> RestartFacts:
    """Gather all facts for judging a restart. Blocks; 10 s for each request without a response."""
    timeout_s = TIMEOUT_S
    port_base, own_id = settings.peers.replica_port_base, broker.node_id
    switches = not restarts_agent and uses_agent(broker, own_id, port_base)
    facts_of = partial(RestartFacts, this_release().version, port_base, own_id, switches, restarts_agent)

    def ask() -> RestartFacts:
        client = client_config(broker, settings.client)
        reach(client, "the file of remote.wal.agent.client.config", timeout_s)
        listing = cluster_of(client, timeout_s).listing()
        if not listing.brokers:
            raise ConnectionError("no broker is in the cluster's metadata")
        hosts = listing.brokers
        # The agent on this host may listen on loopback; another host's may not.
        reached = {**hosts, own_id: "localhost"}
        agents = get_fact(lambda: _agents(client, listing, reached, settings.http, timeout_s))
        hidden = get_fact(lambda: _hidden(client, timeout_s))
        told = ask_properties(client, hosts, timeout_s)
        moving: int | Unknown = get_fact(lambda: _reassigned(client, timeout_s))
        return facts_of(_running(listing, told, hidden), moving, agents)

    facts = get_fact(ask)
    return facts_of(facts, facts, facts) if isinstance(facts, Unknown) else facts


def _running(
    listing: ClusterListing, told: Mapping[int, BrokerProperties | Unknown], hidden: tuple[str, ...] | Unknown
) -> RunningCluster:
    unseen = [f"agents' topics ({hidden.reason})"] if isinstance(hidden, Unknown) else list(hidden)
    unseen += [f"{name} ({error_text(one.error_code)})" for name, one in listing.topics.items() if one.error_code]
    replicas = {one for topic in listing.topics.values() for part in topic.partitions for one in part.replicas}
    return RunningCluster(
        told,
        frozenset(replicas - set(told)),
        _names(listing, lambda part: part.leader_id < 0 or len(part.isr) < len(part.replicas)),
        _names(listing, lambda part: len(part.replicas) == 1),
        tuple(sorted(unseen)),
    )


def _names(listing: ClusterListing, wanted: Callable[[DescribedPartition], bool]) -> tuple[str, ...]:
    found = (
        f"{topic.name}-{part.partition}"
        for topic in listing.topics.values()
        for part in topic.partitions
        if wanted(part)
    )
    return tuple(sorted(found))


def _hidden(client: KafkaClientConfig, timeout_s: float) -> tuple[str, ...]:
    """Return those of the agents' and of the enabled topics that this client may not describe."""
    asked = cluster_of(client, timeout_s)
    names = [METADATA_TOPIC, SETTINGS_TOPIC]
    found = {one.name: one.error_code for one in asked.topics(names)}
    if found.get(SETTINGS_TOPIC) == 0:
        topics = read_settings(client, timeout_s).topics
        found |= {one.name: one.error_code for one in asked.topics([name for name in topics if topics[name].enable])}
    return tuple(f"{name} (may not be described)" for name, code in found.items() if code == TOPIC_AUTHORIZATION_FAILED)


def _reassigned(client: KafkaClientConfig, timeout_s: float) -> int:
    """Return how many partitions are being reassigned. Raises ReassignmentError, ClientPropertyError."""
    with ReassignmentAdmin(client, timeout_s) as admin:
        return len(admin.ongoing())


def _agents(
    client: KafkaClientConfig, listing: ClusterListing, hosts: Mapping[int, str], asking: HttpSettings, timeout_s: float
) -> dict[int, AgentReadiness]:
    if SETTINGS_TOPIC not in listing.topics:
        [described] = cluster_of(client, timeout_s).topics([SETTINGS_TOPIC])
        if described.error_code == TOPIC_AUTHORIZATION_FAILED:
            raise PermissionError(f"{SETTINGS_TOPIC} may not be described")
        return {}
    registered = read_settings(client, timeout_s).agents
    return ask_agents({one: agent for one, agent in registered.items() if not agent.is_gone}, hosts, asking, timeout_s)


def ask_agents(
    registered: Mapping[int, AgentRegistration], hosts: Mapping[int, str], asking: HttpSettings, timeout_s: float
) -> dict[int, AgentReadiness]:
    """Ask each agent whether it is ready. `hosts` has the names by which clients reach the agents' living brokers.

    A dead broker's host is not known: it is this one only if all others are.
    """
    elsewhere = next((host for host in hosts.values() if not is_loopback(host)), "localhost")
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        asked = {
            one: pool.submit(_ask_agent, agent, hosts.get(one, elsewhere), asking, timeout_s)
            for one, agent in registered.items()
        }
        return {
            one: AgentReadiness(registered[one].version, *answer.result(), registered[one].is_shadow)
            for one, answer in sorted(asked.items())
        }


def _ask_agent(agent: AgentRegistration, host: str, asking: HttpSettings, timeout_s: float) -> tuple[AgentState, str]:
    endpoint = agent.http_endpoint
    if is_on_own_host(endpoint) and not is_loopback(host):
        reason = f"it listens at {endpoint} alone; give its remote.wal.agent.http.listener the host's address"
        return AgentState.UNASKED, reason
    try:
        page = ask_agent_page(endpoint, "/readyz", timeout_s, asking)
        lines = page[:_RESPONSE_BYTES].decode(errors="replace").splitlines()
        if lines[:1] != ["ready"]:
            return AgentState.UNASKED, f"no agent answers at {endpoint}"
        return AgentState.READY, "; ".join(lines[1:])
    except urllib.error.HTTPError as error:
        with error:
            told = "; ".join(error.read(_RESPONSE_BYTES).decode(errors="replace").splitlines())
        return AgentState.NOT_READY, told or str(error)
    except (OSError, AgentSettingsError) as error:
        reason = why_silent(endpoint, error)
        return AgentState.SILENT if is_away(reason) else AgentState.UNASKED, reason
