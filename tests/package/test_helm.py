"""The chart in deploy/helm: what it renders is valid, agents take the settings, and an upgrade rolls one zone.

Helm is this machine's, or compiled once, which takes minutes: so only `./run test --all` renders. What needs no Helm is
in `test_scaling`.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.settings.http_listener import check_http_listener
from agent.settings_file import agent_settings
from cli.takeover.host_properties import faults, host_properties
from kafka_log.broker_files.java_properties import parse_properties
from kafka_log.broker_files.server_properties import load_broker_properties, parse_broker_properties
from local_cluster.object_store.native import GoProgramMissingError
from tests.command_lines import is_command
from tests.package.bare_environment import ROOT
from tests.package.helm_chart import (
    CHART,
    RELEASE,
    VALUES,
    ZONES,
    containers,
    environment,
    helm,
    of_kind,
    rendered,
    run_helm,
    values,
    write_configuration,
)

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1900)]

VERSIONS = ("1.29", "1.32", "1.37")
ALL = values(
    rollout="az2",
    drainOnScaleIn=True,
    joinOnScaleOut=True,
    balance={"enabled": True},
    takeover={"zone": "az1", "ordinal": 0, "inZone": "az2", "options": ["--heir=10"]},
    terminationGracePeriodSeconds=3600,
    certificates={"issuer": {"name": "agents", "kind": "ClusterIssuer"}},
    podMonitor={"enabled": True, "labels": {"release": "prometheus"}},
    prometheusRule={"enabled": True, "labels": {"release": "prometheus"}},
    clientSecret="kafka-client",
    imagePullSecrets=[{"name": "registry"}],
    serviceAccount={"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/agents"}},
    kafka={"storage": {"size": "10Gi", "storageClassName": "fast"}},
    scheduling={
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "kafka", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    },
    networkPolicy={"clients": [{"namespaceSelector": {}}], "monitoring": [{"podSelector": {}}]},
)
NONE = values(
    tls=False,
    scheduling={"spread": ""},
    networkPolicy={"enabled": False},
    agent={"tokenSecret": "their-token"},
    podDisruptionBudget={"enabled": False},
    store={"class": "plugin.s3.S3WalStorageManager", "environmentSecret": "keys"},
)


@pytest.fixture(scope="module", autouse=True)
def _helm_is_here() -> None:
    try:
        helm()
    except GoProgramMissingError as error:
        pytest.skip(str(error))


def sets(**more: object) -> dict[str, dict[str, Any]]:
    return of_kind(rendered(values(**more)), "StatefulSet")


def zones(*replicas: int) -> list[dict[str, Any]]:
    return [{**zone, "replicas": number} for zone, number in zip(VALUES["zones"], replicas, strict=True)]


def mounts(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


@pytest.mark.parametrize("told", [VALUES, ALL, NONE], ids=["least", "all", "none"])
def test_helm_has_nothing_to_say(told: dict[str, Any]) -> None:
    done = run_helm("lint", "--strict", str(CHART), told=told)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("told", [VALUES, ALL, NONE], ids=["least", "all", "none"])
def test_what_is_rendered_is_valid(told: dict[str, Any], version: str) -> None:
    import jsonschema
    import kubernetes_validate

    custom = json.loads((Path(__file__).with_name("custom_resources.json")).read_text())
    for one in rendered(told):
        if one["kind"] in custom:
            jsonschema.validate(one, {**custom[one["kind"]], "definitions": custom["definitions"]})
        else:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_oldest_kubernetes_is_one_that_has_native_sidecars() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={VERSIONS[0]}.0-0"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"clusterId": ""}, "clusterId"),
        ({"zones": []}, "zones"),
        ({"zones": [{**VALUES["zones"][0], "bukket": "b"}]}, "bukket"),
        ({"settings": {"num.io.threads": 8}}, "num.io.threads"),
        ({"no.such": {}}, "no.such"),
        ({"rollout": "az4"}, "there is no zone az4"),
        ({"zones": [*VALUES["zones"], {**VALUES["zones"][0], "firstId": 90}]}, "az1 is there twice"),
        (
            {"zones": [*VALUES["zones"], {**VALUES["zones"][0], "name": "az4", "firstId": 29}]},
            "not certificates.brokersPerZone apart",
        ),
        ({"zones": zones(11, 1, 1)}, "az1 has more brokers"),
        ({"drainOnScaleIn": True}, "drainOnScaleIn needs at least 180"),
        ({"images": {"agent": ""}}, "agent"),
        ({"scheduling": {"spread": "always"}}, "spread"),
        ({"takeover": {"zone": "az4", "inZone": "az1"}}, 'takeover.zone: there is no zone "az4"'),
        ({"takeover": {"zone": "az1"}}, 'takeover.inZone: there is no zone ""'),
    ],
)
def test_wrong_values_are_refused_by_their_name(more: dict[str, Any], told: str) -> None:
    done = run_helm("template", RELEASE, str(CHART), told=values(**more))
    assert done.returncode != 0
    assert told in done.stderr


@pytest.fixture(params=[VALUES, {**ALL, "zones": zones(2, 1, 1)}], ids=["least", "all"])
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(request.param)


def test_agents_take_the_settings_of_every_broker(manifests: list[dict[str, Any]], tmp_path: Path) -> None:
    found = {}
    for zone in VALUES["zones"]:
        name = f"{RELEASE}-{zone['name']}"
        for ordinal in range(of_kind(manifests, "StatefulSet")[name]["spec"]["replicas"]):
            file = write_configuration(manifests, zone["name"], ordinal, tmp_path)
            broker = load_broker_properties(file)
            settings = agent_settings(broker, file)
            found[broker.node_id] = (broker, settings)
            assert broker.node_id == zone["firstId"] + ordinal
            assert broker.rack == zone["name"]
            check_http_listener(settings.http.listener, settings.http)
            assert str(settings.http.listener) == f"{name}-{ordinal}.kafka.streams.svc.cluster.local:19095"
            assert settings.storage.system_enable
            assert settings.storage.buckets[zone["name"]] == zone["bucket"]
            port = settings.peers.replica_port_base + broker.node_id
            assert f"WAL://127.0.0.1:{port}" in broker.raw["advertised.listeners"]
            assert f"CLIENT://{name}-{ordinal}.kafka.streams.svc:9092" in broker.raw["advertised.listeners"]
            # Controllers' ids are the voters', and only they have that listener.
            is_voter = f"{broker.node_id}@" in broker.raw["controller.quorum.voters"].replace(",", ",@")
            assert (
                ("controller" in broker.raw["process.roles"])
                is ("CONTROLLER:" in broker.raw["listeners"])
                is (ordinal == 0)
            )
            assert is_voter is (ordinal == 0)
    for _, settings in found.values():
        assert settings.peers.peers.keys() == found.keys()


def test_settings_of_the_operator_win(tmp_path: Path) -> None:
    made = rendered(values(settings={"min.insync.replicas": "1", "remote.wal.agent.memory.bytes": "2147483648"}))
    file = write_configuration(made, "az1", 0, tmp_path)
    broker = load_broker_properties(file)
    assert broker.raw["min.insync.replicas"] == "1"
    assert agent_settings(broker, file).process.memory_bytes == 2147483648
    assert file.read_text().count("min.insync.replicas") == 1


def test_every_command_exists_with_its_options() -> None:
    agent = containers(sets()["kafka-az1"])["agent"]
    assert agent["args"][0] == "agent"
    assert is_command("", agent["args"])
    made = rendered(ALL)
    for one in (of_kind(made, "Deployment")["kafka-balance"], of_kind(made, "Job")["kafka-takeover-0"]):
        [container] = one["spec"]["template"]["spec"]["containers"]
        assert is_command("", container["args"])
        assert "--bootstrap-server=kafka-bootstrap.streams.svc:9092" in container["args"], "as certificates name it"


def test_a_pod_is_ready_when_its_broker_is() -> None:
    """Whatever the agent has to say of its store."""
    for name, made in sets(drainOnScaleIn=True, terminationGracePeriodSeconds=600).items():
        configure, agent, scaling, kafka = containers(made).values()
        assert configure["name"] == "configure", name
        assert {one["restartPolicy"] for one in (configure, agent, scaling)} == {"Always"}
        assert "readinessProbe" not in agent
        assert "readinessProbe" not in scaling
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert kafka[probe]["tcpSocket"] == {"port": "clients"}
        assert {agent[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe")} == {"/livez"}
        assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 600


def test_agents_write_no_logs_and_no_settings() -> None:
    made = containers(sets()["kafka-az1"])
    agent, kafka = mounts(made["agent"]), mounts(made["kafka"])
    assert [name for name, mount in agent.items() if not mount.get("readOnly")] == ["agent-state", "scratch"]
    for name in ("logs", "configuration"):
        assert agent[name]["mountPath"] == kafka[name]["mountPath"]


# Upgrades.


def test_an_upgrade_rolls_at_most_the_zone_that_is_named() -> None:
    def strategies(**more: object) -> list[str]:
        return [one["spec"]["updateStrategy"]["type"] for one in sets(**more).values()]

    assert strategies() == ["OnDelete"] * 3
    for number, zone in enumerate(ZONES):
        assert strategies(rollout=zone).index("RollingUpdate") == number
        assert strategies(rollout=zone).count("OnDelete") == 2


def test_each_zone_has_a_configuration_of_its_own() -> None:
    made = rendered(VALUES)
    names = {f"{RELEASE}-{zone}" for zone in ZONES}
    assert of_kind(made, "ConfigMap").keys() == of_kind(made, "StatefulSet").keys() == names
    for name, one in of_kind(made, "StatefulSet").items():
        volumes = {volume["name"]: volume for volume in one["spec"]["template"]["spec"]["volumes"]}
        assert volumes["template"]["configMap"]["name"] == name
        named = [source["secret"]["name"] for source in volumes["zone-certificates"]["projected"]["sources"]]
        assert named == [f"{name}-{ordinal}-agents" for ordinal in range(10)]
        seeing = [its for its, container in containers(one).items() if "zone-certificates" in mounts(container)]
        assert seeing == ["configure"], "a broker's key is its own"
        assert one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()


def templates(**more: object) -> list[Any]:
    return [one["spec"]["template"] for one in sets(**more).values()]


def test_a_zone_that_grows_changes_no_pod() -> None:
    assert templates(zones=zones(2, 1, 3)) == templates()
    assert templates(settings={"num.io.threads": "8"}) != templates(), "a setting does"
    of_az1 = [{**zone, "bucket": "other"} if zone["name"] == "az1" else zone for zone in VALUES["zones"]]
    assert templates(zones=of_az1) != templates(), "all agents know all buckets"


# Rights.


def test_only_the_container_that_scales_may_ask_and_only_for_its_own_stateful_set() -> None:
    made = rendered(values(drainOnScaleIn=True, joinOnScaleOut=True, terminationGracePeriodSeconds=600))
    for name, role in of_kind(made, "Role").items():
        assert role["rules"] == [
            {"apiGroups": ["apps"], "resources": ["statefulsets"], "resourceNames": [name], "verbs": ["get"]}
        ]
        binding = of_kind(made, "RoleBinding")[name]
        assert (binding["roleRef"]["name"], [one["name"] for one in binding["subjects"]]) == (name, [name])
        one = of_kind(made, "StatefulSet")[name]
        spec = one["spec"]["template"]["spec"]
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (name, False)
        with_token = [its for its, container in containers(one).items() if "api-server" in mounts(container)]
        assert with_token == ["scaling"]
        # One after the other: nothing is drained to a broker that ends as well.
        assert one["spec"]["podManagementPolicy"] == "OrderedReady"


def test_by_default_nothing_asks_the_api_server() -> None:
    made = rendered(VALUES)
    assert not of_kind(made, "Role")
    for one in of_kind(made, "StatefulSet").values():
        assert [*containers(one)] == ["configure", "agent", "kafka"]
        assert "lifecycle" not in containers(one)["kafka"]
        assert one["spec"]["podManagementPolicy"] == "Parallel"


def hook(**more: object) -> tuple[dict[str, Any], dict[str, Any]]:
    found = containers(sets(terminationGracePeriodSeconds=600, **more)["kafka-az1"])
    return found["kafka"], found["scaling"]


def test_the_broker_is_asked_about_before_it_ends_and_has_time_left_then() -> None:
    kafka, scaling = hook(drainOnScaleIn=True)
    [port] = [one["containerPort"] for one in scaling["ports"]]
    assert kafka["lifecycle"] == {"preStop": {"httpGet": {"path": "/before-stop", "port": port}}}
    names = {one["name"]: one.get("value") for one in scaling["env"]}
    assert names["DRAIN_SECONDS"] == "510"
    assert "JOIN" not in names
    kafka, scaling = hook(joinOnScaleOut=True)
    assert "lifecycle" not in kafka
    names = {one["name"]: one.get("value") for one in scaling["env"]}
    assert names["JOIN"] == "true"
    assert "DRAIN_SECONDS" not in names


# A dead broker's place.


def test_the_job_of_a_takeover_says_all_of_its_host_and_has_the_dead_pods_names(tmp_path: Path) -> None:
    assert not of_kind(rendered(VALUES), "Job"), "off by default"
    made = rendered(ALL)
    [job] = of_kind(made, "Job").values()
    pod, spec = job["spec"]["template"], job["spec"]["template"]["spec"]
    headless, bootstrap = (of_kind(made, "Service")[name]["spec"]["selector"] for name in ("kafka", "kafka-bootstrap"))
    assert headless == bootstrap == pod["metadata"]["labels"], "and it is no pod of the StatefulSet, or the budget"
    assert (spec["hostname"], spec["subdomain"]) == ("kafka-az1-0", "kafka")
    assert spec["nodeSelector"]["topology.kubernetes.io/zone"] == VALUES["zones"][1]["topologyZone"]
    of_dead, of_job = containers(of_kind(made, "StatefulSet")["kafka-az1"]), containers(job)
    told, words = environment(of_job["configure"], "no-field", "10.0.0.9"), of_job["configure"]["command"][2:]
    assert told == environment(of_dead["configure"], "kafka-az1-0", "10.0.0.9")
    assert words == of_dead["configure"]["command"][-4:]
    assert mounts(of_job["configure"]) == mounts(of_dead["configure"])

    file, own = write_configuration(made, "az1", 0, tmp_path), tmp_path / "host.properties"
    shell, option, script, *_ = of_job["takeover"]["command"]
    script = script.replace("/etc/kafka/server.properties", str(file)).replace("/tmp/host.properties", str(own))
    told = environment(of_job["takeover"], "no-field", "10.0.0.9")
    subprocess.run([shell, option, script, "sh", "true"], env={**os.environ, **told}, check=True)
    dead, keys = load_broker_properties(file), parse_properties(own.read_bytes())
    here = parse_broker_properties(host_properties(dead.raw, keys, tmp_path / "place"), file)
    missing = [fault for fault in faults(dead, keys, here) if "/etc/remote-wal" not in fault]
    assert (missing, here.rack) == ([], "az2")


# Beside pods.


def test_every_broker_that_a_zone_may_have_has_a_certificate_of_its_own() -> None:
    names = {name: one["spec"]["dnsNames"] for name, one in of_kind(rendered(ALL), "Certificate").items()}
    for number, zone in enumerate(ZONES):
        for ordinal in range(10):
            pod = f"{RELEASE}-{zone}-{ordinal}"
            assert names.pop(f"{pod}-agents") == [
                f"broker-{10 * number + ordinal}",
                f"{pod}.kafka.streams.svc.cluster.local",
                f"{pod}.kafka.streams.svc",
                "kafka-bootstrap.streams.svc",
                "localhost",
            ]
    assert not names


def test_clients_and_controllers_are_under_tls_unless_it_is_switched_off(tmp_path: Path) -> None:
    for tls, protocol in ((True, "SSL"), (False, "PLAINTEXT")):
        file = write_configuration(rendered(values(tls=tls)), "az1", 1, tmp_path / protocol)
        raw = load_broker_properties(file).raw
        assert raw["listener.security.protocol.map"] == f"CLIENT:{protocol},CONTROLLER:{protocol},WAL:PLAINTEXT"
        assert raw.get("listener.name.controller.ssl.client.auth") == ("required" if tls else None)
        written = {one.name: one.read_text() for one in (tmp_path / protocol / "certificates").iterdir()}
        own = "of kafka-az1-1-agents\n"
        assert written.pop("keystore.pem") == f"tls.key {own}tls.crt {own}"
        assert written == {name: f"{name} {own}" for name in ("tls.key", "tls.crt", "ca.crt")}


def test_pods_are_scheduled_as_the_operator_says_and_brokers_of_a_zone_apart() -> None:
    for zone, one in zip(VALUES["zones"], of_kind(rendered(ALL), "StatefulSet").values(), strict=True):
        spec = one["spec"]["template"]["spec"]
        assert spec["nodeSelector"] == {"topology.kubernetes.io/zone": zone["topologyZone"], "disk": "fast"}
        assert (spec["priorityClassName"], spec["tolerations"][0]["key"]) == ("high", "kafka")
        [spread] = spec["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
        assert spread["labelSelector"]["matchLabels"]["zone"] == zone["name"]


def test_strangers_reach_the_clients_port_alone() -> None:
    [policy] = of_kind(rendered(VALUES), "NetworkPolicy").values()
    own, clients = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    assert clients == {"ports": [{"port": 9092}]}
    made = rendered(ALL)
    balancing = {"podSelector": of_kind(made, "Deployment")["kafka-balance"]["spec"]["selector"]}
    assert [rule.get("from") for rule in of_kind(made, "NetworkPolicy")["kafka"]["spec"]["ingress"][1:]] == [
        [{"namespaceSelector": {}}, balancing],
        [{"podSelector": {}}],
    ]


def test_agents_ask_for_a_token_over_http() -> None:
    made = rendered(VALUES)
    assert len(of_kind(made, "Secret")["kafka-agents-http"]["data"]["token"]) > 40
    for one in of_kind(made, "StatefulSet").values():
        assert "http-token" in mounts(containers(one)["agent"])
    assert not of_kind(rendered(NONE), "Secret")


def test_the_alerts_are_those_of_deploy_and_the_job_is_theirs() -> None:
    made = rendered(ALL)
    alerts = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    assert of_kind(made, "PrometheusRule")["kafka-agents"]["spec"] == alerts
    [endpoint] = of_kind(made, "PodMonitor")["kafka-agents"]["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0] == {"targetLabel": "job", "replacement": "remote-wal"}
    assert endpoint["relabelings"][1]["replacement"] == "$1.kafka.streams.svc.cluster.local:19095"
    agent = containers(of_kind(made, "StatefulSet")["kafka-az1"])["agent"]
    assert endpoint["port"] in {port["name"] for port in agent["ports"]}


def test_services_and_the_budget_choose_the_pods_of_all_zones() -> None:
    made = rendered(VALUES)
    headless, bootstrap = (of_kind(made, "Service")[name]["spec"] for name in ("kafka", "kafka-bootstrap"))
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"]
    budget = of_kind(made, "PodDisruptionBudget")["kafka"]["spec"]
    assert budget["maxUnavailable"] == 1
    chosen = headless["selector"]
    assert chosen == bootstrap["selector"] == budget["selector"]["matchLabels"]
    assert budget["selector"]["matchExpressions"] == [{"key": "zone", "operator": "Exists"}]
    for one in of_kind(made, "StatefulSet").values():
        assert "zone" in one["spec"]["template"]["metadata"]["labels"]
        assert chosen.items() <= one["spec"]["template"]["metadata"]["labels"].items()
        assert one["spec"]["serviceName"] == "kafka"
    balancing = of_kind(rendered(ALL), "Deployment")["kafka-balance"]["spec"]["template"]["metadata"]["labels"]
    assert not chosen.items() <= balancing.items(), "no client is led there"
