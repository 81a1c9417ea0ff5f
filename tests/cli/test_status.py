"""`remote-wal status`: what it shows of a fleet, what it tells programs, and how it exits."""

import functools
import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent.http import fleet_pages as asking
from agent.http.fleet_pages import ask_agents
from agent.http.status import Status, summary
from agent.metrics.topic_metrics import TopicState
from agent.wiring.write_path import TopicWay
from cli.connection import Connection
from cli.main import build_app
from doctor import cluster_questions
from doctor.facts import Unknown
from kafka_cluster import preflight
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.preflight import ClusterUnreachableError
from kafka_cluster.responses import ClusterListing, DescribedBroker, DescribedPartition, DescribedTopic
from kafka_log.broker_files.server_properties import BrokerProperties, parse_broker_properties
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings import settings_topic
from metadata_topic.settings.settings_records import Balancer, Pause
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import AgentRegistration
from plugin.inline_reason import InlineReason
from plugin.wall_clock import wall_ms

PAUSE = Pause("anna@ops-1", 1_600_000_000_000)
KEYS = {
    "broker", "is_broker_alive", "agent", "zone", "version", "endpoint", "answer_s", "failure", "heard_by_others",
    "led_and_followed", "is_needed", "clients",
    "uptime_s", "not_ready", "degraded", "paused", "missing_offsets", "partitions", "lag_bytes", "lag_age_s",
    "linked_share", "inline_bytes", "held_inline", "topics_held_inline", "store", "shadow",
}  # fmt: skip


def agent(broker_id: int, **changes: Any) -> AgentRegistration:
    return AgentRegistration(broker_id, 1, f"kafka-{broker_id}:19095", "0.1", 0, **changes)


def page(broker_id: int, **changes: Any) -> dict[str, Any]:
    well: dict[str, Any] = {
        "zone": f"az{broker_id}",
        "is_store_there": True,
        "store_answered_s_ago": 0.5,
        "minute": {"linked": 900, "load": 100},
        "hour": {"linked": 500, "load": 400, "look": 100},
    }
    told: dict[str, Any] = json.loads(json.dumps(summary(Status(broker_id, **well | changes), "0.2")))
    return told


def shown(
    monkeypatch: pytest.MonkeyPatch,
    pages: Mapping[int, dict[str, Any] | OSError],
    *options: str,
    columns: int = 250,
    brokers: tuple[int, ...] = (1, 2, 3),
    pauses: Mapping[str, Pause] | None = None,
    balancer: Mapping[str, Balancer] | None = None,
    replaced: Mapping[str, Callable[..., object]] | None = None,
) -> Result:
    agents = {one: agent(one) for one in pages} | {9: agent(9, is_gone=True)}
    known = SettingsTable(agents=agents, pauses=pauses or {}, balancer=balancer or {})

    def answer(endpoint: str, *_: object) -> dict[str, Any]:
        told = pages[int(endpoint.removeprefix("kafka-").partition(":")[0])]
        if isinstance(told, OSError):
            raise told
        return told

    monkeypatch.setattr(settings_topic, "read_settings", lambda *_: known)
    monkeypatch.setattr(KafkaCluster, "brokers", lambda _self: [DescribedBroker(one, f"az{one}") for one in brokers])
    monkeypatch.setattr(
        KafkaCluster, "listing", lambda _self: ClusterListing("c", dict.fromkeys(brokers, "h"), {"t": TOPIC})
    )
    monkeypatch.setattr(asking, "ask_agent", answer)
    for name, function in (replaced or {}).items():
        monkeypatch.setattr(KafkaCluster if name == "brokers" else settings_topic, name, function)
    monkeypatch.setenv("COLUMNS", str(columns))
    return CliRunner().invoke(build_app(), ["status", "--bootstrap-server", "nowhere:1", *options])


TOPIC = DescribedTopic("t", 0, partitions=tuple(DescribedPartition(one, one, (1, 2, 3), ()) for one in (1, 2, 3)))
FROZEN = "it takes connections and answers nothing, so it is frozen, or busy"
OWN_HOST = " (only the agent's own host reaches it: remote.wal.agent.http.listener)"
WELL: dict[int, dict[str, Any] | OSError] = {one: page(one) for one in (1, 2, 3)}


def test_where_all_is_well_each_broker_has_a_row_and_the_exit_code_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown(monkeypatch, WELL)
    assert told.exit_code == 0, told.output
    row = next(line for line in told.stdout.splitlines() if line.strip().startswith("1 "))
    for part in ("az1", "ready", "0.2", "90.0 %", "50.0 %", "0 B", "answers, 500 ms ago"):
        assert part in row
    assert "broker 1 sent inline in the last hour: load 400 B, look 100 B\n" in told.stdout
    assert "unknown" not in told.stdout


def test_topics_that_go_inline_although_links_pay_are_told_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    held, small = (
        TopicWay(0.0, None, {}, reason, "links hold its producers back: use larger batches", "1.2 s here")
        for reason in (InlineReason.HELD_UP, InlineReason.LOAD)
    )
    names = [f"held{number}" for number in range(25)]
    ways = dict.fromkeys(names, held) | {"small": small}
    pages = WELL | {1: page(1, why=ways, topics={name: TopicState() for name in [*ways, "gone"]})}
    told = shown(monkeypatch, pages)
    assert told.exit_code == 0, told.output
    lines = [line for line in told.stdout.splitlines() if line.startswith("broker 1: ")]
    assert lines == [
        *(f"broker 1: {name}: links hold its producers back: use larger batches" for name in names[:3]),
        "broker 1: so do 22 more topics: remote-wal describe --why",
    ]
    assert "use larger batches; 1.2 s here\n" in shown(monkeypatch, pages, "--verbose").stdout
    document = json.loads(shown(monkeypatch, pages, "--json").stdout)
    assert len(document["brokers"][0]["held_inline"]) == 20


@pytest.mark.parametrize(("columns", "is_whole"), [(80, False), (150, True)])
def test_a_narrow_terminal_leaves_columns_out_and_cuts_none(
    monkeypatch: pytest.MonkeyPatch, columns: int, is_whole: bool
) -> None:
    pages = WELL | {2: OSError("refused")}
    told = shown(monkeypatch, pages, columns=columns).stdout.splitlines()
    assert max(map(len, told)) <= columns
    rows = [line for line in told if line.strip().startswith(("1 ", "2 ", "3 "))]
    assert [line.split()[0] for line in rows] == ["1", "2", "3"]
    assert "does not answer" in rows[1]
    head = next(line for line in told if "broker" in line and "agent" in line and "1 h" in line)
    assert ("release" in head) is is_whole


def test_how_far_loads_are_apart_is_shown_as_the_balancer_measured_it(monkeypatch: pytest.MonkeyPatch) -> None:
    balancer = {"cluster": Balancer("a", 1, (0.1, 0.25, 2), wall_ms() - 120_000)}
    assert "2 min ago: in 10 %, out 25 %, stored 200 %" in shown(monkeypatch, WELL, balancer=balancer).stdout
    told = json.loads(shown(monkeypatch, WELL, "--json", balancer=balancer).stdout)["balance"]
    assert (told["out"], told.keys()) == (0.25, {"in", "out", "stored", "measured_ms"})
    assert json.loads(shown(monkeypatch, WELL, "--json").stdout)["balance"] == {}


def test_programs_are_told_the_same_with_what_nobody_told_as_null(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"2": {"answered_s_ago": 4.0, "failure": "refused", "is_bypassed": True}}
    pages = WELL | {1: page(1) | {"peers": peers}, 2: OSError("refused")}
    told = shown(monkeypatch, pages, "--json", pauses={"all": PAUSE})
    document = json.loads(told.stdout)
    assert (told.exit_code, document["exit_code"], document["pauses"]) == (3, 3, [PAUSE.describe("all")])
    first, silent, _ = document["brokers"]
    assert first.keys() == silent.keys() == KEYS
    assert first["linked_share"] == {"minute": 0.9, "hour": 0.5}
    assert first["store"] == {"state": "answers", "failure": "", "answered_s_ago": 0.5}
    assert first["inline_bytes"] == {"load": 400, "look": 100}
    assert (silent["agent"], silent["zone"], silent["version"]) == ("silent", "az2", "0.1")
    assert (silent["failure"], silent["heard_by_others"]) == ("kafka-2:19095: refused", {"1": peers["2"]})
    assert {silent[key] for key in ("lag_bytes", "linked_share", "store", "paused")} == {None}


def test_a_dead_agent_is_told_with_how_long_it_took_and_what_is_not_known_as_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = shown(monkeypatch, WELL | {2: OSError("refused")}, columns=500).stdout.splitlines()
    row = next(line for line in told if line.strip().startswith("2 "))
    assert "does not answer" in row
    assert "no, after" in row
    assert row.count("unknown") == 5
    [line] = [line for line in told if line.startswith("broker 2: its agent does not answer, ")]
    assert "and no other agent heard it lately: kafka-2:19095: refused. If brokers still replicate through" in line
    assert "(--broker-config FILE tells), the 1 partitions that this broker leads" in line
    assert "leads replicate only if a bypass is set (remote.wal.agent.bypass). It gets nothing of the 2 that" in line


@pytest.mark.parametrize(
    ("seen", "consequence"),
    [
        ({1: (False, 9.0), 3: (False, 9.0)}, "leads do not replicate: no bypass is set (remote.wal.agent.bypass). It"),
        ({1: (True, 9.0), 3: (True, 9.0)}, "leads replicate past it, by a bypass, inline. It gets nothing of the 2"),
        ({1: (True, 9.0), 3: (False, 9.0)}, "leads replicate to broker 1 alone, by a bypass, inline. It gets"),
        ({1: (False, None), 3: (False, 0.5)}, "Other agents reach it, so its partitions replicate."),
    ],
)
def test_of_a_dead_agent_it_is_said_whether_its_broker_is_replicated_past_it(
    monkeypatch: pytest.MonkeyPatch, seen: Mapping[int, tuple[bool, float | None]], consequence: str
) -> None:
    def heard(has_bypass: bool, ago: float | None) -> dict[str, Any]:
        failure = None if ago == 0.5 else "refused"
        return {"2": {"answered_s_ago": ago, "failure": failure, "is_bypassed": False, "has_bypass": has_bypass}}

    worries = [f"the agent of broker {one} does not answer (never answered): refused" for one in (2, 4)]
    pages: dict[int, dict[str, Any] | OSError] = {
        one: page(one, degraded=worries) | {"peers": heard(*seen[one])} for one in (1, 3)
    }
    pages[2] = OSError("refused")
    told = shown(monkeypatch, pages).stdout.splitlines()
    [line] = [line for line in told if line.startswith("broker 2: its agent does not answer")]
    assert consequence in line
    others = [line for line in told if "the agent of broker" in line]
    assert others == [f"broker {one}: {worries[1]}" for one in (1, 3)], "its own line says it, once"


@pytest.mark.parametrize(
    ("ports", "consequence"),
    [
        ((9092, 9092), "refused. No living broker replicates through an agent, so none is needed"),
        ((9092, 19902), "refused. The 1 partitions that this broker leads replicate only if"),
        ((9092, None), "refused. If brokers still replicate through agents (--broker-config FILE tells), the 1 part"),
    ],
)
def test_with_a_brokers_file_it_is_known_whether_brokers_went_back_to_stock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ports: tuple[int | None, ...], consequence: str
) -> None:
    def tell(broker_id: int, port: int | None) -> BrokerProperties | Unknown:
        if port is None:
            return Unknown("timed out")
        listeners = {"listeners": "PLAINTEXT://:9092", "advertised.listeners": f"PLAINTEXT://kafka:{port}"}
        return parse_broker_properties({"node.id": str(broker_id), **listeners}, tmp_path)

    told = {one: tell(one, port) for one, port in enumerate(ports, 1)}
    monkeypatch.setattr(cluster_questions, "ask_properties", lambda *_: told)
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nlisteners=PLAINTEXT://:9092\nremote.wal.agent.replica.port.base=19900\n")
    pages = {one: OSError("refused") for one in (1, 2)}
    shown_of = shown(monkeypatch, pages, "--broker-config", str(file), columns=2000)
    [line] = [one for one in shown_of.stdout.splitlines() if one.startswith("broker 2: its agent does not answer")]
    assert consequence in line
    assert ("Start the agent" in line) == ("No living" not in consequence)


@pytest.mark.parametrize(
    ("speaks", "failure", "told"),
    [
        (
            None,
            ConnectionRefusedError(),
            "Clients do not reach this broker at {} (connection refused): no standby leads them on: start one "
            "(remote-wal gateway standby). Start the agent again\n",
        ),
        (True, ConnectionRefusedError(), "Clients are answered at {}. Start the agent again\n"),
        (
            False,
            TimeoutError(),
            "Clients wait in vain at {}: end what holds this port (kill -9); a standby, if one runs, leads them on "
            "until the agent is back. End it (kill -9) and start it again\n",
        ),
        (True, OSError("HTTP Error 401: Unauthorized"), "that it follows. Start the agent again, if it does not run\n"),
    ],
)
def test_of_an_agent_that_is_away_by_which_clients_come_it_is_said_whether_they_are_answered(
    monkeypatch: pytest.MonkeyPatch, speaks: bool | None, failure: OSError, told: str
) -> None:
    pages = WELL | {2: failure}
    if isinstance(failure, TimeoutError):
        monkeypatch.setattr(asking, "why_silent", lambda *_: f"kafka-2:19095: {FROZEN}")
    assert "Clients" not in shown(monkeypatch, pages).stdout, "they come by the broker itself"

    def answer() -> None:
        with clients, suppress(OSError):
            while True:
                connection, _ = clients.accept()
                with connection:
                    if connection.recv(1000):
                        connection.sendall(b"\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0")

    monkeypatch.setattr(preflight, "FROZEN_S", 60.0 if speaks else 0.1)
    with socket.create_server(("127.0.0.1", 0)) as clients:
        port = clients.getsockname()[1]
        if speaks is None:
            clients.close()
        if speaks:
            threading.Thread(target=answer, daemon=True).start()
        described = functools.partial(DescribedBroker, host="127.0.0.1", port=port)
        monkeypatch.setattr(f"{__name__}.DescribedBroker", described)
        monkeypatch.setattr(f"{__name__}.agent", functools.partial(agent, gateway=("durable",)))
        found = shown(monkeypatch, pages, columns=2000).stdout
    assert told.format(f"127.0.0.1:{port}") in found
    assert ("Clients" in told) == ("Clients" in found), "one that only may not be asked serves them"


@pytest.mark.parametrize(
    ("pages", "brokers", "told"),
    [
        ({1: page(1), 2: page(2)}, (1, 2, 3), "none registered"),
        (WELL, (1, 2), "broker 3: the broker is not in the cluster"),
        (WELL | {3: page(3, reasons=["leadership not known yet"])}, (1, 2, 3), "broker 3: leadership not known yet"),
        (WELL | {3: page(3, degraded=["soon"])}, (1, 2, 3), "broker 3: soon"),
        (WELL | {3: page(3, paused=["x"], degraded=["x"])}, (1, 2, 3), "ready, paused"),
        (WELL | {3: page(3, gaps=1234)}, (1, 2, 3), "broker 3: 1,234 offsets are in no object, and gone"),
        (WELL | {3: page(3, store_failed=(2.0, "timeout"))}, (1, 2, 3), "fails"),
    ],
)
def test_what_is_not_well_is_said_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, pages: dict[int, dict[str, Any] | OSError], brokers: tuple[int, ...], told: str
) -> None:
    found = shown(monkeypatch, pages, brokers=brokers)
    assert found.exit_code == 1, found.output
    assert told in found.stdout


def test_a_pause_is_told_once_and_one_by_a_file_by_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere, here = PAUSE.describe("all"), PAUSE.describe("local")
    pages = {one: page(one, paused=[everywhere], degraded=[everywhere]) for one in (1, 2)}
    pages[3] = page(3, paused=[everywhere, here], degraded=[everywhere, here])
    told = shown(monkeypatch, pages, pauses={"all": PAUSE}).stdout
    assert (told.count(everywhere), told.count(here), f"broker 3: {here}" in told) == (1, 1, True)


@pytest.mark.parametrize("is_leader_frozen", [False, True])
def test_where_an_agent_is_frozen_the_others_are_shown_if_settings_can_be_read_and_it_is_named_in_any_case(
    monkeypatch: pytest.MonkeyPatch, is_leader_frozen: bool
) -> None:
    def ask_any(_self: KafkaCluster) -> list[DescribedBroker]:
        raise KafkaClusterError("describe cluster", "kafka-1:9092", "RequestTimedOutError")

    def read(*_: object) -> SettingsTable:
        if is_leader_frozen:
            raise MetadataTopicError("read settings", "topic", "not read to its end")
        return SettingsTable(agents={one: agent(one) for one in (1, 2, 3)})

    monkeypatch.setattr(preflight, "find_frozen", lambda *_: ["kafka-2:9092"])
    found = shown(monkeypatch, WELL | {2: TimeoutError()}, replaced={"brokers": ask_any, "read_settings": read})
    if is_leader_frozen:
        assert isinstance(found.exception, ClusterUnreachableError)
        assert str(found.exception).startswith("ask kafka-2:9092: it takes connections and answers nothing")
        return
    assert found.exit_code == 3
    assert "kafka-2:9092: it takes clients' connections and answers nothing; end that process (kill -9)" in found.stdout
    told = shown(monkeypatch, WELL, "--json", replaced={"brokers": ask_any, "read_settings": read})
    assert json.loads(told.stdout)["frozen"] == ["kafka-2:9092"]
    assert [line.split()[0] for line in found.stdout.splitlines() if line.startswith("     ")][-3:] == ["1", "2", "3"]


def test_an_answer_of_another_agent_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown(monkeypatch, WELL | {2: page(1)})
    assert told.exit_code == 3
    assert "here, that is the agent of broker 1" in told.stdout


def test_a_frozen_address_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "reach", lambda *_: (("kafka-1", 9092), ("kafka-2", 9092)))
    monkeypatch.setattr(preflight, "find_frozen", lambda *_: ["kafka-2:9092"])
    client, _ = Connection("kafka-2:9092, kafka-1:9092").client_and_frozen()
    assert client.bootstrap_servers.strip() == "kafka-1:9092"
    client, _ = Connection("kafka-2:9092").client_and_frozen()
    assert client.bootstrap_servers == "kafka-2:9092", "there is no other"


@pytest.mark.parametrize("body", ["[]", "null", "1"])
def test_what_answers_by_another_page_is_no_agent(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr(asking, "ask_agent_page", lambda *_: body.encode())
    answer = ask_agents({1: AgentRegistration(1, 1, "kafka-1:1", "1", 0)}, None, "/status", timeout_s=60)[1]
    assert (answer.page, answer.failure) == (None, "kafka-1:1: what answers there is no agent")


def test_an_agent_that_drips_holds_nobody_up() -> None:
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while not ended.wait(0.02):  # never silent for as long as a socket waits
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        where = f"127.0.0.1:{server.getsockname()[1]}"
        registered = AgentRegistration(1, 1, where, "1", 0)
        answer = ask_agents({1: registered}, None, "/status", timeout_s=0.1)[1]
        ended.set()
        thread.join(60)
    assert (answer.page, answer.failure) == (None, f"{where}: {FROZEN}{OWN_HOST}")


@pytest.mark.parametrize("form", ["127.0.0.1:{port}", "https://localhost:{port}"])
def test_of_an_agent_that_answers_on_its_own_host_alone_the_key_is_named(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        where = form.format(port=held.getsockname()[1])
    answer = ask_agents({1: AgentRegistration(1, 1, where, "1", 0)}, None)[1]
    assert answer.failure.startswith(f"{where}: ")
    assert answer.failure.endswith(OWN_HOST)


def test_an_agent_in_shadow_is_told_as_such_and_nothing_is_wrong_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow = {"dollars": {"saved": 2.5}, "producers_slowed": "unknown: why"}
    told = shown(monkeypatch, WELL | {1: page(1, shadow=shadow, is_store_there=False)})
    assert told.exit_code == 0, told.output
    for text in ("ready, shadow", "broker 1 is in shadow", "$2.50 would be saved", "unknown: why", "not used"):
        assert text in told.stdout


def test_a_page_that_lacks_what_others_have_hides_no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown(monkeypatch, WELL | {2: {"broker_id": 2}})
    assert not isinstance(told.exception, KeyError), told.output
    assert ["not ready" in line for line in told.stdout.splitlines() if line.strip()[:2] in ("1 ", "2 ", "3 ")] == [
        False, True, False,
    ]  # fmt: skip
