"""The alerts on the scheduled checks, by the units under a systemd that runs, a real node exporter and Prometheus."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from local_cluster.polling import wait_until
from tests.cluster.prometheus import PROMETHEUS, hasty_rules
from tests.package.booted_systemd import PATIENCE_S, BootedSystemd, why_not
from tests.package.test_units_run import host

__all__ = ["host"]

NODE_EXPORTER = shutil.which("prometheus-node-exporter")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(bool(why := why_not()), reason=why),
    pytest.mark.skipif(
        PROMETHEUS is None or NODE_EXPORTER is None,
        reason="not here: Debian's packages prometheus and prometheus-node-exporter",
    ),
    pytest.mark.timeout(900),
]
TIMER, SERVICE = "remote-wal-verify.timer", "remote-wal-verify.service"
BELOW = Path("/run/alerts")
EXPORTER_AT, PROMETHEUS_AT = "127.0.0.1:9101", "127.0.0.1:9095"
CONFIGURATION = {
    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
    "rule_files": [str(BELOW / "alerts.yml")],
    "scrape_configs": [{"job_name": "hosts", "static_configs": [{"targets": [EXPORTER_AT]}]}],
}


def test_a_check_that_never_runs_and_one_that_fails(host: BootedSystemd) -> None:
    # the timer is there and its time does not come -> it comes: the check finds no broker -> it finds all well
    watch(host)
    expect(host, "RemoteWalCheckOverdue", fires=True)
    drop_in(host, TIMER, "[Timer]\nOnActiveSec=0\nRandomizedDelaySec=0\n")
    host.run("systemctl", "restart", TIMER)
    expect(host, "RemoteWalCheckOverdue", fires=False)
    expect(host, "RemoteWalCheckFailed", fires=True)
    assert '"exit_code": 3' in "\n".join(str(line["MESSAGE"]) for line in host.journal(SERVICE)), "as the runbook says"
    drop_in(host, SERVICE, "[Service]\nExecStart=\nExecStart=/bin/true\n")
    host.run("systemctl", "start", SERVICE)
    expect(host, "RemoteWalCheckFailed", fires=False)
    assert not {"RemoteWalCheckFailed", "RemoteWalCheckOverdue"} & firing(host)


def watch(host: BootedSystemd) -> None:
    rules = hasty_rules(window_s=15)
    assert "time() - 3 * 86400" in rules
    write(host, BELOW / "alerts.yml", rules.replace("time() - 3 * 86400", "time() - 600"))
    write(host, BELOW / "prometheus.yml", json.dumps(CONFIGURATION))  # which is YAML
    exporter = ("--collector.disable-defaults", "--collector.systemd", "--collector.systemd.private")
    host.run(
        *("systemd-run", "--unit=checks-exporter", str(NODE_EXPORTER), *exporter, f"--web.listen-address={EXPORTER_AT}")
    )
    host.run(
        *("systemd-run", "--unit=checks-prometheus", str(PROMETHEUS), f"--config.file={BELOW / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={BELOW / 'data'}", f"--web.listen-address={PROMETHEUS_AT}"),
    )


def write(host: BootedSystemd, path: Path, text: str) -> None:
    host.run("mkdir", "-p", str(path.parent))
    host.run("sh", "-c", f"printf %s {shlex.quote(text)} > {path}")


def drop_in(host: BootedSystemd, unit: str, text: str) -> None:
    write(host, Path(f"/etc/systemd/system/{unit}.d/test.conf"), text)
    host.run("systemctl", "daemon-reload")


def firing(host: BootedSystemd) -> set[str]:
    told = host.run("curl", "--silent", f"http://{PROMETHEUS_AT}/api/v1/alerts", expect=None)
    alerts = json.loads(told)["data"]["alerts"] if told else []
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def expect(host: BootedSystemd, name: str, *, fires: bool) -> None:
    wait_until(lambda: (name in firing(host)) is fires, f"{name} {'fires' if fires else 'is quiet'}", PATIENCE_S)
