"""A real Prometheus beside a cluster, with the project's rules and board, in the time that a test has."""

import json
import random
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

from local_cluster.cluster import LocalCluster
from local_cluster.layout import free_port_block
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec

ROOT = Path(__file__).parents[2]
PROMETHEUS = shutil.which("prometheus")
PATIENCE_S = 120.0
_TIMEOUT_S = 10.0
_LONGER = re.compile(r"(?<=\[)\d+[mhd](?=\])|(?<=offset )\d+[mhd]")


def hasty_rules(window_s: int = 20) -> str:
    """The project's alerts with a second for each `for`, and an outage of seconds taken for one of minutes.

    Ranges and offsets are cut to `window_s`: for so long an alert by a counter outlives its cause.
    """
    text = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text()
    text = re.sub(r"^( +for: )\d+[mhd]$", r"\g<1>1s", text, flags=re.MULTILINE)
    text = _LONGER.sub(f"{window_s}s", text)
    lag = "remote_wal_oldest_unstored_seconds > 300"
    assert lag in text
    return text.replace(lag, "remote_wal_oldest_unstored_seconds > 5")


def queries_of_the_board() -> Iterator[tuple[str, str]]:
    """Title and expression of each query, filled in as Grafana does it for all agents."""
    board: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "remote-wal.json").read_text())
    asked = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]
    asked += [(one["name"], one["expr"]) for one in board["annotations"]["list"]]
    for title, expression in asked:
        filled = expression.replace("$__rate_interval", "15s").replace("$__range", "1m").replace("$instance", ".*")
        assert "$" not in filled, f"{title}: what Grafana fills in that this does not: {filled}"
        yield title, filled


class Prometheus:
    """Asks all agents of the cluster every second. From `with` to its end."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        assert PROMETHEUS is not None
        directory.mkdir()
        (directory / "alerts.yml").write_text(hasty_rules())
        targets = [cluster.layout.agent_http_address(one) for one in cluster.broker_ids]
        jobs = [{"job_name": "remote-wal", "static_configs": [{"targets": targets}]}]
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(directory / "alerts.yml")],
            "scrape_configs": jobs,
        }
        (directory / "prometheus.yml").write_text(json.dumps(configuration))  # which is YAML
        self._address = f"127.0.0.1:{free_port_block(1, random.SystemRandom())[0]}"
        command = (
            PROMETHEUS,
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={self._address}",
        )
        files = (directory / "prometheus.log", directory / "prometheus.pid")
        self._process = ManagedProcess(ProcessSpec("prometheus", command, *files, directory))

    def __enter__(self) -> Self:
        self._process.start()
        wait_until(self._is_ready, "Prometheus is ready", PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def firing(self) -> set[str]:
        alerts = self._asked("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def expect_firing(self, *names: str) -> None:
        """Each of these fires, now or soon. A failure tells what fired."""
        fired: set[str] = set()

        def have_fired() -> bool:
            fired.update(self.firing())
            return set(names) <= fired

        _wait(have_fired, f"{', '.join(names)} fires", fired)

    def expect_quiet(self) -> None:
        """No alert fires, or that is so soon. A failure tells which does."""
        firing: set[str] = set()

        def is_quiet() -> bool:
            firing.clear()
            firing.update(self.firing())
            return not firing

        _wait(is_quiet, "each alert is quiet", firing)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples that an expression has now. Raises OSError for one that Prometheus refuses."""
        result: list[dict[str, Any]] = self._asked(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]
        return result

    def _asked(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{what}", timeout=_TIMEOUT_S) as answer:
            data: dict[str, Any] = json.load(answer)["data"]
        return data

    def _is_ready(self) -> bool:
        assert self._process.is_alive(), self._process.log_tail()
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _wait(condition: Callable[[], bool], description: str, firing: Collection[str]) -> None:
    try:
        wait_until(condition, description, PATIENCE_S, interval_s=0.1)
    except WaitTimeoutError as error:
        raise WaitTimeoutError(f"{error}; fires: {', '.join(sorted(firing)) or 'nothing'}") from None
