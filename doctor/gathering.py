"""Gathers the facts. A fact that cannot be got becomes `Unknown`, with the reason. Writes only the probe object."""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from agent.found_peers import registered_addresses, registered_bypasses
from agent.http.fleet_pages import AgentPage, ask_agents
from agent.settings.agent_settings import AgentSettings
from agent.settings.bypass import tls_context
from agent.settings.kafka_client import client_config
from agent.settings.process_settings import HttpSettings
from agent.tls.broker_tls import broker_tls_plan
from agent.tls.certificates import certificate_stores, days_left
from agent.wiring.peering import broker_listener, peer_addresses, peer_tls
from doctor.cluster_questions import ask_cluster, ask_topics, ask_way, ask_zones
from doctor.facts import AgentResponse, BrokerTlsFacts, Cluster, EnabledTopic, Facts, Host, Store, Unknown, get_fact
from doctor.host_questions import (
    addresses_of,
    ask_broker,
    broker_hosts,
    count_partitions,
    dial,
    max_user_watches,
    open_files_limit,
    silence,
)
from doctor.store_probe import probe_store, unopened
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.preflight import reach
from kafka_log.broker_files.cluster_metadata import read_leaders
from kafka_log.broker_files.meta_properties import cluster_id_of
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.topic_settings import AgentRegistration
from metadata_topic.settings.wal_retention import AgentsRetention
from plugin.errors import RemoteStorageConfigError
from plugin.remote_wal_storage_manager import StorageContext
from plugin.zones.bucket_loading import bucket_plan
from plugin.zones.buckets import check_own_zone
from replication.follower.leader_bypass import BypassWay
from replication.wire.peer_connection import Address, PeerTls

T = TypeVar("T")

_KAFKA_TIMEOUT_S = 10.0
_PEER_TIMEOUT_S = 5.0
_PEERS_AT_ONCE = 8


def gather(broker: BrokerProperties, settings: AgentSettings, wall_ms: Callable[[], int]) -> Facts:
    """Gather all facts. Blocks; for some tens of seconds when nothing responds."""
    client = get_fact(lambda: _reached(client_config(broker, settings.client)))
    cluster: Cluster | Unknown = _if_known(client, lambda known: ask_cluster(known, _KAFKA_TIMEOUT_S))
    topics, agents, registered = _settings_topic(client, cluster, settings.http)
    with ThreadPoolExecutor(_PEERS_AT_ONCE) as pool:
        found, tls = registered_addresses(registered, broker.node_id), peer_tls(settings.tls)
        listed = peer_addresses(broker, settings.peers)
        others = {key: [known[key] for known in (listed, found) if key in known] for key in {**listed, **found}}
        dialled = pool.map(lambda addresses: _dial_any(addresses, tls), others.values())
        peers = dict(zip(others, dialled, strict=True))
        past = _ways_past_agents(broker, settings, registered)
        answers = pool.map(
            lambda way: ask_broker(way.address, lambda: tls_context(settings), _PEER_TIMEOUT_S, way.server_name),
            past.values(),
        )
        past_agents = dict(zip(past, answers, strict=True))
    store: Store | Unknown = Unknown("the agent, in shadow, uploads nothing")
    other_buckets: Mapping[str, Store | Unknown] = {}
    if not settings.is_shadow:
        store, other_buckets = _stores(broker, settings, wall_ms)
    hosts = broker_hosts(broker.log_dirs)
    facts = Facts(
        broker, settings, cluster, topics, store, peers, agents, _host(broker, settings), past_agents, other_buckets,
        replica_hosts={
            host: get_fact(partial(addresses_of, host, hosts)) for host in _advertised_hosts(broker, settings)
        },
        broker_silence=broker_silence(broker),
        broker_tls=get_fact(lambda: broker_tls_facts(broker, settings)),
        certificates={
            key: get_fact(partial(days_left, store, wall_ms()))
            for key, store in certificate_stores(broker, settings).items()
        },
    )  # fmt: skip
    facts = replace(facts, registered=registered)
    return _with_gateway(facts, client) if settings.gateway.enable else facts


def _reached(client: KafkaClientConfig) -> KafkaClientConfig:
    reach(client, "the file of remote.wal.agent.client.config", _KAFKA_TIMEOUT_S)
    return client


def _ways_past_agents(
    broker: BrokerProperties, settings: AgentSettings, registered: Mapping[int, AgentRegistration]
) -> dict[int, BypassWay]:
    """Return the bypasses as an agent uses them: the listed ones, and under TLS the registered ones."""
    own_id, listed = broker.node_id, settings.bypass.brokers
    if not listed:
        return {}
    found = registered_bypasses(registered, own_id) if settings.bypass.security_protocol.endswith("SSL") else {}
    ways = {one: BypassWay(where, f"broker-{one}") for one, where in found.items()}
    return ways | {one: BypassWay(where) for one, where in listed.items() if one != own_id}


def _dial_any(addresses: Sequence[Address], tls: PeerTls | None) -> str | None:
    """Dial like an agent, one address after the other; None when one answers."""
    refusals = []
    for address in dict.fromkeys(addresses):
        if (refusal := dial(address, tls, _PEER_TIMEOUT_S)) is None:
            return None
        refusals.append(refusal)
    return "; ".join(refusals)


def broker_silence(broker: BrokerProperties) -> str | None:
    """Return why the broker says nothing at any listener; None if it does at one. A listener that was added to its file
    is there only after its restart."""

    def ask(name: str) -> str | None:
        has_tls = broker.security_protocols[name].endswith("SSL")
        return silence(broker_listener(broker, name), _PEER_TIMEOUT_S, has_tls=has_tls)

    with ThreadPoolExecutor(max(len(broker.listeners), 1)) as pool:
        told = list(pool.map(ask, broker.listeners))
    return None if None in told else "; ".join(filter(None, told))


def broker_tls_facts(broker: BrokerProperties, settings: AgentSettings) -> BrokerTlsFacts | None:
    """Test TLS with this host's broker; None if its inter-broker listener has no TLS. Raises AgentSettingsError,
    OSError."""
    plan = broker_tls_plan(broker, settings.broker_tls)
    if plan is None:
        return None
    unnamed = tuple(host for host in _advertised_hosts(broker, settings) if not plan.covers(host))
    refusal = ask_broker(broker_listener(broker), plan.client_context, _PEER_TIMEOUT_S, plan.advertised_host)
    return BrokerTlsFacts(unnamed, refusal)


def _advertised_hosts(broker: BrokerProperties, settings: AgentSettings) -> list[str]:
    """Return the hosts that brokers advertise to each other, including this one."""
    own = broker.advertised_listeners[broker.inter_broker_listener_name].host
    brokers = (broker.node_id, *peer_addresses(broker, settings.peers))
    return sorted({advertised_host(own, broker.node_id, one) for one in brokers})


def advertised_host(own_host: str, own_id: int, broker_id: int) -> str:
    """Guess another broker's advertised host from the own name's pattern: replica-1.x means replica-2.x there.

    Returns the own host if that is an address, or does not contain the broker's id exactly once.
    """
    pattern = rf"(?<!\d){own_id}(?!\d)"
    is_pattern = not re.fullmatch(r"[\d.:a-fA-F]+", own_host) and len(re.findall(pattern, own_host)) == 1
    return re.sub(pattern, str(broker_id), own_host) if is_pattern else own_host


def _with_gateway(facts: Facts, client: KafkaClientConfig | Unknown) -> Facts:
    zones: Mapping[int, str | None] | Unknown = _if_known(client, lambda known: ask_zones(known, _KAFKA_TIMEOUT_S))
    advertised = facts.broker.advertised_listeners
    listeners = facts.settings.gateway.zone_listeners.values()
    hosts = sorted({advertised[name].host for name in listeners if name in advertised})
    ways = {} if isinstance(client, Unknown) else _ways(client)
    names = {host: get_fact(partial(addresses_of, host)) for host in hosts}
    return replace(facts, zones=zones, ways=ways, names=names)


def _ways(client: KafkaClientConfig) -> dict[str, Mapping[int, Endpoint] | Unknown]:
    servers = [part.strip() for part in client.bootstrap_servers.split(",")]
    with ThreadPoolExecutor(_PEERS_AT_ONCE) as pool:
        asked = pool.map(lambda server: get_fact(lambda: ask_way(client, server, _KAFKA_TIMEOUT_S)), servers)
        return dict(zip(servers, asked, strict=True))


def _settings_topic(
    client: KafkaClientConfig | Unknown, cluster: Cluster | Unknown, settings: HttpSettings
) -> tuple[
    Mapping[str, EnabledTopic] | Unknown,
    Mapping[int, AgentResponse | Unknown] | Unknown,
    Mapping[int, AgentRegistration],
]:
    if isinstance(cluster, Unknown) or isinstance(client, Unknown):
        reason = cluster if isinstance(cluster, Unknown) else Unknown("no client")
        return reason, reason, {}
    read = get_fact(lambda: read_settings(client, _KAFKA_TIMEOUT_S))
    if isinstance(read, Unknown):
        return read, read, {}
    agents = {one: agent for one, agent in read.agents.items() if not agent.is_gone}
    retention = AgentsRetention.registered(agents.values())
    described = get_fact(lambda: ask_topics(client, read.topics, retention, _KAFKA_TIMEOUT_S))
    answers = ask_agents(agents, settings, timeout_s=_PEER_TIMEOUT_S)
    return described, {one: agent_response(answer) for one, answer in answers.items()}, agents


def agent_response(answer: AgentPage) -> AgentResponse | Unknown:
    """Return what an agent said, or why that is not known."""
    if answer.page is None:
        return Unknown(answer.failure)
    gaps, held = answer.page.get("gaps", ()), answer.page.get("held", ())
    try:
        return AgentResponse(
            str(answer.page["cluster_id"]),
            tuple(map(_offsets_text, gaps)),
            tuple(f"{_offsets_text(one)}: {one['restore']}, or {one['give_up']}" for one in held),
        )
    except (KeyError, TypeError) as error:
        begins = "broker_id" in answer.page and "cluster_id" not in answer.page
        return Unknown("it is not relaying yet: see its /readyz" if begins else f"not an agent's answer: {error}")


def _offsets_text(told: Mapping[str, Any]) -> str:
    return f"{told['topic']}-{told['partition']} {told['from_offset']} to {told['to_offset'] - 1}"


def _stores(
    broker: BrokerProperties, settings: AgentSettings, wall_ms: Callable[[], int]
) -> tuple[Store | Unknown, dict[str, Store | Unknown]]:
    """Probe the bucket that is written to, and the others by name."""
    spec = settings.store_spec(broker)

    def probed(of_bucket: Mapping[str, str]) -> Store | Unknown:
        context = StorageContext(cluster_id_of(broker.log_dirs), broker.node_id)
        return probe_store(replace(spec, settings=of_bucket), context, secrets.token_hex(8), wall_ms)

    if not spec.buckets:
        return get_fact(lambda: probed(spec.settings)), {}
    try:
        check_own_zone(spec)
        plan = bucket_plan(spec)
    except RemoteStorageConfigError as error:
        return unopened(error), {}
    found = {bucket_id: get_fact(partial(probed, bucket.settings)) for bucket_id, bucket in plan.buckets.items()}
    own = found.pop(plan.own) if plan.own is not None else Unknown("this broker's zone has no bucket")
    return own, {plan.buckets[bucket_id].name: store for bucket_id, store in found.items()}


def _host(broker: BrokerProperties, settings: AgentSettings) -> Host:
    limit = get_fact(lambda: open_files_limit(settings.process.state_directory))
    open_files, whose = (limit, "") if isinstance(limit, Unknown) else limit
    history = get_fact(lambda: read_leaders(broker.metadata_log_dir, ()))
    return Host(
        get_fact(lambda: count_partitions(broker.log_dirs)),
        get_fact(max_user_watches),
        open_files,
        whose,
        history if isinstance(history, Unknown) else None,
    )


def _if_known(known: "KafkaClientConfig | Unknown", get: Callable[[KafkaClientConfig], T]) -> T | Unknown:
    return known if isinstance(known, Unknown) else get_fact(lambda: get(known))
