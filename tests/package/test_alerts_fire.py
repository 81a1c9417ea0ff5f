"""Each alert fires on what its cause makes of the metrics, and not on what a healthy agent tells. Prometheus judges.

promtool comes with Debian's package `prometheus`; without it these tests are skipped.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.package.bare_environment import ROOT
from tests.package.test_monitoring import RULES

PROMTOOL = shutil.which("promtool")
ON_HOST = 'job="remote-wal",instance="kafka-1"'


class Cause(NamedTuple):
    """Samples at even steps, in promtool's notation: `0x5` is six zeros, `1+2x5` rises, `_x5` is nothing five times."""

    series: str
    fires: str
    """What the cause makes of it; `quiet` is what is seen without."""
    quiet: str
    steps: int = 30
    """After how many to look."""
    step: str = "1m"


def counted(series: str, steps: int = 15) -> Cause:
    """A counter that is not there before it counts: one time is told, and later growth is told no less."""
    return Cause(series, f"_x10 1x{steps}", f"1x{steps + 10}", steps)


def fault(reason: str) -> Cause:
    return counted(f'remote_wal_faults_total{{reason="{reason}"}}')


def gauge(series: str, wrong: float = 1, right: float = 0, steps: int = 30) -> Cause:
    return Cause(series, f"{wrong}x{steps}", f"{right}x{steps}", steps)


LAST_RUN = "node_systemd_timer_last_trigger_seconds"
CAUSES: dict[str, list[Cause]] = {
    "RemoteWalAgentDown": [gauge(f"up{{{ON_HOST}}}", wrong=0, right=1)],
    "RemoteWalNotReady": [gauge("remote_wal_ready", wrong=0, right=1)],
    "RemoteWalPeerBypassed": [gauge("remote_wal_bypassed_peers")],
    "RemoteWalBypassFails": [fault("bypass_unreachable")],
    "RemoteWalFenced": [gauge("remote_wal_agent_fenced")],
    "RemoteWalStoreCeiling": [counted('remote_wal_store_requests_refused_total{kind="put"}')],
    "RemoteWalProducersRefused": [
        counted('remote_wal_gateway_durable_answers_total{outcome="timed_out"}', steps=12),
    ],
    "RemoteWalClientsTurnedAway": [
        counted('remote_wal_gateway_refused_total{reason="too_many_connections"}', steps=12),
    ],
    "RemoteWalObjectsMissing": [fault("hydration_not_found")],
    "RemoteWalWrongBytes": [fault("splice_refetch"), fault("inline_requested_corrupt")],
    "RemoteWalSegmentsLost": [Cause("remote_wal_lost_segments_total", "_x6 1x6", "1x10", 10, "1h")],
    "RemoteWalMetadataStalled": [fault("metadata_publication_stalled")],
    "RemoteWalMetadataInDoubt": [gauge('remote_wal_metadata_topic_in_doubt{reason="cut"}')],
    "RemoteWalRecordsMissing": [gauge("remote_wal_missing_offsets", wrong=17)],
    "RemoteWalRecordsHeld": [gauge("remote_wal_held_offsets", wrong=17)],
    "RemoteWalReportCritical": [gauge('remote_wal_report_findings_by_severity{severity="critical"}')],
    "RemoteWalUploadLag": [Cause("remote_wal_oldest_unstored_seconds", "0+60x30", "0x10 200x19")],
    "RemoteWalUploadsFail": [Cause('remote_wal_upload_failures_total{reason="timeout"}', "0+1x30", "0x10 1x19")],
    "RemoteWalBacklogStays": [Cause("remote_wal_backlog_offsets", "1000x150", "1000-10x99 0x50", 150)],
    "RemoteWalLinksPaused": [
        gauge('remote_wal_store_reads_paused{store="wal"}'),
        # A probe that succeeds now and then does not end it.
        Cause('remote_wal_store_reads_paused{store="archive"}', "1 1 0 1 1 0 1 1 0 1 1 0 1 1 0 1x20", "0x9 1 0x20"),
    ],
    "RemoteWalPauseForgotten": [gauge('remote_wal_links_paused{scope="all"}', steps=370)],
    "RemoteWalCertificateEnds": [
        gauge('remote_wal_certificate_days_left{certificate="agent"}', wrong=20, right=21, steps=70),
        Cause('remote_wal_certificate_days_left{certificate="agent"}', "NaN " * 71, "90x70", 70),
    ],
    "RemoteWalLoopIdle": [
        gauge('remote_wal_loop_idle_seconds{loop="publisher"}', wrong=901, right=900),
        gauge('remote_wal_loop_idle_seconds{loop="orphans"}', wrong=172_801, right=90_000),
    ],
    "RemoteWalPartFails": [counted('remote_wal_part_failures_total{part="http"}')],
    "RemoteWalDescriptorsRunOut": [Cause("remote_wal_descriptor_shortages_total", "0x9 1x20", "1x30", 20)],
    "RemoteWalPeersRefused": [
        Cause('remote_wal_faults_total{reason="peer_refused"}', "0+1x30", "0x9 1x19"),
        Cause('remote_wal_faults_total{reason="broker_tls"}', "0+1x30", "1x30"),
    ],
    "RemoteWalRequestsRefused": [counted('remote_wal_refused_requests_total{reason="unknown_api"}')],
    "RemoteWalMetadataWaits": [Cause("remote_wal_metadata_pending", "0+10x60", "0 50 40 30 20 10 0x60", 60)],
    "RemoteWalMetadataTopicSettings": [gauge("remote_wal_metadata_topic_problems")],
    "RemoteWalMetadataGaps": [
        Cause("remote_wal_metadata_gaps_total", "0x9 1x20", "0x30"),
        Cause("remote_wal_metadata_gaps_total", "_x9 1x20", "_x9 0x20"),  # it was away until now
    ],
    "RemoteWalHiddenTopics": [gauge("remote_wal_hidden_topics", steps=70)],
    "RemoteWalOrphansWait": [gauge("remote_wal_orphans_waiting", steps=70)],
    "RemoteWalOrphansNotSearched": [Cause("remote_wal_orphan_rounds_skipped_total", "0+1x30", "0x2 1x28", 30, "1h")],
    "RemoteWalDeletionsFail": [
        Cause('remote_wal_segment_deletion_failures_total{reason="timeout"}', "0+1x150", "0x9 1x140", 150)
    ],
    "RemoteWalCheckFailed": [
        gauge('node_systemd_unit_state{name="remote-wal-verify.service",state="failed",type="oneshot"}'),
    ],
    "RemoteWalCheckOverdue": [
        Cause(f'{LAST_RUN}{{name="remote-wal-verify.timer"}}', "0x120", "0+3600x120", 120, "1h"),
        Cause(f'{LAST_RUN}{{name="remote-wal-drill.timer"}}', "1x1100", "0x1100", 1100, "1h"),
    ],
}
"""By alert; what is asked of two metrics at once stands in `OF_SEVERAL`."""

CROSSINGS = 'remote_wal_dollars_total{of="crossings"}'
REQUESTS = 'remote_wal_dollars_total{of="requests"}'
STOCK = 'remote_wal_dollars_total{of="stock"}'
UNSAVED = f'remote_wal_topic_unsaved_bytes_total{{topic="orders",{ON_HOST}}}'
LINKED, INLINE = (
    f'remote_wal_topic_record_bytes_total{{topic="orders",path="{path}",{ON_HOST}}}' for path in ("linked", "inline")
)
OF_SEVERAL: dict[str, tuple[dict[str, str], dict[str, str], int, str]] = {
    "RemoteWalLosesMoney": (
        {CROSSINGS: "0+1x50", REQUESTS: "0+1x50", STOCK: "0+1.5x50"},
        {CROSSINGS: "0+1.5x50", REQUESTS: "0+0.04x50", STOCK: "0+1.5x50"},  # all inline, and what else is asked
        50,
        "1h",
    ),
    "RemoteWalTopicNotSaved": (
        {UNSAVED: "0+6e6x90", LINKED: "0+1e6x90", INLINE: "0+7e6x90"},
        {UNSAVED: "0+3e6x90", LINKED: "0+4e6x90", INLINE: "0+4e6x90"},
        90,
        "1m",
    ),
}
"""Series and values where it fires, where it is quiet, and when to look."""


def cases(step: str) -> list[dict[str, Any]]:
    """All that have this step, as promtool takes them."""
    single = [
        (name, {one.series: one.fires}, {one.series: one.quiet}, one.steps, one.step)
        for name, causes in CAUSES.items()
        for one in causes
    ]
    several = [(name, *case) for name, case in OF_SEVERAL.items()]
    return [
        case(name, series, f"{steps}{step[-1]}", step, fires)
        for name, wrong, right, steps, its_step in [*single, *several]
        if its_step == step
        for series, fires in ((wrong, True), (right, False))
    ]


def case(name: str, series: dict[str, str], at: str, step: str, fires: bool) -> dict[str, Any]:
    told = [{"labels": "{}", "value": 1}] if fires else []
    firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    return {
        "interval": step,
        "name": f"{name} {'fires' if fires else 'is quiet'} on {series}",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": at, "exp_samples": told}],
    }


def test_each_alert_has_a_cause_here() -> None:
    assert {rule["alert"] for rule in RULES} == CAUSES.keys() | OF_SEVERAL.keys()


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not there: Debian's package prometheus has it")
@pytest.mark.parametrize("step", ["1m", pytest.param("1h", marks=pytest.mark.thorough)])
def test_each_alert_fires_on_its_cause_and_not_without(tmp_path: Path, step: str) -> None:
    file = tmp_path / "alerts.test.yml"
    rules = str(ROOT / "deploy" / "prometheus" / "alerts.yml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": step, "tests": cases(step)}))
    judged = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert judged.returncode == 0, re.sub(r"\n\s*\n", "\n", judged.stdout + judged.stderr)
