"""`remote-wal describe`: each partition's upload offset, how its bytes travelled, and the objects that exist."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import FROZEN_TIMEOUT_S, Connection, Json, LoginFile, Verbose, http_settings, naming_frozen
from cli.exit_code import ExitCode
from cli.fleet.topics import orphaned_lines
from cli.option_groups import grouped
from cli.tables import fitted, show, tell_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from agent.settings.process_settings import HttpSettings
    from kafka_cluster.client_config import KafkaClientConfig
    from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings


_TIMEOUT_S = 10.0
_LESS_NEEDED = ("metadata pending", "age", "uploaded", "inline", "linked", "log end", "leader")
"""Columns that a narrow terminal does without, the first ones first."""


@grouped
def describe(
    connection: Connection,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    broker_config: LoginFile = None,
    objects: Annotated[
        bool, typer.Option("--objects", help="Show the combined segments by owner and state instead.")
    ] = False,
    why: Annotated[
        bool,
        typer.Option("--why", help="Show for each topic and leader what was linked of late, and how it travels now."),
    ] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Show for every led partition its log end offset, uploaded offset, lag, and linked and inline bytes; and gaps.

    Asks each agent that is registered, over HTTP. Exits with 3 if an agent does not answer, else with 1 if a broker
    does not answer its agent. With --objects one agent is asked, as each knows all objects; it exits with 3 if none
    answers. --verbose adds to --why what looks found, and what an object would carry.
    """
    from agent.http.fleet_pages import ask_agents
    from metadata_topic.settings.settings_topic import read_known_settings

    asking = http_settings(broker_config)
    client, frozen = connection.client_and_frozen()
    with naming_frozen(frozen):
        known = read_known_settings(client, FROZEN_TIMEOUT_S) if frozen else read_known_settings(client)
        if topic is not None:
            _check_topic(topic, [*known.topics, *known.orphaned], client)
    agents = {one: agent for one, agent in known.agents.items() if not agent.is_gone}
    orphaned = sorted(known.orphaned)
    if objects:
        _describe_objects({broker_id: agent.http_endpoint for broker_id, agent in agents.items()}, asking, json)
        return
    asked = ask_agents(agents, asking)
    answers = {one: answer.page for one, answer in asked.items() if answer.page is not None}
    silent = {one: answer.failure for one, answer in asked.items() if answer.page is None}
    for answer in answers.values():
        for of_topics in ("partitions", "gaps", "held"):
            answer[of_topics] = [one for one in answer.get(of_topics, ()) if topic is None or one["topic"] == topic]
    code = ExitCode.FINDINGS if any(_broker_away(answers)) else ExitCode.GOOD
    code = ExitCode.UNKNOWN if silent or not answers else code
    retention, origins = _retention(known.topics, agents), _origins(known.topics, topic)
    if json:
        told = {"wal_retention": retention, "orphaned_settings": orphaned, "topic_settings": origins}
        tell_json({"agents": list(answers.values()), "silent": silent, **told}, code)
    elif why:
        _print_why(answers, silent, topic, is_verbose=verbose)
    else:
        _print(answers, silent)
        _print_retention(retention)
        _print_origins(origins)
        show(*orphaned_lines(orphaned))
    if code:
        raise typer.Exit(code)


def _check_topic(topic: str, known: list[str], client: "KafkaClientConfig") -> None:
    """Raise BadParameter for a topic that is in no settings, and not in the cluster."""
    from kafka_cluster.cluster import KafkaCluster
    from plugin.errors import meant

    if topic not in known and topic not in (
        names := KafkaCluster(client, "remote-wal-describe", _TIMEOUT_S).listing().topics
    ):
        raise typer.BadParameter(f"there is no topic {topic}{meant(topic, names)}", param_hint="--topic")


def _retention(topics: "Mapping[str, TopicSettings]", agents: "Mapping[int, AgentRegistration]") -> dict[str, Any]:
    """Return how long objects are kept: the agents' defaults, and the topics' own settings."""
    return {
        "agents": {broker_id: {"ms": agent.wal_retention_ms} for broker_id, agent in sorted(agents.items())},
        "topics": {name: topic.wal_retention_ms for name, topic in sorted(topics.items()) if topic.enable},
    }


def _origins(topics: "Mapping[str, TopicSettings]", only: str | None) -> dict[str, dict[str, dict[str, str]]]:
    """Return for each topic and key the value, and where it comes from; keys without a value are left out."""
    from metadata_topic.settings.setting_keys import FIELDS, text_of
    from metadata_topic.settings.topic_settings import ENABLE_KEY, OWN, TopicSettings

    return {
        name: {
            key: {"value": value, "from": (settings.origin or OWN) if is_said else "default"}
            for key in FIELDS
            if (value := text_of(settings, key)) is not None
            for is_said in [key == ENABLE_KEY or value != text_of(TopicSettings(), key)]
        }
        for name, settings in sorted(topics.items())
        if only in (None, name)
    }


def _print_origins(origins: dict[str, dict[str, dict[str, str]]]) -> None:
    from rich.text import Text

    for name, keys in origins.items():
        told = (f"{key}={one['value']} ({one['from']})" for key, one in keys.items() if one["from"] != "default")
        show(Text(f"{name}: {', '.join(told)}"))


def _print_retention(retention: dict[str, Any]) -> None:
    """Print agents with equal settings in one line."""
    alike: dict[int | None, list[int]] = {}
    for broker_id, kept in retention["agents"].items():
        alike.setdefault(kept["ms"], []).append(broker_id)
    for kept_ms, broker_ids in alike.items():
        show(f"Agents {', '.join(map(str, broker_ids))} keep objects for {_kept(kept_ms)}.")
    for name, kept_ms in retention["topics"].items():
        if kept_ms is not None:
            show(f"Of {name}, for {_kept(kept_ms)}.")


def _kept(kept_ms: int | None) -> str:
    from agent.http.status_page import duration

    return "the local retention" if kept_ms is None or kept_ms < 0 else duration(kept_ms / 1000)


def _describe_objects(endpoints: Mapping[int, str], asking: "HttpSettings | None", json: bool) -> None:
    from agent.http.fleet_pages import ask_agent
    from agent.http.http_asking import why_silent

    silent: dict[int, str] = {}
    for broker_id, endpoint in sorted(endpoints.items()):
        try:
            answer = ask_agent(endpoint, asking, "/objects")
        except (OSError, ValueError) as error:
            silent[broker_id] = why_silent(endpoint, error)
            continue
        (tell_json if json else _print_objects)(answer)
        return
    found = "no agent told of its objects"
    if json:
        tell_json({"error": found, "silent": silent}, ExitCode.UNKNOWN)
    typer.echo(f"remote-wal: {found}", err=True)
    for broker_id, reason in silent.items():
        typer.echo(f"agent {broker_id}: {reason}", err=True)
    raise typer.Exit(ExitCode.UNKNOWN)


def _print(answers: dict[int, dict[str, Any]], silent: dict[int, str]) -> None:
    from rich.text import Text

    show(*_without_rows(answers, silent), _partitions(answers), _agents(answers))
    for broker_id, answer in answers.items():
        if "storage_ready" not in answer:
            show(f"agent {broker_id} is not relaying yet")
        if reason := answer.get("metadata_stalled"):
            show(Text(f"agent {broker_id} publishes no metadata, so all goes inline: {reason}", style="red"))
        show(*map(Text, _told(broker_id, answer)))
    show(*map(Text, _packed(answers)), *map(Text, _gaps(answers)))
    _print_held(answers)


def _without_rows(answers: dict[int, dict[str, Any]], silent: dict[int, str]) -> "Iterator[Text]":
    """Yield which brokers have no rows. It is told first: what is shown says nothing of them."""
    from rich.text import Text

    for one, reason in silent.items():
        lacks = "what it leads is not shown here, and may not replicate: remote-wal status"
        yield Text(f"broker {one}: its agent does not answer ({reason}): {lacks}", style="red")
    for text in _broker_away(answers):
        yield Text(text, style="red")


def _broker_away(answers: dict[int, dict[str, Any]]) -> list[str]:
    """Return what agents say of brokers that do not answer: these lead nothing, so they have no rows."""
    return [text for answer in answers.values() if (text := answer.get("broker_away"))]


_MOST_PACKED = 10


def _packed(answers: dict[int, dict[str, Any]]) -> Iterator[str]:
    for broker_id, answer in answers.items():
        topics = {name: one for name, one in answer.get("packed", {}).items() if one["ratio"] > 1}
        told = [f"{name} {one['ratio']:.1f} times" for name, one in list(topics.items())[:_MOST_PACKED]]
        more = f", and {len(topics) - _MOST_PACKED:,} more" if len(topics) > _MOST_PACKED else ""
        if told:
            yield f"Packed by agent {broker_id}: {', '.join(told)}{more}."


def _print_why(
    answers: dict[int, dict[str, Any]], silent: dict[int, str], topic: str | None, *, is_verbose: bool
) -> None:
    from rich.text import Text

    rows = [
        (
            name,
            broker_id,
            *("none" if why[one] is None else f"{100 * why[one]:.1f} %" for one in ("minute", "hour")),
            f"{why['plain']}; {why['numbers']}" if is_verbose else why["plain"],
        )
        for broker_id, answer in answers.items()
        for name, why in answer.get("why", {}).items()
        if topic is None or name == topic
    ]
    rows.sort()
    alike: dict[tuple[str, str], list[str]] = {}
    for name, leader, _, _, told in rows:
        alike.setdefault((name, told), []).append(str(leader))
    columns = ("topic", ">leader", ">last minute", ">last hour")
    show(
        *_without_rows(answers, silent),
        fitted(*columns, rows=[row[:-1] for row in rows], drop=(), title="Linked shares"),
        *(Text(f"{name}, led by broker {', '.join(leaders)}: {told}") for (name, told), leaders in alike.items()),
        *["More on this: docs/operations.md, Why bytes go inline"][: len(alike)],
        *(["No agent that answers leads an enabled topic: remote-wal topics enable TOPIC"] if not rows else []),
        *(line for broker_id, answer in answers.items() if answer.get("shadow") for line in _told(broker_id, answer)),
    )


def _partitions(answers: dict[int, dict[str, Any]]) -> "Table":
    from rich.filesize import decimal

    led = [(partition, broker_id) for broker_id, answer in answers.items() for partition in answer["partitions"]]
    rows = [
        (
            partition["topic"],
            partition["partition"],
            broker_id,
            *(partition[key] for key in ("log_end_offset", "uploaded_offset")),
            decimal(partition["lag_bytes"]),
            _seconds(partition["lag_age_ms"]),
            *(decimal(partition[key]) for key in ("linked_bytes", "inline_bytes")),
        )
        for partition, broker_id in sorted(led, key=lambda row: (row[0]["topic"], row[0]["partition"]))
    ]
    return fitted(
        "topic", ">part", ">leader", ">log end", ">uploaded", ">lag", ">age", ">linked", ">inline",
        rows=rows, drop=_LESS_NEEDED, title="Partitions that replicate through object storage",
    )  # fmt: skip


def _agents(answers: dict[int, dict[str, Any]]) -> "Table":
    rows = [
        (
            broker_id,
            _store(answer),
            _hydration(answer),
            *(f"{answer['requests'][key]:,}" for key in ("put", "get")),
            f"{answer['metadata_pending']:,}",
        )
        for broker_id, answer in answers.items()
        if "storage_ready" in answer  # while it waits for formatted log directories it answers without figures
    ]
    columns = ("agent", "store", "hydration", ">PUT", ">GET", ">metadata pending")
    return fitted(*columns, rows=rows, drop=_LESS_NEEDED, title="Agents")


def _told(broker_id: int, answer: dict[str, Any]) -> Iterator[str]:
    """Yield an agent's messages besides its figures."""
    from agent.http.status_page import shadow_text
    from metadata_topic.settings.settings_records import Pause

    if answer.get("shadow"):
        yield f"Agent {broker_id} is {shadow_text(answer['shadow'])}."
    for paused in answer.get("paused", []):
        pause = Pause(paused["by"], paused["since_ms"], paused["reason"])
        yield f"Agent {broker_id}: {pause.describe(paused['scope'])}."
    for dead in answer.get("bypassed_agents", []):
        yield f"Agent {broker_id} bypasses the dead agent of broker {dead}."
    for other in answer.get("agents_of_another_version", []):
        yield f"Agent {broker_id} has another protocol version than the agent of broker {other}: all goes inline."
    if answer.get("links_never_pay"):
        yield f"Agent {broker_id}: links never pay, so all but the policy always goes inline."


def _gaps(answers: dict[int, dict[str, Any]]) -> Iterator[str]:
    for broker_id, gap in ((broker_id, gap) for broker_id, answer in answers.items() for gap in answer.get("gaps", ())):
        yield (
            f"{gap['topic']}-{gap['partition']}: offsets {gap['from_offset']} to {gap['to_offset'] - 1} are in no "
            f"object, and gone: {gap['reason']}, as the agent of broker {broker_id} knows"
        )


def _print_held(answers: dict[int, dict[str, Any]]) -> None:
    """Print what the log lost, by commands that can be copied whole."""
    for held in (held for answer in answers.values() for held in answer.get("held", ())):
        typer.echo(
            f"{held['topic']}-{held['partition']}: the log lost offsets {held['from_offset']} to "
            f"{held['to_offset'] - 1}, and object storage holds them. To append them again:\n  {held['restore']}\n"
            f"To give them up:\n  {held['give_up']}\nBoth with --broker-config FILE"
        )


def _store(answer: dict[str, Any]) -> str:
    if answer.get("shadow"):
        return "not used"
    return "ready" if answer["storage_ready"] else "does not answer"


def _hydration(answer: dict[str, Any]) -> str:
    if answer.get("shadow"):
        return "off, in shadow"
    if answer["hydration_paused"]:
        return "paused" if "" in answer.get("buckets_given_up", [""]) else "in part"
    return "WAL only" if answer.get("archive_reads_paused") else "on"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms // 1000:,} s"


def _print_objects(answer: dict[str, Any]) -> None:
    from rich.filesize import decimal

    rows = [
        (
            row["broker_id"],
            row["caretaker_broker_id"],
            row["state"],
            f"{row['segments']:,}",
            decimal(row["bytes"]),
            *(f"{row[key] // 1000:,} s" for key in ("oldest_age_ms", "newest_age_ms")),
        )
        for row in answer["objects"]
    ]
    columns = (">owner", ">cared by", "state", ">segments", ">bytes", ">oldest", ">newest")
    made = fitted(*columns, rows=rows, drop=("newest", "segments", "cared by"), title="Combined segments")
    totals = (f"{one['state']}: {one['segments']:,} segments, {decimal(one['bytes'])}" for one in answer["totals"])
    show(made, *totals)
