"""`remote-wal topics`: shows and changes which topics replicate through object storage."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.connection import Connection, Json
from cli.option_groups import command_group, grouped
from cli.tables import fitted, show, tell_json
from plugin.errors import meant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from kafka_cluster.client_config import KafkaClientConfig
    from kafka_cluster.cluster import KafkaCluster
    from kafka_log.topic_partition import TopicId
    from metadata_topic.settings.settings_table import SettingsTable
    from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings

app = command_group("Set and list the topics with remote.wal.storage.enable.")

Topics = Annotated[list[str], typer.Argument(help="Names of topics.", metavar="TOPIC...")]
WalRetentionMs = Annotated[
    int | None,
    typer.Option(
        help="remote.wal.retention.ms: how long objects are kept for followers; -2: as long as brokers keep the log."
    ),
]

Pattern = Annotated[
    bool,
    typer.Option("--pattern", help="The names are regular expressions (RE2), for all such topics, also future ones."),
]

_POLICY = (
    "remote.wal.link.policy: cost: links where they are cheaper than the bytes, unless they hold records back at "
    "producers; always: links for every byte, so that a producer that sends many small requests with acks=all "
    "(librdkafka) waits a round of the store for each of them."
)
_WHAT_IT_DOES = {
    "cost": "cost: links where objects pay on the average. Where they hold records back for too long, bytes go inline: "
    "remote-wal describe --why.",
    "always": "always: links for every byte, whatever it costs.",
}
_WAITS = (
    "acks=all producers that send to brokers directly wait longer, by a PUT and a GET: with small batches "
    "up to five times as long as inline; where agents hold the answers none waits."
)
_WAITS_AHEAD = " With always, a small request sent ahead waits for all."
_NONE_WAITS = "No producer waits for them: agents hold the answers to acks=all."
_WHAT_DURABLE_KEEPS = (
    "durable: use a regional store (S3 Standard, Google Cloud Storage, Azure). What is in a store of one zone, such as "
    "S3 Express One Zone, is lost with that zone. A change of leaders may lose what was acknowledged to acks=1 and the "
    "next leader did not have; acks=all waits for those in sync, too."
)
_TIMEOUT_S = 10.0
Durable = Annotated[
    bool | None,
    typer.Option(
        "--durable/--no-durable",
        help="remote.wal.durable.enable: answer producers only once their records are in object storage.",
    ),
]


@app.command()
@grouped
def enable(
    topics: Topics,
    connection: Connection,
    link_policy: Annotated[Literal["cost", "always"] | None, typer.Option(help=_POLICY)] = None,
    latency_bound_ms: Annotated[
        int | None, typer.Option(help="remote.wal.link.latency.bound.ms, for the policy cost.")
    ] = None,
    upload_wait_max_ms: Annotated[
        int | None, typer.Option(help="remote.wal.link.upload.wait.max.ms, for the policy cost.")
    ] = None,
    archive: Annotated[
        bool | None,
        typer.Option("--archive/--no-archive", help="remote.wal.archive.enable: keep the log in the archive."),
    ] = None,
    wal_retention_ms: WalRetentionMs = None,
    durable: Durable = None,
    pattern: Pattern = False,
    json: Json = False,
) -> None:
    """Replicate these topics through object storage from now on. Takes effect in running agents within seconds.

    Settings that are not named stay as they are, also those that a topic has by a pattern; else they begin with the
    defaults.
    With --pattern, topics that have no setting of their own inherit these.
    """
    from metadata_topic.settings import topic_settings as keys
    from metadata_topic.settings.settings_topic import read_known_settings

    wanted = {
        keys.ENABLE_KEY: True,
        keys.POLICY_KEY: link_policy,
        keys.LATENCY_BOUND_KEY: latency_bound_ms,
        keys.UPLOAD_WAIT_KEY: upload_wait_max_ms,
        keys.ARCHIVE_KEY: archive,
        keys.WAL_RETENTION_KEY: wal_retention_ms,
        keys.DURABLE_KEY: durable,
    }
    changes, client = {key: value for key, value in wanted.items() if value is not None}, connection.client_config()
    known = read_known_settings(client)
    now = _patterns_settings(topics, known) if pattern else _settings_that_count(topics, known)
    changed = _changed(now, changes)
    _check_retention(changed, client, are_patterns=pattern)
    if durable:
        before = known.patterns if pattern else known.topics
        _check_durable(_not_durable(topics, before), known.agents, client, are_patterns=pattern)
    if pattern:
        _set_patterns(changed, client, json=json)
    else:
        _set(changed, client, known.agents, json=json)


@app.command("set")
@grouped
def set_(
    topics: Topics,
    connection: Connection,
    link_policy: Annotated[Literal["cost", "always"] | None, typer.Option(help=_POLICY)] = None,
    wal_retention_ms: WalRetentionMs = None,
    durable: Durable = None,
    json: Json = False,
) -> None:
    """Change settings of topics that are enabled, and leave their others as they are."""
    from metadata_topic.settings.settings_topic import read_known_settings
    from metadata_topic.settings.topic_settings import DURABLE_KEY, POLICY_KEY, WAL_RETENTION_KEY

    wanted = {POLICY_KEY: link_policy, WAL_RETENTION_KEY: wal_retention_ms, DURABLE_KEY: durable}
    changes = {key: value for key, value in wanted.items() if value is not None}
    if not changes:
        raise typer.BadParameter("nothing to set", param_hint="--link-policy, --wal-retention-ms, --durable")
    client = connection.client_config()
    known = read_known_settings(client)
    now = _settings_that_count(topics, known)
    for topic, settings in now.items():
        if not settings.enable:
            hint = meant(topic, known.topics) or f": first remote-wal topics enable {topic}"
            raise typer.BadParameter(f"{topic} is not enabled{hint}", param_hint="TOPIC...")
    changed = _changed(now, changes)
    if wal_retention_ms is not None:
        _check_retention(changed, client)
    if durable:
        _check_durable(_not_durable(topics, now), known.agents, client)
    _set(changed, client, known.agents, json=json)


@app.command()
@grouped
def pack(
    topics: Topics,
    connection: Connection,
    is_packed: Annotated[bool, typer.Option("--on/--off", help="remote.wal.pack.enable of the topics.")],
    pattern: Pattern = False,
    json: Json = False,
) -> None:
    """Pack these topics' records on their way to other zones, or not: for those whose length is a secret.

    Topics need not be enabled. Other settings stay as they are.
    """
    from metadata_topic.settings.settings_topic import read_known_settings
    from metadata_topic.settings.topic_settings import PACK_KEY

    client = connection.client_config()
    known = read_known_settings(client)
    now = _patterns_settings(topics, known) if pattern else _settings_that_count(topics, known)
    changed = _changed(now, {PACK_KEY: is_packed})
    if pattern:
        _set_patterns(changed, client, json=json)
    else:
        _set(changed, client, known.agents, json=json)


@app.command()
@grouped
def disable(topics: Topics, connection: Connection, pattern: Pattern = False, json: Json = False) -> None:
    """Replicate these topics as stock Kafka does, whatever patterns and brokers' files say.

    Objects that are stored stay, and a topic that is not packed stays so. With --pattern, the patterns are removed.
    """
    if pattern:
        _set_patterns(dict.fromkeys(topics), connection.client_config(), json=json)
        return
    from metadata_topic.settings.settings_topic import read_known_settings
    from metadata_topic.settings.topic_settings import OWN, TopicSettings

    client = connection.client_config()
    now = _settings_that_count(topics, read_known_settings(client))
    off = {name: TopicSettings(origin=OWN, pack=settings.pack) for name, settings in now.items()}
    _set(off, client, json=json)


@app.command()
@grouped
def reset(topics: Topics, connection: Connection, json: Json = False) -> None:
    """Remove these topics' own settings: they inherit those of a pattern or of the brokers' files, if there are any."""
    _set(dict.fromkeys(topics), connection.client_config(), json=json)


@app.command("list")
@grouped
def list_topics(connection: Connection, json: Json = False) -> None:
    """Show the settings of topics, and of patterns, which count for topics without own settings."""
    from metadata_topic.settings.settings_topic import read_known_settings

    known = read_known_settings(connection.client_config())
    topics, patterns = _listed(known.topics), _listed(known.patterns)
    if json:
        tell_json({"topics": topics, "patterns": patterns, "orphaned": sorted(known.orphaned)})
        return
    settings = ("link policy", "latency bound", "archive", "WAL retention ms", "durable", "packed", "from")
    rows = [_shown(row) for row in topics + patterns]
    drop = ("latency bound", "WAL retention ms", "packed", "archive", "link policy", "durable", "from")
    show(fitted("topic", "enabled", *settings, rows=rows, drop=drop), *orphaned_lines(known.orphaned))


def _listed(settings: "Mapping[str, TopicSettings]") -> list[dict[str, Any]]:
    """Return the settings of topics, or of patterns, as programs get them, by name."""
    from metadata_topic.settings.topic_settings import OWN

    return [
        {
            "name": name,
            "remote.wal.storage.enable": one.enable,
            "remote.wal.link.policy": str(one.link_policy),
            "remote.wal.link.latency.bound.ms": one.link_latency_bound_ms,
            "remote.wal.archive.enable": one.archive,
            "remote.wal.retention.ms": one.wal_retention_ms,
            "remote.wal.durable.enable": one.durable,
            "remote.wal.pack.enable": one.pack,
            "from": one.origin or OWN,
        }
        for name, one in sorted(settings.items())
    ]


def _shown(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of the table for people."""
    bound_ms, kept_ms = row["remote.wal.link.latency.bound.ms"], row["remote.wal.retention.ms"]
    return (
        row["name"],
        str(row["remote.wal.storage.enable"]).lower(),
        row["remote.wal.link.policy"],
        "" if bound_ms is None else f"{bound_ms} ms",
        str(row["remote.wal.archive.enable"]).lower(),
        "" if kept_ms is None else str(kept_ms),
        str(row["remote.wal.durable.enable"]).lower(),
        str(row["remote.wal.pack.enable"]).lower(),
        row["from"],
    )


def orphaned_lines(orphaned: "Iterable[str]") -> list[str]:
    """Return the messages about settings whose topics were deleted."""
    return [
        f"{name}: settings of a deleted topic, which count for no other. To remove them: remote-wal topics reset {name}"
        for name in sorted(orphaned)
    ]


def _patterns_settings(patterns: "Sequence[str]", known: "SettingsTable") -> "dict[str, TopicSettings]":
    """Return what these patterns were given; the defaults if they were given nothing."""
    from metadata_topic.settings.topic_settings import TopicSettings

    return {one: known.patterns.get(one, TopicSettings()) for one in patterns}


def _settings_that_count(topics: "Sequence[str]", known: "SettingsTable") -> "dict[str, TopicSettings]":
    """Return what counts for these topics, also where no agent has written a pattern's record yet."""
    from metadata_topic.settings.topic_settings import TopicSettings

    return {topic: known.of(topic, None) or TopicSettings() for topic in topics}


def _changed(settings: "Mapping[str, TopicSettings]", changes: "Mapping[str, Any]") -> "dict[str, TopicSettings]":
    from metadata_topic.records.errors import TopicSettingsError
    from metadata_topic.settings.setting_keys import changed_settings

    try:
        return {topic: changed_settings(topic, its, changes) for topic, its in settings.items()}
    except TopicSettingsError as error:
        raise typer.BadParameter(error.reason) from None


def _matching(patterns: "Collection[str]", topics: "Iterable[str]") -> list[str]:
    """Return the topics that one of the patterns matches. Raises TopicSettingsError."""
    from metadata_topic.settings.patterns import is_match
    from metadata_topic.settings.topic_settings import INTERNAL_TOPICS, check_pattern

    for pattern in patterns:
        check_pattern(pattern)
    return [one for one in topics if one not in INTERNAL_TOPICS and any(is_match(its, one) for its in patterns)]


def _check_retention(
    wanted: "Mapping[str, TopicSettings]", client: "KafkaClientConfig", *, are_patterns: bool = False
) -> None:
    """Check the retention. Raises TopicSettingsError where -2 has no limit."""
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.responses import UNKNOWN_TOPIC_OR_PARTITION
    from metadata_topic.records.errors import TopicSettingsError
    from metadata_topic.settings.topic_settings import WAL_RETENTION_KEY
    from metadata_topic.settings.wal_retention import AS_LOCAL, why_not_as_local

    cluster = KafkaCluster(client, "remote-wal-topics", _TIMEOUT_S)
    names = [name for name, settings in wanted.items() if settings.wal_retention_ms == AS_LOCAL]
    if are_patterns and names:
        names = _matching(names, cluster.listing().topics)
    # One that is not there is told of when it is set.
    for topic, config in cluster.topic_configurations(names).get_all({UNKNOWN_TOPIC_OR_PARTITION}).items():
        if reason := why_not_as_local(config):
            raise TopicSettingsError("set topic settings", topic, f"{WAL_RETENTION_KEY}=-2: {reason}")


def _not_durable(names: "Iterable[str]", before: "Mapping[str, TopicSettings]") -> list[str]:
    """Return the topics, or patterns, that are not durable before the change."""
    return [name for name in names if name not in before or not before[name].is_durable]


def _check_durable(
    names: "Collection[str]",
    agents: "Mapping[int, AgentRegistration]",
    client: "KafkaClientConfig",
    *,
    are_patterns: bool = False,
) -> None:
    """Check that all agents hold answers, and that no transaction is open in these topics, or what the patterns match.

    Raises TopicSettingsError, as else producers would be answered too early, and KafkaClusterError.
    """
    from kafka_cluster.cluster import KafkaCluster
    from metadata_topic.records.errors import TopicSettingsError
    from metadata_topic.settings.topic_settings import DURABLE_KEY, why_not_durable

    cluster = KafkaCluster(client, "remote-wal-topics", _TIMEOUT_S)
    reason = why_not_durable(agents, [one.broker_id for one in cluster.brokers()])
    if reason is not None:
        hint = "first have all agents hold answers: remote-wal gateway plan --durable prints the lines"
        raise TopicSettingsError("enable", DURABLE_KEY, reason, hint)
    if names and (found := _open_transactions(names, cluster, are_patterns=are_patterns)):
        reason = f"a transaction is open in {', '.join(found)}, and durable topics take none"
        raise TopicSettingsError("enable", DURABLE_KEY, reason, "stop its producer, and try again when it has ended")
    typer.echo(_WHAT_DURABLE_KEEPS, err=True)


def _open_transactions(names: "Collection[str]", cluster: "KafkaCluster", *, are_patterns: bool) -> list[str]:
    """Return the partitions of these topics in which a transaction is open. Raises KafkaClusterError."""
    from kafka_cluster.cluster import LATEST

    listed = cluster.listing().topics
    # A topic that is not there is refused when it is set.
    found = _matching(names, listed) if are_patterns else [one for one in names if one in listed]
    where = [(topic, one.partition) for topic in found for one in listed[topic].partitions]
    ends = cluster.offsets(where, LATEST).get_all()
    stable = cluster.offsets(where, LATEST, is_stable=True).get_all()
    return [f"{topic}-{partition}" for topic, partition in where if stable[topic, partition] < ends[topic, partition]]


def _check_names(names: "Iterable[str]", check: "Callable[[str], None]") -> None:
    """Raise BadParameter for the first name that the check refuses."""
    from metadata_topic.records.errors import TopicSettingsError

    try:
        for name in names:
            check(name)
    except TopicSettingsError as error:
        raise typer.BadParameter(f"{error.key}: {error.reason}", param_hint="TOPIC...") from None


def _set(
    wanted: "Mapping[str, TopicSettings | None]",
    client: "KafkaClientConfig",
    agents: "Mapping[int, AgentRegistration] | None" = None,
    *,
    json: bool,
) -> None:
    """Write the settings of these topics; None: the defaults. `agents` are those that registered."""
    from dataclasses import replace

    from metadata_topic.settings.setting_keys import FIELDS, text_of
    from metadata_topic.settings.settings_table import TOPICS
    from metadata_topic.settings.settings_topic import SettingsWriter
    from metadata_topic.settings.topic_settings import ENABLE_KEY, TopicSettings, check_topic

    _check_names(wanted, check_topic)
    existing = _existing(wanted, client)
    with closing(SettingsWriter(client)) as writer:
        for topic, settings in wanted.items():
            bound = None if settings is None else replace(settings, topic_id=existing.get(topic))
            writer.put(TOPICS, {topic: bound if topic in existing else None})
    enabled = {topic: settings is not None and settings.enable for topic, settings in wanted.items()}
    if json:
        tell_json({"topics": [{"name": topic, ENABLE_KEY: is_on} for topic, is_on in enabled.items()]})
        return
    default = TopicSettings()
    for topic, settings in wanted.items():
        told = ((key, text_of(settings or default, key)) for key in FIELDS)
        shown = (f"{key}={text}" for key, text in told if key == ENABLE_KEY or text != text_of(default, key))
        typer.echo(f"{topic}: {', '.join(shown)}")
    if policies := sorted({str(one.link_policy) for one in wanted.values() if one is not None and one.enable}):
        typer.echo("\n".join(_WHAT_IT_DOES[policy] for policy in policies))
        waits = _WAITS + _WAITS_AHEAD * ("always" in policies)
        typer.echo(_NONE_WAITS if _all_hold_answers(agents or {}, client) else waits)


def _all_hold_answers(agents: "Mapping[int, AgentRegistration]", client: "KafkaClientConfig") -> bool:
    """Whether it is known that beside every broker an agent holds the answers to all producers with acks=all."""
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.errors import KafkaClusterError
    from metadata_topic.settings.topic_settings import GatewayPart

    holding = {one for one, agent in agents.items() if GatewayPart.PIPELINED in agent.gateway}
    if not holding or {one for one, agent in agents.items() if not agent.is_gone} - holding:
        return False
    try:
        return holding >= {one.broker_id for one in KafkaCluster(client, "remote-wal-topics", _TIMEOUT_S).brokers()}
    except KafkaClusterError:
        return False


def _existing(wanted: "Mapping[str, TopicSettings | None]", client: "KafkaClientConfig") -> "dict[str, TopicId | None]":
    """Return the ids of those that exist. Raises BadParameter for another, unless it has settings to be removed."""
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.responses import UNKNOWN_TOPIC_OR_PARTITION
    from metadata_topic.settings.settings_topic import known_id, read_known_settings

    cluster = KafkaCluster(client, "remote-wal-topics", _TIMEOUT_S)
    described = cluster.topics(list(wanted))
    found = {one.name: known_id(one) for one in described if one.error_code != UNKNOWN_TOPIC_OR_PARTITION}
    if missing := wanted.keys() - found.keys():
        known = read_known_settings(client)
        removable = known.topics.keys() | known.orphaned.keys()
        for topic in sorted(missing):
            if wanted[topic] is not None or topic not in removable:
                near = meant(topic, cluster.listing().topics)
                raise typer.BadParameter(f"there is no topic {topic}{near}", param_hint="TOPIC...")
    return found


def _set_patterns(wanted: "Mapping[str, TopicSettings | None]", client: "KafkaClientConfig", *, json: bool) -> None:
    """Write these patterns' settings; None removes a pattern."""
    from metadata_topic.settings.settings_table import PATTERNS
    from metadata_topic.settings.settings_topic import SettingsWriter, read_known_settings
    from metadata_topic.settings.topic_settings import check_pattern

    _check_names(wanted, check_pattern)
    if missing := {pattern for pattern, settings in wanted.items() if settings is None}:
        known = read_known_settings(client).patterns
        for pattern in sorted(missing - known.keys()):
            raise typer.BadParameter(f"there is no pattern {pattern}{meant(pattern, known)}", param_hint="TOPIC...")
    with closing(SettingsWriter(client)) as writer:
        writer.put(PATTERNS, wanted)
    if json:
        tell_json({"patterns": [{"name": pattern, "is_set": one is not None} for pattern, one in wanted.items()]})
        return
    for pattern, settings in wanted.items():
        told = "removed" if settings is None else "for all such topics without own settings, within seconds"
        typer.echo(f"pattern {pattern}: {told}")
