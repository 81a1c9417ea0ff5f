"""Certificates that end soon are told before others refuse them."""

import datetime
import math
from pathlib import Path

from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from agent.settings.agent_settings import AgentSettings
from agent.settings_file import agent_settings
from agent.tls.certificates import CertificateWatch, certificate_stores, days_left
from agent.tls.key_stores import Store
from kafka_log.broker_files.server_properties import parse_broker_properties
from local_cluster.security.authority import Authority
from tests.agent.test_broker_tls import in_pkcs12

DAY_MS = 86_400_000
BEGIN_MS = int(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp() * 1000)
KEY = "remote.wal.agent.ssl.certificate.file"


def test_days_are_counted_until_the_first_certificate_ends_and_of_authorities_until_the_last(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    long = authority.tls_for("a", life=datetime.timedelta(days=90)).certificate_file
    short = authority.tls_for("b", life=datetime.timedelta(days=30)).certificate_file
    both = tmp_path / "both.pem"
    both.write_bytes(long.read_bytes() + short.read_bytes())
    assert days_left(Store(KEY, both), BEGIN_MS + DAY_MS // 2) == 29.5
    assert days_left(Store("remote.wal.agent.ssl.ca.file", both), BEGIN_MS) == 90
    assert days_left(Store("ssl.truststore.location", both), BEGIN_MS) == 90
    assert days_left(Store(KEY, short), BEGIN_MS + 31 * DAY_MS) == -1


def test_each_certificate_that_a_key_can_name_is_looked_at() -> None:
    keys = [key for key in AgentSettings.documented() if key.endswith((".certificate.file", ".ca.file"))]
    of_broker = [key for key in keys if key.startswith("remote.wal.agent.broker.")]  # where the broker speaks TLS
    broker = parse_broker_properties(
        {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:1"}, Path("server.properties")
    )
    stores = certificate_stores(broker, AgentSettings.model_validate(dict.fromkeys(keys, "/file")))
    assert sorted([*stores, *of_broker]) == sorted(keys)
    assert len(stores) > 5


def test_the_brokers_own_stores_are_looked_at_where_the_agent_shows_and_trusts_them(tmp_path: Path) -> None:
    files = Authority(tmp_path).tls_for("broker-1", life=datetime.timedelta(days=30))
    keys = in_pkcs12(files)
    raw = {"node.id": "1", "listeners": "WAL://127.0.0.1:19901", "inter.broker.listener.name": "WAL", **keys}

    def stores(protocol: str, **more: str) -> dict[str, float]:
        broker = parse_broker_properties(
            {**raw, "listener.security.protocol.map": f"WAL:{protocol}", **more}, tmp_path / "server.properties"
        )
        found = certificate_stores(broker, agent_settings(broker, broker.path))
        return {key: days_left(store, BEGIN_MS) for key, store in found.items()}

    assert stores("SASL_SSL") == {"ssl.keystore.location": 30, "ssl.truststore.location": 36_500}
    assert stores("SASL_PLAINTEXT") == {}
    key = "remote.wal.agent.broker.ssl"
    own = {f"{key}.certificate.file": str(files.certificate_file), f"{key}.key.file": str(files.key_file)}
    assert stores("SSL", **own) == {f"{key}.certificate.file": 30, "ssl.truststore.location": 36_500}


def test_one_that_ends_soon_is_told_until_a_new_one_is_there(tmp_path: Path) -> None:
    authority, now_ms = Authority(tmp_path), BEGIN_MS + 10 * DAY_MS
    file = authority.tls_for("a", life=datetime.timedelta(days=30)).certificate_file
    registry = CollectorRegistry()
    watch = CertificateWatch(registry, {KEY: Store(KEY, file)}, lambda: now_ms)

    def looked() -> tuple[list[str], float | None, int]:
        with capture_logs() as log:
            watch.look()
        return watch.soon, registry.get_sample_value("remote_wal_certificate_days_left", {"key": KEY}), len(log)

    assert looked() == ([f"{KEY}: {file} expires in 20.0 days"], 20, 1)
    now_ms += 21 * DAY_MS
    assert looked() == ([f"{KEY}: {file} has expired"], -1, 1)
    authority.tls_for("a", life=datetime.timedelta(days=60))
    assert looked() == ([], 29, 0)
    file.write_text("no certificate")
    soon, days, _ = looked()
    assert soon == [f"{KEY}: {file} cannot be read as certificates"]
    assert days is not None
    assert math.isnan(days)
