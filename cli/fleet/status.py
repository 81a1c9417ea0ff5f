"""`remote-wal status`: the whole fleet on one screen."""

import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import (
    END_FROZEN,
    FROZEN_TIMEOUT_S,
    Connection,
    Json,
    LoginFile,
    Verbose,
    http_settings,
    naming_frozen,
)
from cli.exit_code import ExitCode
from cli.option_groups import grouped
from cli.tables import fitted, show, tell_json

if TYPE_CHECKING:
    from rich.text import Text

    from agent.http.fleet_pages import AgentPage
    from kafka_cluster.client_config import KafkaClientConfig
    from kafka_cluster.responses import ClusterListing, DescribedBroker
    from metadata_topic.settings.settings_table import SettingsTable
    from metadata_topic.settings.topic_settings import AgentRegistration

_KAFKA_TIMEOUT_S = 10.0
_ANSWER_KEYS = (
    "uptime_s", "not_ready", "degraded", "paused", "missing_offsets", "partitions", "lag_bytes", "lag_age_s",
    "linked_share", "inline_bytes", "held_inline", "topics_held_inline", "store", "shadow",
)  # fmt: skip
_MOST_REASONS = _MOST_TOPICS = 3
_DIAL_S = 3.0
_AWAY_S = 10.0
"""An agent that answered others longer ago is away for them, too."""
_BYPASS_KEY = "remote.wal.agent.bypass"
_LESS_NEEDED = ("release", "answered", "oldest", "1 min linked", "zone", "store")
"""Columns that a narrow terminal does without, the first ones first."""


@grouped
def status(
    connection: Connection,
    broker_config: LoginFile = None,
    timeout: Annotated[float, typer.Option(help="How many seconds each agent has to answer.", min=0.1)] = 3.0,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Show every broker and its agent: zone, release, linked share, lag, store, pauses, and why bytes go inline.

    All agents are asked at once. Exits with 3 if one does not answer, else with 1 if something is not well, else 0.
    """
    from agent.http.fleet_pages import ask_agents
    from agent.http.status_page import duration
    from kafka_cluster.cluster import KafkaCluster
    from kafka_cluster.responses import DescribedBroker
    from metadata_topic.settings.settings_topic import read_settings
    from plugin.wall_clock import wall_ms

    asking, (client, frozen) = http_settings(broker_config), connection.client_and_frozen()
    cluster = KafkaCluster(client, "remote-wal-status", _KAFKA_TIMEOUT_S)
    with naming_frozen(frozen):
        if frozen:  # librdkafka asks none that does not answer, and tells no racks
            known = read_settings(client, FROZEN_TIMEOUT_S)
            brokers = [DescribedBroker(one, None) for one in cluster.listing().brokers]
        else:
            known, brokers = read_settings(client), cluster.brokers()
    registered = {one: agent for one, agent in known.agents.items() if not agent.is_gone}
    rows = fleet(known, {one.broker_id: one for one in brokers}, ask_agents(registered, asking, "/status", timeout))
    if any(row["agent"] == "silent" for row in rows):
        _add_replicas(rows, cluster.listing())
        _add_clients(rows, registered, {one.broker_id: one for one in brokers}, client)
        is_needed = None if frozen else _is_needed(broker_config, [one.broker_id for one in brokers], client)
        for row in rows:
            row["is_needed"] = is_needed
    code = exit_code(rows)
    if json:
        tell_json({"brokers": rows, "pauses": _pauses(known), "balance": _balance(known), "frozen": frozen}, code)
    else:
        _print(rows, _pauses(known), is_verbose=verbose)
        if frozen:
            show(f"{', '.join(frozen)}: it takes clients' connections and answers nothing; {END_FROZEN}")
        if balance := _balance(known):
            ago = duration(wall_ms() / 1000 - balance.pop("measured_ms") / 1000)
            told = ", ".join(f"{part} {100 * value:.0f} %" for part, value in balance.items())
            show(f"The fullest and the emptiest broker were apart by so much of the mean, {ago} ago: {told}")
    raise typer.Exit(code)


def fleet(
    known: "SettingsTable", brokers: "Mapping[int, DescribedBroker]", answers: "Mapping[int, AgentPage]"
) -> list[dict[str, Any]]:
    """Return a row for each broker that lives or has an agent. A value that no agent reported is None."""
    return [
        {
            "broker": one,
            "is_broker_alive": one in brokers,
            "agent": _state(answers.get(one)),
            "zone": (page.get("zone") if (page := _page(answers.get(one))) else None)
            or (brokers[one].rack if one in brokers else None),
            "version": page.get("version") or (known.agents[one].version if one in answers else None),
            "endpoint": known.agents[one].http_endpoint if one in answers else None,
            "answer_s": answers[one].took_s if one in answers else None,
            "failure": answers[one].failure or None if one in answers else None,
            "heard_by_others": _heard(one, answers),
            "led_and_followed": None,
            "is_needed": None,
            "clients": None,
            **{key: page.get(key) for key in _ANSWER_KEYS},
        }
        for one in sorted(brokers.keys() | answers.keys())
    ]


def _page(answer: "AgentPage | None") -> dict[str, Any]:
    return answer.page or {} if answer is not None else {}


def _state(answer: "AgentPage | None") -> str:
    if answer is None:
        return "none"
    if answer.page is None:
        return "silent"
    return "not ready" if answer.page.get("not_ready", True) else "ready"


def _heard(broker_id: int, answers: "Mapping[int, AgentPage]") -> dict[str, Any]:
    """Return what other agents know of this one: by asker, seconds since its last answer, and why it fails."""
    told = {asker: _page(answer).get("peers", {}).get(str(broker_id)) for asker, answer in answers.items()}
    return {str(asker): heard for asker, heard in told.items() if heard}


def _add_replicas(rows: list[dict[str, Any]], listing: "ClusterListing") -> None:
    """Say how many partitions each broker whose agent is silent leads and follows."""
    partitions = [one for topic in listing.topics.values() for one in topic.partitions]
    for row in rows:
        if row["agent"] == "silent":
            led = sum(one.leader_id == row["broker"] for one in partitions)
            row["led_and_followed"] = [led, sum(row["broker"] in one.replicas for one in partitions) - led]


def _is_needed(broker_config: Path | None, broker_ids: Iterable[int], client: "KafkaClientConfig") -> bool | None:
    """Return whether a living broker replicates through an agent; None: there is no file that has the agents' ports, or
    a broker does not tell its settings."""
    from agent.settings_file import read_settings_file
    from doctor.before_restart import uses_agent
    from doctor.cluster_questions import ask_properties
    from doctor.facts import Unknown

    if broker_config is None:
        return None
    port_base = read_settings_file(broker_config)[1].peers.replica_port_base
    told = ask_properties(client, broker_ids, _DIAL_S).items()
    uses = {None if isinstance(broker, Unknown) else uses_agent(broker, one, port_base) for one, broker in told}
    return True if True in uses else None if None in uses else False


def _add_clients(
    rows: list[dict[str, Any]],
    registered: "Mapping[int, AgentRegistration]",
    brokers: "Mapping[int, DescribedBroker]",
    client: "KafkaClientConfig",
) -> None:
    """Say of each broker whose agent is away whether clients, if they come by the agent, get through where this command
    is led."""
    from agent.http.http_asking import is_away
    from kafka_cluster.preflight import find_frozen
    from metadata_topic.settings.topic_settings import GatewayPart
    from plugin.errors import in_words

    for row in rows:
        broker = brokers.get(row["broker"])
        if broker is None or broker.port < 0 or not is_away(row["failure"] or ""):  # a listing tells no ports
            continue
        if GatewayPart.DURABLE not in registered[row["broker"]].gateway:
            continue
        at = f"{broker.host}:{broker.port}"
        try:
            socket.create_connection((broker.host, broker.port), _DIAL_S).close()
        except OSError as error:
            why = in_words(error).lower()
            lead = "no standby leads them on: start one (remote-wal gateway standby)"
            row["clients"] = f"Clients do not reach this broker at {at} ({why}): {lead}"
            continue
        row["clients"] = (
            f"Clients wait in vain at {at}: end what holds this port (kill -9); a standby, if one runs, leads them on "
            "until the agent is back"
            if find_frozen([(broker.host, broker.port)], client)
            else f"Clients are answered at {at}"
        )


def exit_code(rows: list[dict[str, Any]]) -> ExitCode:
    if any(row["agent"] == "silent" for row in rows):
        return ExitCode.UNKNOWN
    return ExitCode.FINDINGS if any(_is_bad(row) for row in rows) or not rows else ExitCode.GOOD


def _is_bad(row: Mapping[str, Any]) -> bool:
    store = row["store"] or {}
    has_failed = store.get("state") in ("fails", "does not answer")
    worries = row["not_ready"] or row["degraded"] or row["missing_offsets"] or has_failed
    return bool(worries) or row["agent"] != "ready" or not row["is_broker_alive"]


def _pauses(known: "SettingsTable") -> list[str]:
    return [pause.describe(scope) for scope, pause in sorted(known.pauses.items())]


def _balance(known: "SettingsTable") -> dict[str, float]:
    """Return how far brokers' loads are apart, and when that was measured; nothing if nobody did."""
    from metadata_topic.settings.settings_table import CLUSTER

    balancer = known.balancer.get(CLUSTER)
    if balancer is None or not balancer.apart_in:
        return {}
    return {**balancer.apart_in, "measured_ms": balancer.measured_ms}


def _print(rows: list[dict[str, Any]], pauses: list[str], *, is_verbose: bool) -> None:
    from rich.text import Text

    from agent.http.status_page import shadow_text

    columns = (
        ">broker", "zone", "agent", "answered", "release", ">1 min linked", ">1 h linked", ">not stored", ">oldest",
        "store",
    )  # fmt: skip
    show(fitted(*columns, rows=[_cells(row) for row in rows], drop=_LESS_NEEDED, title="Brokers and their agents"))
    # Its own line has what follows.
    told = (
        *pauses,
        *(f"the agent of broker {row['broker']} does not answer" for row in rows if row["agent"] == "silent"),
    )
    for row in rows:
        if inline := _why_inline(row):
            show(Text(f"broker {row['broker']} sent inline in the last hour: {inline}"))
        for text in _held_inline(row, is_verbose=is_verbose):
            show(Text(f"broker {row['broker']}: {text}"))
        if row["shadow"]:
            show(Text(f"broker {row['broker']} is {shadow_text(row['shadow'])}"))
        for text in _told(row, told):
            show(Text(f"broker {row['broker']}: {text}", style="red" if row["agent"] == "silent" else "yellow"))
    show(*(Text(pause, style="yellow") for pause in pauses))


def _cells(row: Mapping[str, Any]) -> "list[Text]":
    from rich.text import Text

    from agent.http.status_page import duration, size

    def known(value: Any, text: Any) -> str:
        return "unknown" if value is None else text(value)

    share, store = row["linked_share"] or {}, row["store"] or {}
    has_answer = row["linked_share"] is not None
    told = [f"{100 * one:.1f} %" if (one := share.get(span)) is not None else "none" for span in ("minute", "hour")]
    seen = f", {duration(ago)} ago" if (ago := store.get("answered_s_ago")) is not None else ""
    cells = (
        str(row["broker"]),
        row["zone"] or "unknown",
        _agent_text(row),
        known(row["answer_s"], lambda s: f"{'no, after' if row['failure'] else 'in'} {duration(s)}"),
        row["version"] or "unknown",
        *(told if has_answer else ("unknown", "unknown")),
        known(row["lag_bytes"], size),
        known(row["lag_age_s"], duration),
        f"{store['state']}{seen}" if store else "unknown",
    )
    style = {"silent": "red", "none": "yellow"}.get(row["agent"], "yellow" if _is_bad(row) else "")
    return [Text(cell, style=style) for cell in cells]


def _why_inline(row: Mapping[str, Any]) -> str:
    from agent.http.status_page import size

    reasons = sorted((row["inline_bytes"] or {}).items(), key=lambda one: -one[1])
    return ", ".join(f"{reason} {size(moved)}" for reason, moved in reasons[:_MOST_REASONS])


def _held_inline(row: Mapping[str, Any], *, is_verbose: bool) -> Iterator[str]:
    """Yield which topics go inline though links pay, and why."""
    shown = list((row["held_inline"] or {}).items())[:_MOST_TOPICS]
    for topic, why in shown:
        yield f"{topic}: {why['plain']}{'; ' + why['numbers'] if is_verbose else ''}"
    if more := (row["topics_held_inline"] or 0) - len(shown):
        yield f"so do {more:,} more topics: remote-wal describe --why"


def _agent_text(row: Mapping[str, Any]) -> str:
    text = {"none": "none registered", "silent": "does not answer"}.get(row["agent"], row["agent"])
    return f"{text}{', shadow' if row['shadow'] else ''}{', paused' if row['paused'] else ''}"


def _consequence(row: Mapping[str, Any], led: int, followed: int) -> str:
    """Return what of the broker does not replicate while its agent is silent, as other agents know it."""
    heard = row["heard_by_others"]
    if row["is_needed"] is False:
        return "No living broker replicates through an agent, so none is needed"
    if any(one["failure"] is None and (one["answered_s_ago"] or _AWAY_S) < _AWAY_S for one in heard.values()):
        return "Other agents reach it, so its partitions replicate"
    bypassing = [one for one, told in heard.items() if told.get("has_bypass")]
    if not heard or any("has_bypass" not in told for told in heard.values()):
        goes = f"replicate only if a bypass is set ({_BYPASS_KEY})"
    elif not bypassing:
        goes = f"do not replicate: no bypass is set ({_BYPASS_KEY})"
    else:
        to = "past it" if len(bypassing) == len(heard) else f"to broker {', '.join(bypassing)} alone"
        goes = f"replicate {to}, by a bypass, inline"
    doubt = "If brokers still replicate through agents (--broker-config FILE tells), the"
    the = "The" if heard or row["is_needed"] else doubt
    away = f"It gets nothing of the {followed:,} that it follows"
    return f"{the} {led:,} partitions that this broker leads {goes}. {away}"


def _remedy(row: Mapping[str, Any]) -> str:
    from agent.http.http_asking import is_away, is_frozen

    if row["is_needed"] is False:
        return ""
    if is_frozen(row["failure"]):
        return "End it (kill -9) and start it again"
    return f"Start the agent again{'' if is_away(row['failure']) else ', if it does not run'}"


def _told(row: Mapping[str, Any], told: tuple[str, ...]) -> Iterator[str]:
    """Yield what is not well with a broker, but for texts that begin as those which are told elsewhere."""
    from agent.http.status_page import duration

    if not row["is_broker_alive"]:
        yield "the broker is not in the cluster (docs/broker-died.md)"
    if row["failure"]:
        heard = [one["answered_s_ago"] for one in row["heard_by_others"].values() if one["answered_s_ago"] is not None]
        since = f"for {duration(min(heard))}, as other agents saw it" if heard else "and no other agent heard it lately"
        led, followed = row["led_and_followed"]
        silence = f"its agent does not answer, {since}: {row['failure']}"
        yield ". ".join(filter(None, (silence, _consequence(row, led, followed), row["clients"], _remedy(row))))
    if row["missing_offsets"]:
        yield f"{row['missing_offsets']:,} offsets are in no object, and gone"
    yield from row["not_ready"] or ()
    yield from (text for text in row["degraded"] or () if not text.startswith(told))
