"""All checks, in the order in which they are shown."""

from collections.abc import Callable, Sequence
from typing import Final

from doctor import bypass_checks, cluster_checks, host_checks, store_checks
from doctor.facts import Facts
from doctor.findings import Finding, Level

Check = Callable[[Facts], Finding]

CHECKS: Final[Sequence[Check]] = (
    cluster_checks.system_enable,
    host_checks.listeners,
    host_checks.agent_peers,
    bypass_checks.bypass_listener,
    bypass_checks.bypass_peers,
    host_checks.agents_registered,
    store_checks.store_settings,
    store_checks.store_permissions,
    store_checks.store_conditional_put,
    store_checks.store_shared,
    cluster_checks.topics_visible,
    cluster_checks.metadata_topic_retention,
    cluster_checks.metadata_topic_cleanup,
    cluster_checks.metadata_topic_message_size,
    cluster_checks.metadata_topic_replication,
    cluster_checks.long_term_tier,
    cluster_checks.deletion_grace,
    cluster_checks.fetch_delay,
    cluster_checks.uncommitted_ttl,
    store_checks.clock_store,
    cluster_checks.clock_brokers,
    host_checks.missing_records,
    host_checks.inotify_watches,
    host_checks.open_files,
)


def diagnose(facts: Facts, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """One finding for each check. A check that fails, over a value that nobody foresaw, takes no other with it."""
    findings = []
    for check in checks:
        try:
            findings.append(check(facts))
        except Exception as error:
            name = check.__name__.replace("_", "-")
            findings.append(Finding(name, Level.UNKNOWN, f"the check failed: {type(error).__name__}: {error}"))
    return findings
