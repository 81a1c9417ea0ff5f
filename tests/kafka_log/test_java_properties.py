"""Values that stand elsewhere, as Kafka's own providers have them."""

from pathlib import Path

import pytest

from kafka_log.broker_files.java_properties import ConfigProviderError, ResolvedProperties
from kafka_log.broker_files.server_properties import parse_broker_properties
from kafka_log.errors import BrokerPropertiesError

PACKAGE = "org.apache.kafka.common.config.provider"
PROVIDERS = {
    "config.providers": "file, dir,env,vault",
    "config.providers.file.class": f"{PACKAGE}.FileConfigProvider",
    "config.providers.dir.class": f"{PACKAGE}.DirectoryConfigProvider",
    "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider",
    "config.providers.vault.class": "com.example.VaultConfigProvider",
}
ENVIRONMENT = {"ZONE": "az1", "SECRET": "planted"}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "secrets.properties").write_text("password = pl\\u00e4nted\nother=ü\n", encoding="utf-8")
    (tmp_path / "password").write_text("of its own\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below/password").write_text("deeper")
    return tmp_path


def resolved(value: str, **parameters: str) -> str:
    given = {f"config.providers.{key}": text for key, text in parameters.items()}
    return ResolvedProperties({**PROVIDERS, **given, "key": value}, ENVIRONMENT)["key"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("${file:DIR/secrets.properties:password}", "plänted"),
        ("${file:DIR/secrets.properties:other}", "ü"),
        ("${dir:DIR:password}", "of its own"),
        ("[${dir:DIR:password}]", "[of its own\n]"),
        ("${dir:DIR/below:password}", "deeper"),
        ("${env:ZONE}", "az1"),
        ("${env::ZONE}", "az1"),
        ('x username="${env:ZONE}" password="${dir:DIR/below:password}";', 'x username="az1" password="deeper";'),
        (" without any\t ", "without any"),
        ("a${b}$c", "a${b}$c"),
    ],
)
def test_values_are_put_where_they_are_named(secrets: Path, value: str, found: str) -> None:
    assert resolved(value.replace("DIR", str(secrets))) == found


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${nobody:ZONE}", "config.providers names no provider 'nobody'"),
        ("${vault:path:key}", "com.example.VaultConfigProvider"),
        ("${env:NOT_SET}", "NOT_SET is not set"),
        ("${env:path:ZONE}", "a path"),
        ("${file:secret}", "a path is missing"),
        ("${file:DIR/secrets.properties:none}", "no key none"),
        ("${file:DIR/absent:none}", "No such file"),
        ("${dir:DIR/below:../password}", "no file ../password"),
        ("${dir:DIR:below}", "no file below"),
    ],
)
def test_what_no_provider_has_is_refused_by_its_key_and_without_values(secrets: Path, value: str, reason: str) -> None:
    with pytest.raises(ConfigProviderError) as caught:
        resolved(value.replace("DIR", str(secrets)))
    assert str(caught.value).startswith("key: ")
    assert reason in str(caught.value)
    assert "planted" not in str(caught.value)


def test_what_the_providers_parameters_leave_out_is_refused(secrets: Path) -> None:
    value, allowed = f"${{file:{secrets}/secrets.properties:other}}", {"file.param.allowed.paths": f"/etc,{secrets}"}
    assert resolved(value, **allowed) == "ü"
    with pytest.raises(ConfigProviderError, match=r"allowed\.paths"):
        resolved(value, **{"file.param.allowed.paths": f"{secrets}/below"})
    with pytest.raises(ConfigProviderError, match=r"allowed\.paths"):
        resolved(f"${{dir:{secrets}/below/..:password}}", **{"dir.param.allowed.paths": f"{secrets}/below"})
    assert resolved("${env:ZONE}", **{"env.param.allowlist.pattern": "Z.*"}) == "az1"
    with pytest.raises(ConfigProviderError, match="allowlist"):
        resolved("${env:SECRET}", **{"env.param.allowlist.pattern": "Z.*"})


def test_a_brokers_file_is_read_with_them_and_only_what_is_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RACK_OF_BROKER", "az7")
    raw = {
        **PROVIDERS,
        "node.id": "1",
        "listeners": "PLAINTEXT://:9092",
        "broker.rack": "${env:RACK_OF_BROKER}",
        "listener.name.client.sasl.jaas.config": "${vault:kafka:jaas}",
    }
    broker = parse_broker_properties(raw, Path("/server.properties"))
    assert broker.rack == "az7"
    assert "az7" not in repr(broker.raw)
    with pytest.raises(
        BrokerPropertiesError, match=r"/server\.properties: listener\.name\.client\.sasl\.jaas\.config: "
    ):
        broker.raw.get("listener.name.client.sasl.jaas.config", "the default")
