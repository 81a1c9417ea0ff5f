"""`remote-wal topics`: which topics replicate through object storage."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.connection import Connection, Json
from cli.option_groups import grouped
from cli.tables import show, table, tell_json

if TYPE_CHECKING:
    from metadata_topic.settings.topic_settings import TopicSettings
    from metadata_topic.topic.client_config import KafkaClientConfig

app = typer.Typer(help="Set and list the topics with remote.wal.storage.enable.", no_args_is_help=True)

Topics = Annotated[list[str], typer.Argument(help="Names of topics.", metavar="TOPIC...")]


@app.command()
@grouped
def enable(
    topics: Topics,
    connection: Connection,
    link_policy: Annotated[str, typer.Option(help="remote.wal.link.policy: cost, always or latency.")] = "cost",
    latency_bound_ms: Annotated[
        int | None, typer.Option(help="remote.wal.link.latency.bound.ms, for the policy latency.", min=1)
    ] = None,
    archive: Annotated[
        bool, typer.Option("--archive/--no-archive", help="remote.wal.archive.enable: keep the log in the archive.")
    ] = False,
) -> None:
    """Replicate these topics through object storage from now on. Takes effect in running agents within seconds."""
    from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings

    if link_policy not in list(LinkPolicy):
        raise typer.BadParameter(f"{link_policy!r} is none of {', '.join(LinkPolicy)}", param_hint="--link-policy")
    settings = TopicSettings(
        enable=True,
        link_policy=LinkPolicy(link_policy),
        link_latency_bound_ms=latency_bound_ms,
        archive=archive,
    )
    _set(topics, connection.client_config(), settings)


@app.command()
@grouped
def disable(topics: Topics, connection: Connection) -> None:
    """Replicate these topics as stock Kafka does. Objects that are stored stay."""
    _set(topics, connection.client_config(), None)


@app.command("list")
@grouped
def list_topics(connection: Connection, json: Json = False) -> None:
    """Show the topics with remote.wal.storage.enable, and how they link."""
    from metadata_topic.settings.settings_topic import read_settings

    topics, _ = read_settings(connection.client_config())
    rows = [
        {
            "topic": name,
            "remote.wal.storage.enable": settings.enable,
            "remote.wal.link.policy": str(settings.link_policy),
            "remote.wal.link.latency.bound.ms": settings.link_latency_bound_ms,
            "remote.wal.archive.enable": settings.archive,
        }
        for name, settings in sorted(topics.items())
    ]
    if json:
        tell_json(rows)
        return
    shown = [
        (
            row["topic"],
            str(row["remote.wal.storage.enable"]).lower(),
            row["remote.wal.link.policy"],
            "" if (bound := row["remote.wal.link.latency.bound.ms"]) is None else f"{bound} ms",
            str(row["remote.wal.archive.enable"]).lower(),
        )
        for row in rows
    ]
    show(table("topic", "remote.wal.storage.enable", "link policy", "latency bound", "archive", rows=shown))


def _set(topics: list[str], client: "KafkaClientConfig", settings: "TopicSettings | None") -> None:
    from metadata_topic.records.errors import TopicSettingsError
    from metadata_topic.settings.settings_topic import SettingsWriter
    from metadata_topic.settings.topic_settings import check_topic
    from metadata_topic.topic.topic import confluent_admin

    existing = confluent_admin(client, timeout_s=10.0).partition_counts()
    for topic in topics:
        check_topic(topic)
        if settings is not None and topic not in existing:
            raise TopicSettingsError("enable", topic, "there is no such topic", "make it first, with kafka-topics.sh")
    writer = SettingsWriter(client)
    try:
        for topic in topics:
            if settings is not None:
                writer.set_topic(topic, settings)
            else:
                writer.clear_topic(topic)
            typer.echo(f"{topic}: remote.wal.storage.enable={'true' if settings is not None else 'false'}")
    finally:
        writer.close()
