"""All checks, in the order in which they are shown."""

from collections.abc import Callable, Mapping
from typing import Final

from doctor import cluster_checks, gateway_checks, host_checks, retention_checks, store_checks
from doctor.facts import Facts
from doctor.findings import Finding, Level, Verdict, judge

Check = Callable[[Facts], Verdict]

CHECKS: Final[Mapping[str, Check]] = {
    "broker": host_checks.broker,
    "system-enable": cluster_checks.system_enable,
    "listeners": host_checks.listeners,
    "broker-tls": host_checks.broker_tls,
    "plaintext-peers": host_checks.plaintext_peers,
    "agent-peers": host_checks.agent_peers,
    "bypass-listener": host_checks.bypass_listener,
    "bypass-peers": host_checks.bypass_peers,
    "follower-fetching": gateway_checks.follower_fetching,
    "gateway-listeners": gateway_checks.gateway_listeners,
    "gateway-agents": gateway_checks.gateway_agents,
    "gateway-sides": gateway_checks.gateway_sides,
    "gateway-names": gateway_checks.gateway_names,
    "gateway-security": gateway_checks.gateway_security,
    "durable-topics": gateway_checks.durable_topics,
    "agents-registered": host_checks.agents_registered,
    "store-settings": store_checks.store_settings,
    "store-buckets": store_checks.store_buckets,
    "store-zones": store_checks.store_zones,
    "store-permissions": store_checks.store_permissions,
    "store-conditional-put": store_checks.store_conditional_put,
    "store-shared": store_checks.store_shared,
    "store-versions": store_checks.store_versions,
    "topics-visible": cluster_checks.topics_visible,
    "metadata-topic-retention": cluster_checks.metadata_topic_retention,
    "metadata-topic-cleanup": cluster_checks.metadata_topic_cleanup,
    "settings-topic-cleanup": cluster_checks.settings_topic_cleanup,
    "metadata-topic-message-size": cluster_checks.metadata_topic_message_size,
    "metadata-topic-replication": cluster_checks.metadata_topic_replication,
    "long-term-tier": cluster_checks.long_term_tier,
    "wal-retention": retention_checks.wal_retention,
    "fetch-delay": cluster_checks.fetch_delay,
    "uncommitted-ttl": cluster_checks.uncommitted_ttl,
    "clock-store": store_checks.clock_store,
    "missing-records": host_checks.missing_records,
    "leader-history": host_checks.leader_history,
    "held-records": host_checks.held_records,
    "certificates": host_checks.certificates,
    "inotify-watches": host_checks.inotify_watches,
    "open-files": host_checks.open_files,
}


_OF_RELAYING: Final = frozenset({"listeners", "broker-tls", "agent-peers", "bypass-listener", "bypass-peers"})
_OF_STORE: Final = frozenset({one for one in CHECKS if one.startswith("store-")} | {"clock-store"})


def _not_in_shadow(_facts: Facts) -> Verdict:
    return Verdict(Level.OK, "not asked: an agent in shadow does without")


def diagnose(facts: Facts, checks: Mapping[str, Check] = CHECKS) -> list[Finding]:
    if facts.settings.is_shadow:
        spared = _OF_RELAYING | _OF_STORE
        checks = {one: _not_in_shadow if one in spared else check for one, check in checks.items()}
    return judge(facts, checks)
