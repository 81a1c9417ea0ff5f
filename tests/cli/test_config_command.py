"""`remote-wal config`: what an agent would say to a file, and what to put into it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.settings.kafka_client import client_config
from agent.settings.process_settings import ClientSettings
from cli.exit_code import ExitCode
from cli.fleet.config import app
from gateway.planning.plan import plan
from gateway.planning.planned_ports import BrokerSite
from kafka_log.broker_files.server_properties import load_broker_properties

BROKER = """node.id=3
process.roles=broker
log.dirs=/data
broker.rack=use1-az4
listeners=CLIENT://0.0.0.0:9092,WAL://127.0.0.1:19903
advertised.listeners=CLIENT://kafka-3.example.com:9092,WAL://127.0.0.1:19903
listener.security.protocol.map=CLIENT:PLAINTEXT,WAL:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=WAL
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=kafka-0:9093
"""
WAL = {
    "listeners": "WAL://127.0.0.1:19903",
    "advertised.listeners": "WAL://127.0.0.1:19903",
    "listener.security.protocol.map": "WAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
}
BROKER_WITHOUT_LISTENERS = {
    key: value for key, _, value in (line.partition("=") for line in BROKER.splitlines()) if key not in WAL
}
AGENT = {
    "remote.wal.agent.peers": "3@127.0.0.1:19090,1@10.0.1.11:19090",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "server.properties"
    file.write_text(BROKER)
    return file


def run(*words: object) -> tuple[int, str, str]:
    told = CliRunner().invoke(app, [str(word) for word in words])
    return told.exit_code, told.stdout, told.stderr


def lines_of(text: str) -> set[str]:
    return set(text.splitlines())


def test_a_wrong_value_is_told_in_our_words_alone(file: Path) -> None:
    file.write_text(BROKER + "remote.wal.agent.peers=<the others alike>\n")
    _, out, err = run("check", "--broker-config", file)
    told = " ".join((out + err).split())
    assert "remote.wal.agent.peers: '<the others alike>' is" in told
    assert "Value error" not in told


def test_with_the_proposed_lines_an_agent_can_start_once_they_are_filled_in(file: Path) -> None:
    code, lines, _ = run("init", "--broker-config", file)
    assert code == ExitCode.GOOD
    assert "<a directory bucket in use1-az4>" in lines
    filled = lines.replace("<this host's address>", "10.0.1.13").replace(",<the others alike>", ",1@10.0.1.11:19090")
    file.write_text(BROKER + filled.replace("<a directory bucket in use1-az4>", "wal--use1-az4--x-s3"))
    for name in ("certificate", "key", "ca"):
        file.with_name(f"remote-wal-{name}.pem").touch()
    code, shown, told = run("check", "--json", "--broker-config", file)
    assert (code, told) == (ExitCode.GOOD, "")
    settings = json.loads(shown)
    assert settings["settings"]["remote.wal.agent.peers"] == "3@10.0.1.13:19090,1@10.0.1.11:19090"
    assert set(settings["set"]) == {line.partition("=")[0] for line in lines.splitlines()}
    shown = run("check", "--broker-config", file)[1]
    assert shown.splitlines()[:-1] == sorted(lines_of(shown) & lines_of(file.read_text())), "people see its lines"
    assert run("init", "--broker-config", file) == (ExitCode.GOOD, "", ""), "what is there is not proposed"


def test_every_wrong_key_is_named(file: Path) -> None:
    file.write_text(BROKER + "remote.wal.agent.peer.listner=x\nremote.wal.hydration.timeout.ms=many\n")
    code, shown, told = run("check", "--json", "--broker-config", file)
    assert code == json.loads(shown)["exit_code"] == ExitCode.FINDINGS
    for text in (str(file), "remote.wal.agent.peer.listener meant?", "remote.wal.hydration.timeout.ms"):
        assert text in told


STORE = {
    "remote.log.wal.storage.system.enable": "true",
    "remote.log.wal.storage.manager.class.name": "plugin.s3.S3WalStorageManager",
    "rsm.wal.config.bucket": "a-bucket",
    "remote.wal.agent.bootstrap.servers": "kafka-1:9092",
}
ONLY_CLIENTS_LISTENER: dict[str, str | None] = {
    "listeners": "PLAINTEXT://:9092",
    "advertised.listeners": None,
    "inter.broker.listener.name": None,
    "listener.security.protocol.map": None,
}
FOUND_IN_FILE = [
    ({"rsm.wal.config.bucket": None}, "rsm.wal.config.bucket: Field required"),
    ({"rsm.wal.config.bucket": None, "rsm.wal.config.buckett": "x"}, "rsm.wal.config.buckett: no such setting"),
    ({"rsm.wal.config.regoin": "x"}, "rsm.wal.config.regoin: no such setting"),
    ({"rsm.wal.confg.region": "x"}, "rsm.wal.confg.region: no such setting"),
    ({"rsm.wal.config.prefix": "/team"}, "rsm.wal.config.prefix: "),
    ({"rsm.wal.config.endpoint.url": "http://a"}, "rsm.wal.config.endpoint.url: is plain http"),
    *(
        ({"rsm.wal.config.endpoint.url": url}, "rsm.wal.config.endpoint.url: is no URL like https://host:port")
        for url in ("https://a/?sv=1&sig=x", "https://a#sig", "https://user:p/w@a", "https://@a", "https://a:0")
    ),
    ({"rsm.wal.config.tls.ca.file": "/none/ca.pem"}, "rsm.wal.config.tls.ca.file: /none/ca.pem is not there"),
    ({"remote.wal.agent.http.token.file": "/none/token"}, "remote.wal.agent.http.token.file: /none/token is not there"),
    (
        {"remote.wal.agent.client.config": "/none/client.properties"},
        "remote.wal.agent.client.config: /none/client.properties is not there",
    ),
    (
        {"remote.wal.agent.state.directory": "/proc/state"},
        "remote.wal.agent.state.directory: /proc/state is not there, and cannot be made in /proc (",
    ),
    (
        {"remote.wal.agent.state.directory": "/proc/self"},
        "remote.wal.agent.state.directory: /proc/self cannot be written (",
    ),
    (
        {"remote.wal.agent.state.directory": "/etc/passwd/state"},
        "/etc/passwd/state is not there, and cannot be made in /etc/passwd (Not a directory)",
    ),
    ({"remote.wal.prices.file": "/none/prices"}, "remote.wal.prices.file: /none/prices is not there"),
    (
        {f"remote.wal.agent.ssl.{name}.file": f"/none/{name}" for name in ("certificate", "key", "ca")},
        "remote.wal.agent.ssl.ca.file: /none/ca is not there",
    ),
    ({"rsm.wal.config.bucket": "<a bucket>"}, "rsm.wal.config.bucket: what stands in angle brackets"),
    ({"remote.log.wal.storage.manager.class.name": "plugin.s4.S4"}, "cannot import plugin.s4.S4"),
    ({"remote.wal.buckets": "az9=a-bucket"}, "remote.wal.buckets"),
    (
        {
            "remote.wal.archive.enable": "true",
            "rsm.wal.archive.config.bucket": "abc",
            "rsm.wal.archive.config.bukcet": "x",
        },
        "rsm.wal.archive.config.bukcet: no such setting",
    ),
    (
        ONLY_CLIENTS_LISTENER,
        "PLAINTEXT is advertised as :9092; agents listen for broker 3 at 127.0.0.1:19903, so followers pass them by",
    ),
    (ONLY_CLIENTS_LISTENER, "change: leave PLAINTEXT to clients; beside it a listener WAL://127.0.0.1:19903"),
]


@pytest.mark.parametrize(("changes", "told"), FOUND_IN_FILE, ids=lambda value: str(value)[:40])
def test_what_the_file_alone_tells_is_found(file: Path, changes: dict[str, str | None], told: str) -> None:
    lines = BROKER_WITHOUT_LISTENERS | WAL | STORE

    def checked() -> tuple[int, str]:
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items() if value is not None))
        code, shown, told = run("check", "--broker-config", file)
        return code, " ".join((shown + told).split())

    code, shown = checked()
    assert (code, "An agent can start with this file" in shown) == (ExitCode.GOOD, True), shown
    lines |= changes  # type: ignore[arg-type]
    code, shown = checked()
    assert (code, "An agent can start with this file" in shown) == (ExitCode.FINDINGS, False)
    assert told in shown


def test_a_stores_directory_that_is_not_there_is_told_and_not_made(file: Path, tmp_path: Path) -> None:
    lines = BROKER_WITHOUT_LISTENERS | WAL | STORE | {
        "remote.log.wal.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
        "rsm.wal.config.directory": str(tmp_path / "sotre"),
    }  # fmt: skip
    del lines["rsm.wal.config.bucket"]
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    code, shown, _ = run("check", "--json", "--broker-config", file)
    told = f"rsm.wal.config.directory: there is no directory {tmp_path}/sotre; change: correct the key: is it misspelt"
    assert (code, [one[: len(told)] for one in json.loads(shown)["advice"]]) == (ExitCode.FINDINGS, [told])
    assert not (tmp_path / "sotre").exists()


def test_files_that_are_not_there_are_told_once_and_in_a_line_each(file: Path) -> None:
    missing = {f"remote.wal.agent.{key}": f"/none/{key}" for key in ("client.config", "http.token.file")}
    lines = BROKER_WITHOUT_LISTENERS | WAL | STORE | missing
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    told = run("check", "--broker-config", file)[2].removeprefix("remote-wal: ").splitlines()
    assert {line.partition(" is not there; change: ")[0] for line in told} == {
        f"{key}: {value}" for key, value in missing.items()
    }


@pytest.mark.parametrize(
    "wrong", ["ssl.truststore.location=/a.jks", "ssl.engine.factory.class=a.B", "a=\\u00", "sasl.jaas.config=${a:b}"]
)
def test_what_is_wrong_in_the_clients_file_is_told_by_the_key_that_names_it_with_all_else(
    file: Path, tmp_path: Path, wrong: str
) -> None:
    client = tmp_path / "client.properties"
    client.write_text(f"config.providers=x\n{wrong}\n")
    lines = BROKER_WITHOUT_LISTENERS | WAL | STORE | {
        "remote.wal.agent.client.config": str(client), "remote.wal.agent.http.token.file": "/none/token",
    }  # fmt: skip
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    code, shown, told = run("check", "--json", "--broker-config", file)
    document = json.loads(shown)
    assert code == document["exit_code"] == ExitCode.FINDINGS
    assert "remote.wal.agent.client.config: " in document["error"]
    assert "remote.wal.agent.http.token.file: /none/token is not there" in document["error"]
    assert document["error"] in told


def test_bootstrap_servers_that_answer_as_their_own_zone_sees_brokers_are_told(file: Path) -> None:
    brokers = [BrokerSite(3, "use1-az4", "kafka-3"), BrokerSite(1, "use1-az6", "kafka-1")]
    keys = plan(brokers, {"use1-az4": "gateway-4", "use1-az6": "gateway-6"})[3]
    joined = {key: f"{keys[key]},{value}" for key, value in WAL.items()}
    lines = BROKER_WITHOUT_LISTENERS | keys | joined | AGENT

    def checked(servers: str) -> list[str]:
        told = {**lines, "remote.wal.agent.bootstrap.servers": servers}
        file.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
        code, shown, _ = run("check", "--json", "--broker-config", file)
        advice = list(json.loads(shown)["advice"])
        assert code == (ExitCode.FINDINGS if advice else ExitCode.GOOD)
        return advice

    assert checked(keys["remote.wal.agent.bootstrap.servers"]) == []
    (found,) = checked("kafka-3:9092,kafka-1:9092")
    assert found.startswith("remote.wal.agent.bootstrap.servers: kafka-3:9092, kafka-1:9092: at this port")


DEFAULT = """node.id=1
process.roles=broker,controller
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
offsets.topic.replication.factor=1
"""
"""As it comes with Kafka: one listener for brokers and clients."""


def test_for_shadow_kafkas_own_default_file_needs_no_more_than_the_proposed_lines(file: Path) -> None:
    file.write_text(DEFAULT)
    code, lines, _ = run("init", "--shadow", "--broker-config", file)
    assert (code, lines.splitlines()[-1]) == (ExitCode.GOOD, "remote.wal.agent.bootstrap.servers=127.0.0.1:9092")
    file.write_text(DEFAULT + lines)
    code, shown, told = run("check", "--json", "--broker-config", file)
    assert (code, told) == (ExitCode.GOOD, ""), shown


def test_an_agent_asks_kafka_where_brokers_and_clients_do_before_and_after_the_listener_for_agents_is_added(
    file: Path,
) -> None:
    stock = DEFAULT.replace("localhost:909", "kafka-1:909")
    advertised = stock.replace("listeners=PLAINTEXT://:9092,", "listeners=PLAINTEXT://:9092,WAL://127.0.0.1:19901,")
    advertised = advertised.replace("PLAINTEXT://kafka-1:9092,", "PLAINTEXT://kafka-1:9092,WAL://127.0.0.1:19901,")
    advertised = advertised.replace("SSL:SSL", "SSL:SSL,WAL:PLAINTEXT")
    switched = advertised.replace("inter.broker.listener.name=PLAINTEXT", "inter.broker.listener.name=WAL")
    for text in (stock, advertised, switched):
        file.write_text(text)
        assert "bootstrap.servers" not in run("init", "--broker-config", file)[1]
        broker = load_broker_properties(file)
        assert client_config(broker, ClientSettings()).bootstrap_servers == "127.0.0.1:9092"


def test_an_address_of_ipv6_stands_in_brackets_in_bootstrap_servers(file: Path) -> None:
    file.write_text(DEFAULT.replace("listeners=PLAINTEXT://:9092", "listeners=PLAINTEXT://[::1]:9092", 1))
    lines = run("init", "--shadow", "--broker-config", file)[1]
    assert lines.splitlines()[-1] == "remote.wal.agent.bootstrap.servers=[::1]:9092"
    file.write_text(file.read_text().replace("localhost:909", "kafka-1:909"))
    assert client_config(load_broker_properties(file), ClientSettings()).bootstrap_servers == "[::1]:9092"


def test_for_shadow_a_broker_keeps_its_listeners_and_needs_no_store(file: Path) -> None:
    stock = BROKER.replace("WAL://127.0.0.1:19903", "WAL://10.0.1.13:9093")
    file.write_text(stock)
    code, lines, _ = run("init", "--shadow", "--broker-config", file)
    assert code == ExitCode.GOOD
    file.write_text(stock + lines)
    code, shown, told = run("check", "--json", "--broker-config", file)
    assert (code, told) == (ExitCode.GOOD, ""), shown
    assert json.loads(shown)["settings"]["remote.wal.agent.mode"] == "shadow"
    file.write_text(BROKER + lines)
    assert "leads other brokers to agents of their own hosts" in run("check", "--broker-config", file)[2]
