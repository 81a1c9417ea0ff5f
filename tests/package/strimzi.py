"""Properties files as Strimzi generates them, and the program that starts a broker with its agent from one."""

from collections.abc import Mapping, Sequence

from tests.package.bare_environment import ROOT

STRIMZI = ROOT / "deploy" / "strimzi"
PROGRAM = STRIMZI / "broker_and_agent.py"
SERVICE = "my-cluster-kafka-brokers.kafka.svc"


def pod(node_id: int, pool: str) -> str:
    return f"my-cluster-{pool}-{node_id}"


def generated(
    node_id: int,
    config: Mapping[str, object],
    *,
    pool: str = "az1",
    roles: str = "broker,controller",
    voters: Mapping[int, str] | None = None,
    listeners: Sequence[tuple[str, int, str]] = (),
    protocol: str = "PLAINTEXT",
    log_directory: str = "/var/lib/kafka/data-0",
    home: str = "/opt/kafka",
    providers: Mapping[str, str] | None = None,
) -> str:
    """A node's file in the form of Strimzi 1.3: sections under headings of three lines, each key once, no escapes.

    `listeners` are those of the Kafka resource: name, port, and host and port that are advertised. `config` is
    spec.kafka.config.
    """
    this = pod(node_id, pool)
    own = f"{this}.{SERVICE}"
    quorum = ",".join(f"{one}@{pod(one, its)}.{SERVICE}:9090" for one, its in (voters or {node_id: pool}).items())
    is_broker, is_controller = "broker" in roles, "controller" in roles
    internal = [("CONTROLPLANE-9090", 9090)] * is_controller + [("REPLICATION-9091", 9091)] * is_broker
    listening = [f"{name}://0.0.0.0:{port}" for name, port in internal]
    advertised = [f"{name}://{own}:{port}" for name, port in internal]
    protocols = [f"CONTROLPLANE-9090:{protocol}"] + [f"REPLICATION-9091:{protocol}"] * is_broker
    for name, port, address in listeners if is_broker else ():
        listening.append(f"{name}://0.0.0.0:{port}")
        advertised.append(f"{name}://{address}")
        protocols.append(f"{name}:PLAINTEXT")
    known = providers or {
        "strimzienv.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "strimzienv.param.allowlist.pattern": ".*",
        "strimzisecrets.class": "io.strimzi.kafka.KubernetesSecretConfigProvider",
        "strimzidir.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
        "strimzidir.param.allowed.paths": home,
    }
    sections: dict[str, Mapping[str, object]] = {
        "Node ID": {"node.id": node_id},
        "Rack ID (Topology label)": {"broker.rack": f"${{strimzidir:{home}/init:rack.id}}"} if is_broker else {},
        "KRaft configuration": {
            "process.roles": roles,
            "controller.listener.names": "CONTROLPLANE-9090",
            "controller.quorum.voters": quorum,
        },
        "Common listener configuration": {
            "listener.security.protocol.map": ",".join(protocols),
            "listeners": ",".join(listening),
            **({"inter.broker.listener.name": "REPLICATION-9091"} if is_broker else {}),
            "advertised.listeners": ",".join(advertised),
            "sasl.enabled.mechanisms": "",
            "ssl.endpoint.identification.algorithm": "HTTPS",
        },
        "Config providers": {
            "config.providers": ",".join(dict.fromkeys(key.partition(".")[0] for key in known)),
            **{f"config.providers.{key}": value for key, value in known.items()},
        },
        "User provided configuration": {
            key: str(value).lower() if isinstance(value, bool) else value for key, value in config.items()
        },
        "Kafka message logs configuration": {"log.dirs": f"{log_directory}/kafka-log{node_id}"},
        "KRaft metadata log dir configuration": {"metadata.log.dir": f"{log_directory}/kafka-log{node_id}"},
    }
    if is_broker and protocol == "SSL":
        secrets = {"keystore.certificate.chain": "crt", "keystore.key": "key"}
        sections["Replication listener"] = {
            f"listener.name.replication-9091.ssl.{key}": value
            for key, value in {
                "truststore.certificates": "${strimzisecrets:kafka/my-cluster-trustbundle:cluster-ca.crt}",
                "truststore.type": "PEM",
                **{key: f"${{strimzisecrets:kafka/{this}:{this}.{end}}}" for key, end in secrets.items()},
                "keystore.type": "PEM",
                "client.auth": "required",
            }.items()
        }
    rule = "#" * 10
    return "".join(
        f"{rule}\n# {title}\n{rule}\n" + "".join(f"{key}={value}\n" for key, value in keys.items()) + "\n"
        for title, keys in sections.items()
        if keys
    )
