"""Checks the metadata topic, the topics' tiers, and related times."""

from agent.configuration import delete_grace_ms
from agent.settings.setting_types import milliseconds
from doctor.facts import Facts, known
from doctor.findings import Level, Verdict, some_of
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC
from metadata_topic.topic.topic_requirements import (
    UNLIMITED,
    TopicProblem,
    cleanup_problems,
    message_problems,
    retention_needed_ms,
    retention_problems,
    settings_cleanup_problems,
)
from plugin.loading import IMPL_PREFIX

_WANTED_REPLICAS = 3
_WANTED_IN_SYNC = 2


def system_enable(facts: Facts) -> Verdict:
    """Check whether the storage system is switched on, so that the agent does anything."""
    key = "remote.log.wal.storage.system.enable"
    if facts.settings.is_shadow:
        return Verdict(Level.INFORMATION, "in shadow (remote.wal.agent.mode): nobody replicates through this agent")
    if facts.settings.storage.system_enable:
        return Verdict(Level.OK, f"{key} is true")
    return Verdict(Level.INFORMATION, f"{key} is false: the agent only relays", f"set {key}=true to use storage")


def topics_visible(facts: Facts) -> Verdict:
    """Check whether the agents may describe the topics: without that, they cannot know what to delete."""
    topics = known(facts.topics)
    hidden = sorted(name for name, topic in topics.items() if topic.is_hidden)
    if not hidden:
        return Verdict(Level.OK, f"{len(topics)} topics, none hidden from the agents' client")
    return Verdict(
        Level.WARNING,
        f"{some_of(hidden)}: hidden from the agents' client, so neither retention nor log start releases objects",
        "kafka-acls.sh --add --allow-principal User:<the agents'> --operation Describe --operation DescribeConfigs "
        "--topic '*', and take away what denies it",
    )


def metadata_topic_retention(facts: Facts) -> Verdict:
    """Check whether the metadata topic keeps records for longer than agents keep objects."""
    config = _metadata_topic_config(facts)
    topics = known(facts.topics)
    kept_ms = [topic.metadata_ms for topic in topics.values() if topic.metadata_ms is not None]
    longest_ms = UNLIMITED if any(retention_ms < 0 for retention_ms in kept_ms) else max(kept_ms, default=0)
    needed_ms = retention_needed_ms(longest_ms, delete_grace_ms(facts.broker, facts.settings))
    problems = retention_problems(METADATA_TOPIC, config, needed_ms, _servers(facts))
    if problems:
        return _refused(problems, "; or shorten the topics' remote.wal.retention.ms")
    silent = sorted(name for name, topic in topics.items() if topic.metadata_ms is None)
    if silent:
        return Verdict(Level.UNKNOWN, f"the retention of {some_of(silent)} is not known")
    return Verdict(Level.OK, f"retention.ms {config.get('retention.ms')} covers {len(topics)} topics")


def metadata_topic_cleanup(facts: Facts) -> Verdict:
    """Check whether compaction may remove records of the metadata topic."""
    config = _metadata_topic_config(facts)
    policy = config.get("cleanup.policy")
    if policy == "delete":
        return Verdict(Level.OK, "cleanup.policy is delete")
    problems = cleanup_problems(METADATA_TOPIC, config, _servers(facts))
    if problems:
        return _refused(problems)
    return Verdict(Level.WARNING, f"{METADATA_TOPIC}: cleanup.policy is {policy!r}", "set it to delete")


def settings_topic_cleanup(facts: Facts) -> Verdict:
    """Check whether the settings topic's cleanup removes settings by age: agents would notice only after they have
    forgotten them."""
    config = known(known(facts.cluster).settings_config)
    problems = settings_cleanup_problems(SETTINGS_TOPIC, config, _servers(facts))
    return _refused(problems) if problems else Verdict(Level.OK, "cleanup.policy is compact")


def metadata_topic_message_size(facts: Facts) -> Verdict:
    """Check whether a batch of metadata may be too large for the topic."""
    config = _metadata_topic_config(facts)
    problems = message_problems(METADATA_TOPIC, config, _servers(facts))
    if problems:
        return _refused(problems)
    return Verdict(Level.OK, f"max.message.bytes is {config.get('max.message.bytes', 'the default')}")


def metadata_topic_replication(facts: Facts) -> Verdict:
    """Check whether the metadata topic survives the loss of a broker."""
    topic = known(known(facts.cluster).metadata_topic)
    in_sync = int(topic.config.get("min.insync.replicas", "1"))
    found = f"replication factor {topic.replicas}, min.insync.replicas {in_sync}"
    if topic.replicas < _WANTED_REPLICAS:
        level = Level.ERROR if topic.replicas < _WANTED_IN_SYNC else Level.WARNING
        change = (
            f"kafka-reassign-partitions.sh to {_WANTED_REPLICAS} replicas, then min.insync.replicas={_WANTED_IN_SYNC}"
        )
        return Verdict(max(level, _in_sync_level(in_sync), key=list(Level).index), found, change)
    if in_sync < _WANTED_IN_SYNC:
        change = (
            f"kafka-configs.sh --bootstrap-server {_servers(facts)} --alter --topic {METADATA_TOPIC} --add-config "
            f"min.insync.replicas={_WANTED_IN_SYNC}"
        )
        return Verdict(Level.ERROR, found, change)
    return Verdict(Level.OK, found)


def long_term_tier(facts: Facts) -> Verdict:
    """Report topics whose records are in object storage only for the WAL's retention."""
    topics = known(facts.topics)
    without = sorted(name for name, topic in topics.items() if not topic.has_long_term_tier)
    if not without:
        return Verdict(Level.OK, f"{len(topics)} topics, none without tiered storage or archive")
    return Verdict(
        Level.INFORMATION,
        f"{some_of(without)}: neither tiered storage nor archive; what the WAL does not keep is on the brokers alone",
        "remote.storage.enable=true (KIP-405), or remote-wal topics enable --archive, where they are to be kept",
    )


def fetch_delay(facts: Facts) -> Verdict:
    """Check whether a follower may fall out of the ISR while its fetch waits for object storage."""
    key = "replica.lag.time.max.ms"
    settings = facts.settings
    lag_ms = int(facts.broker.raw.get(key, "30000"))
    delay_ms = milliseconds(settings.link.wait_max_s + settings.link.hydration_timeout_s)
    found = f"a fetch waits {delay_ms} ms at most (link.wait.max and hydration.timeout), {key} is {lag_ms}"
    if delay_ms <= lag_ms // 2:
        return Verdict(Level.OK, found)
    level = Level.ERROR if delay_ms >= lag_ms else Level.WARNING
    return Verdict(level, found, "lower remote.wal.link.wait.max.ms and remote.wal.hydration.timeout.ms")


def uncommitted_ttl(facts: Facts) -> Verdict:
    """Check whether a running upload may be taken for an abandoned one."""
    key = "remote.wal.uncommitted.ttl.ms"
    ttl_ms = milliseconds(facts.settings.lifecycle.uncommitted_ttl_s)
    total_ms = int(facts.broker.raw.get(f"{IMPL_PREFIX}total.timeout.ms", "10000"))
    found = f"{key} is {ttl_ms}, {IMPL_PREFIX}total.timeout.ms is {total_ms}"
    if ttl_ms >= 10 * total_ms:
        return Verdict(Level.OK, found)
    level = Level.ERROR if ttl_ms <= total_ms else Level.WARNING
    return Verdict(level, f"{found}: an upload may be deleted while it runs", f"set {key}={10 * total_ms}")


def _metadata_topic_config(facts: Facts) -> dict[str, str]:
    return dict(known(known(facts.cluster).metadata_topic).config)


def _refused(problems: "list[TopicProblem]", or_else: str = "") -> Verdict:
    found, changes = ("; ".join(texts) for texts in zip(*((one.found, one.change) for one in problems), strict=True))
    return Verdict(Level.ERROR, found, changes + or_else)


def _servers(facts: Facts) -> str:
    return facts.settings.client.bootstrap_servers or "HOST:PORT"


def _in_sync_level(in_sync: int) -> Level:
    return Level.ERROR if in_sync < _WANTED_IN_SYNC else Level.OK
