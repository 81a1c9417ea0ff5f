"""Agents beside brokers that Strimzi manages: what changes in a broker's file, when nothing does, and who ends when."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import javaproperties
import pytest
import yaml

from agent.settings.http_listener import check_http_listener
from agent.settings_file import read_settings_file
from agent.tls.broker_tls import broker_tls_plan
from doctor.host_checks import listener_fault
from local_cluster.polling import wait_until
from local_cluster.security.authority import Authority
from tests.package.bare_environment import ROOT
from tests.package.stand_in import FOR_EVER, program
from tests.package.strimzi import PROGRAM, SERVICE, STRIMZI, generated, pod
from tests.package.test_containers import HADOLINT

COMPARED_NOT = {"advertised.listeners", "broker.id", "broker.rack"}
"""Kafka's own keys that Strimzi does not compare with the running broker; unknown keys it does not compare either."""
SWITCH = {"remote.log.wal.storage.system.enable": True}
PLAIN = ("PLAIN-9092", 9092, f"my-cluster-az1-7.{SERVICE}:9092")
TLS = ("TLS-9093", 9093, f"my-cluster-az1-7.{SERVICE}:9093")
OUTSIDE = ("EXTERNAL-9094", 9094, "broker-7.example.com:443")
OLD = f"REPLICATION-9091://{pod(7, 'az1')}.{SERVICE}:9091"
NEW = "REPLICATION-9091://wal-7.kafka.svc:19907"
PATIENCE_S = 60

KAFKA: dict[str, Any] = yaml.safe_load((STRIMZI / "kafka.yaml").read_text())
POOLS: list[dict[str, Any]] = [*yaml.safe_load_all((STRIMZI / "pools.yaml").read_text())]
BESIDE: list[dict[str, Any]] = [*yaml.safe_load_all((STRIMZI / "services.yaml").read_text())]
COMMON: dict[str, Any] = yaml.safe_load(
    yaml.safe_load((STRIMZI / "kustomization.yaml").read_text())["patches"][0]["patch"]
)["spec"]
IDS = {0: "az1", 10: "az2", 20: "az3"}


def prepared(directory: Path, text: str) -> tuple[bool, str]:
    """Whether an agent is started, and what became of the file."""
    file = directory / "strimzi.properties"
    file.write_text(text, encoding="iso-8859-1")
    is_started = program(PROGRAM).prepare(file)
    return is_started, file.read_text(encoding="iso-8859-1")


@pytest.mark.parametrize("roles", ["broker", "broker,controller"])
@pytest.mark.parametrize("listeners", [(), (PLAIN,), (PLAIN, OUTSIDE)])
def test_the_replication_address_alone_becomes_that_of_the_agents(
    roles: str, listeners: tuple[tuple[str, int, str], ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = generated(7, {**SWITCH, "some.key": "an \xe9 \\u00e9"}, roles=roles, listeners=listeners)
    is_started, changed = prepared(tmp_path, text)
    assert is_started
    assert changed == text.replace(f"advertised.listeners={_advertised(text)}", f"advertised.listeners={_new(text)}")
    assert NEW in changed
    assert OLD not in changed
    assert NEW in capsys.readouterr().err


def _advertised(text: str) -> str:
    return str(javaproperties.loads(text)["advertised.listeners"])


def _new(text: str) -> str:
    return _advertised(text).replace(OLD, NEW)


def test_the_operator_finds_nothing_to_change(tmp_path: Path) -> None:
    """It would restart the broker, again and again."""
    text = generated(7, SWITCH, listeners=(PLAIN,))
    wanted, runs_with = javaproperties.loads(text), javaproperties.loads(prepared(tmp_path, text)[1])
    assert wanted.keys() == runs_with.keys()
    assert {key for key in wanted if wanted[key] != runs_with[key]} == {"advertised.listeners"} <= COMPARED_NOT


def test_the_port_base_is_the_agents(tmp_path: Path) -> None:
    _, changed = prepared(tmp_path, generated(7, {**SWITCH, "remote.wal.agent.replica.port.base": 30000}))
    assert "wal-7.kafka.svc:30007" in changed


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["wal-0.kafka.svc", "wal-7.kafka.svc"], "the broker is advertised as"),
        (["wal-0.kafka.svc"], "wal-0.kafka.svc, and not wal-7.kafka.svc"),
        (None, "No such file"),
    ],
)
def test_with_strimzis_tls_the_certificate_must_name_the_new_address(
    names: list[str] | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else brokers would refuse each other."""
    file = tmp_path / "tls.crt"
    if names is not None:
        file = Authority(tmp_path).tls_for("pod", [], also=names).certificate_file
    key = "remote.wal.agent.broker.ssl.certificate.file"
    text = generated(7, {**SWITCH, key: file}, protocol="SSL")
    is_started, changed = prepared(tmp_path, text)
    assert is_started
    assert (NEW in changed) is (names is not None and len(names) == 2)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (generated(7, SWITCH, roles="controller"), "a controller alone"),
        (generated(7, {"min.insync.replicas": 2}), "spec.kafka.config has no remote.log.wal"),
        (
            generated(7, SWITCH, protocol="SSL"),
            "REPLICATION-9091 has TLS, and remote.wal.agent.broker.ssl.certificate.file is not set",
        ),
        ("\\uno\n", "Invalid"),
    ],
)
def test_without_an_agent_the_broker_is_stock_and_it_is_said_why(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepared(tmp_path, text) == (False, text)
    told = capsys.readouterr().err
    assert reason in told
    assert told.endswith("The broker starts as stock Kafka.\n")


GOOD = generated(7, SWITCH, listeners=(PLAIN,))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GOOD.replace(OLD, "REPLICATION-9091://10.0.0.7:9091"), "advertised as REPLICATION-9091://10.0.0.7:9091, not"),
        (GOOD.replace(OLD, OLD.replace("7.my", "${STRIMZI_BROKER_ID}.my")), "-${STRIMZI_BROKER_ID}.my-cluster-kafka"),
        (GOOD.replace(OLD, OLD.replace(".svc", ".svc.cluster.local")), "svc.cluster.local:9091, not as"),
        (GOOD.replace(OLD, OLD.replace(":9091", ":9191")), ":9191, not as"),
        (GOOD.replace(OLD, f"{OLD},{OLD}"), "not as"),
        (GOOD.replace(f"{OLD},", ""), "advertised as nothing"),
        (GOOD.replace("advertised.listeners=", "advertised.listeners = "), "does not stand once, and on one line"),
        (GOOD.replace(OLD, f"{OLD},\\\n  B://c:1"), "does not stand once, and on one line"),
        (f"{GOOD}advertised.listeners={OLD}\n", "does not stand once, and on one line"),
        (GOOD.replace("name=REPLICATION-9091", "name=PLAIN-9092"), "inter.broker.listener.name is not"),
        (GOOD.replace("node.id=7", "node.id=60000"), "make no port"),
    ],
)
def test_a_broker_whose_form_is_not_known_keeps_its_address(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its agent starts, as the names of other brokers lead to it."""
    assert text != GOOD
    assert prepared(tmp_path, text) == (True, text)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_in_shadow_the_broker_keeps_its_address_and_its_tls(protocol: str, tmp_path: Path) -> None:
    text = generated(7, {**SWITCH, "remote.wal.agent.mode": "shadow"}, protocol=protocol)
    assert prepared(tmp_path, text) == (True, text)


# The processes.

_BROKER = f'echo broker-starts >>"$0"; trap "echo broker-ends >>$0; exit 143" TERM; {FOR_EVER}'
_AGENT = f'echo agent-starts >>"$0"; trap "echo agent-ends >>$0; exit 0" TERM; {FOR_EVER}'
_DYING = 'echo agent-starts >>"$0"; exit 3'


def run_pair(
    broker: str,
    agent: str,
    told: Path,
    until: Callable[[list[str]], bool],
    silence_s: float = PATIENCE_S,
    ready_s: float = 0,
) -> int:
    """Run both until the lines that they write fulfil the condition, then end the pair as a container's end does."""

    module = program(PROGRAM)
    module.__dict__.update(_SETTLED_S=0, _SILENCE_S=silence_s, _READY_S=ready_s)
    told.touch()

    async def run() -> int:
        file = told.with_suffix(".properties")
        file.write_text("readdressed")
        without_agent = partial(module.restore, file, b"own")
        pair = asyncio.create_task(
            module.Pair(["sh", "-c", broker, told], ["sh", "-c", agent, told], without_agent).run()
        )
        has_come = partial(
            wait_until, lambda: until(told.read_text().split()), "the lines", PATIENCE_S, interval_s=0.005
        )
        await asyncio.to_thread(has_come)
        if not pair.done():
            os.kill(os.getpid(), signal.SIGTERM)
        return int(await pair)

    return asyncio.run(run())


def test_the_broker_ends_first_and_its_exit_code_is_that_of_the_container(tmp_path: Path) -> None:
    told = tmp_path / "told"
    assert run_pair(_BROKER, _AGENT, told, lambda lines: len(lines) == 2) == 143
    assert told.read_text().split()[2:] == ["broker-ends", "agent-ends"]


def test_an_agent_that_ends_is_started_again(tmp_path: Path) -> None:
    told = tmp_path / "told"
    run_pair(_BROKER, _DYING, told, lambda lines: lines.count("agent-starts") >= 3)
    assert told.read_text().split().count("broker-starts") == 1


@pytest.mark.parametrize(("state", "address"), [("READY=1", "readdressed"), ("WATCHDOG=1", "own")])
def test_the_broker_has_the_agents_address_only_if_the_agent_got_ready_before_it(
    state: str, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent whose file is refused would leave the broker at an address where nobody is."""
    told, script = tmp_path / "told", tmp_path / "reports.py"
    script.write_text(
        "import os, signal, sys\nfrom agent.service_manager import ServiceManager\n"
        f"ServiceManager(os.environ, os.getpid()).tell('STATUS=x', '{state}')\n"
        + ("signal.pause()\n" if state == "READY=1" else "")
    )
    agent = f"PYTHONPATH={ROOT} exec {sys.executable} {script}"
    broker = f'cat {tmp_path}/told.properties >>"$0"; {FOR_EVER}'
    run_pair(broker, agent, told, bool, ready_s=PATIENCE_S)
    assert told.read_text() == address
    assert ("as stock Kafka" in capsys.readouterr().err) is (address == "own")


def test_an_agent_that_falls_silent_is_killed_and_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, script = tmp_path / "told", tmp_path / "silent.py"
    script.write_text(
        "import os, signal, sys\nfrom agent.service_manager import ServiceManager\n"
        "manager = ServiceManager(os.environ, os.getpid())\nassert manager.watchdog_s\n"
        "manager.tell('WATCHDOG=1')\nopen(sys.argv[1], 'a').write('agent-starts\\n')\nsignal.pause()\n"
    )
    command = f'PYTHONPATH={ROOT} exec {sys.executable} {script} "$0"'
    run_pair(_BROKER, command, told, lambda lines: lines.count("agent-starts") >= 2, silence_s=0.5)
    assert "has said nothing for 0.5 s, and is killed" in capsys.readouterr().err


@pytest.mark.parametrize(("end", "code"), [("exit 5", 5), ("kill -9 $$", 137)])
def test_the_agent_ends_with_its_broker(end: str, code: int, tmp_path: Path) -> None:
    told = tmp_path / "told"
    broker = f'while ! grep -q agent-starts "$0"; do sleep 0.01; done; {end}'
    assert run_pair(broker, _AGENT, told, lambda lines: "agent-ends" in lines) == code


def test_a_broker_without_an_agent_is_the_original_script(tmp_path: Path) -> None:
    module, ran = program(PROGRAM), []
    module.__dict__["os"] = type("os", (), {"execv": staticmethod(lambda *command: ran.append(command))})
    module.main([str(tmp_path / "missing.properties")])
    stock = PROGRAM.with_name("kafka-server-start.stock.sh")
    assert ran == [(stock, (str(stock), str(tmp_path / "missing.properties")))]
    assert (
        f"mv /opt/kafka/bin/kafka-server-start.sh /opt/kafka/bin/{stock.name}" in (STRIMZI / "Dockerfile").read_text()
    )


# The manifests.


@pytest.mark.parametrize("node_id", IDS)
def test_agents_take_the_settings_of_the_kafka_resource(
    node_id: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIMZI_BROKER_ID", str(node_id))
    monkeypatch.setenv("HOSTNAME", pod(node_id, IDS[node_id]))
    home = tmp_path / "kafka"
    (home / "init").mkdir(parents=True)
    (home / "init" / "rack.id").write_text(_zone(POOLS[list(IDS).index(node_id)]))
    [named] = [one["configuration"]["bootstrap"]["alternativeNames"] for one in KAFKA["spec"]["kafka"]["listeners"]]
    strimzis = Authority(tmp_path).tls_for(pod(node_id, IDS[node_id]), [], also=named)
    config = KAFKA["spec"]["kafka"]["config"]
    text = generated(node_id, config, pool=IDS[node_id], protocol="SSL", listeners=(TLS,), home=str(home))
    for name, file in {"certificate": strimzis.certificate_file, "key": strimzis.key_file}.items():
        text = text.replace(config[f"remote.wal.agent.broker.ssl.{name}.file"], str(file))
    is_started, changed = prepared(tmp_path, text)
    assert is_started
    assert f"wal-{node_id}.kafka.svc:{19900 + node_id}" in changed
    broker, settings = read_settings_file(tmp_path / "strimzi.properties")
    assert listener_fault(broker, settings) is None
    assert settings.storage.system_enable
    plan = broker_tls_plan(broker, settings.broker_tls)
    assert plan is not None
    assert plan.vouches, "brokers ask each other for certificates, and the agent shows the broker's"
    assert all(plan.covers(f"wal-{one}.kafka.svc") for one in IDS)
    assert str(settings.peers.peers[node_id]) == f"{pod(node_id, IDS[node_id])}.{SERVICE}:19090"
    check_http_listener(settings.http.listener, settings.http)
    assert settings.http.agents_ca_file == settings.tls.ca_file
    assert settings.http.listener.host == f"{pod(node_id, IDS[node_id])}.{SERVICE}.cluster.local"
    assert broker.rack in settings.storage.buckets


def _zone(pool: dict[str, Any]) -> str:
    affinity = pool["spec"]["template"]["pod"]["affinity"]["nodeAffinity"]
    [term] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return str(term["matchExpressions"][0]["values"][0])


def test_every_broker_has_its_names() -> None:
    assert {pool["metadata"]["annotations"]["strimzi.io/next-node-ids"] for pool in POOLS} == {
        f"[{one}-{one + 9}]" for one in IDS
    }
    [aliases] = COMMON["template"]["pod"]["hostAliases"]
    assert aliases == {"ip": "127.0.0.1", "hostnames": [f"wal-{one}.kafka.svc" for one in IDS]}
    services = {one["metadata"]["name"]: one["spec"] for one in BESIDE if one["kind"] == "Service"}
    assert services.keys() == {f"wal-{one}" for one in IDS}
    for one, pool in IDS.items():
        [port] = services[f"wal-{one}"]["ports"]
        assert (port["port"], port["targetPort"]) == (19900 + one, 9091)
        assert services[f"wal-{one}"]["selector"]["strimzi.io/pod-name"] == pod(one, pool)


def test_the_ports_of_agents_are_open_to_brokers_and_prometheus() -> None:
    policy, monitor = (one["spec"] for one in BESIDE if one["kind"] in ("NetworkPolicy", "PodMonitor"))
    ports = [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]]
    assert ports == [[19090, 19095], [19095]]
    assert policy["podSelector"] == monitor["selector"] == policy["ingress"][0]["from"][0]["podSelector"]
    assert monitor["podMetricsEndpoints"][0]["relabelings"][0]["replacement"].endswith(":19095")


def test_each_pod_has_its_own_secrets_where_the_agent_looks_for_them() -> None:
    own = {one["name"]: one["secret"]["secretName"] for one in COMMON["template"]["pod"]["templatedVolumes"]}
    assert own == {"agent": "remote-wal-{nodeId}", "agent-as-broker": "{nodePodName}"}
    volumes = {one["name"] for one in COMMON["template"]["pod"]["volumes"]} | own.keys()
    mounts = {
        one["name"]: one["mountPath"] for one in KAFKA["spec"]["kafka"]["template"]["kafkaContainer"]["volumeMounts"]
    }
    assert volumes == mounts.keys()
    files = {
        Path(value).parent for value in map(str, KAFKA["spec"]["kafka"]["config"].values()) if value[:5] == "/mnt/"
    }
    [client] = [one["data"]["client.properties"] for one in BESIDE if one["kind"] == "ConfigMap"]
    files |= {Path(line.partition("=")[2]).parent for line in client.split() if "=/mnt/" in line}
    assert {str(one) for one in files} == set(mounts.values())


def test_the_manifests_fit_strimzis_definitions_and_keep_its_security() -> None:
    import jsonschema
    import kubernetes_validate

    custom = json.loads(Path(__file__).with_name("custom_resources.json").read_text())
    for one in (KAFKA, *({**pool, "spec": _merged(COMMON, pool["spec"])} for pool in POOLS), *BESIDE):
        if one["kind"] in custom:
            jsonschema.validate(one, {**custom[one["kind"]], "definitions": custom["definitions"]})
        else:
            kubernetes_validate.validate(one, "1.32", strict=True)
    assert "annotations" not in KAFKA["metadata"], (
        "TLS and logins between brokers are Strimzi's, so nobody is ANONYMOUS"
    )
    assert all(listener["tls"] for listener in KAFKA["spec"]["kafka"]["listeners"])


def _merged(first: Any, second: Any) -> Any:
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    return {key: _merged(first.get(key), second[key]) if key in second else first[key] for key in {**first, **second}}


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not here")
def test_hadolint_has_nothing_to_say() -> None:
    told = subprocess.run([HADOLINT, STRIMZI / "Dockerfile"], check=False, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "")
