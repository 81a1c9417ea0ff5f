"""Identifies the release, its commit, and the versions that it speaks and writes."""

import asyncio
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

DISTRIBUTION: Final = "remote-wal"
UNKNOWN: Final = "unknown"
_ROOT: Final = Path(__file__).resolve().parent.parent
_GIT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Release:
    """The version, commit and environment that support asks an operator for."""

    version: str
    commit: str
    """`unknown` if it was built neither from a checkout nor from a sdist of one."""


def this_release() -> Release:
    """Return the running release. In a checkout it runs git, so call it where that wait is harmless."""
    return Release(version(DISTRIBUTION), _commit(_ROOT) or UNKNOWN)


async def tell_release(registry: CollectorRegistry) -> None:
    """Set the release metric once the release is known."""
    info = build_info(registry)
    release = await asyncio.to_thread(this_release)
    info.labels(release.version, release.commit).set(1)


def build_info(registry: CollectorRegistry) -> Gauge:
    """Return a gauge whose value is 1 and whose labels have the release."""
    return Gauge(
        "remote_wal_build_info", "Which release the agent is, of which commit", ["version", "commit"], registry=registry
    )


def agent_info(registry: CollectorRegistry) -> Gauge:
    """Return a gauge whose value is 1 and whose labels identify the agent, for joins with its other metrics."""
    labels = ["cluster", "zone", "broker"]
    return Gauge("remote_wal_agent_info", "Whose agent it is: cluster id, zone, broker id", labels, registry=registry)


def _commit(root: Path) -> str:
    told = root / "commit.txt"
    if told.is_file():
        return told.read_text().strip()
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip()


def version_lines() -> list[str]:
    """Describe the release, and the versions of protocol and formats, as lines for people."""
    from metadata_topic.records import record_fields
    from metadata_topic.store.snapshots import snapshot
    from plugin.format.combined_segment import VERSIONS
    from replication.wire.fetch_frame import MAX_FETCH_VERSION, TOPIC_ID_VERSION
    from replication.wire.peer_protocol import PROTOCOL_VERSION, PeerCapabilities

    release = this_release()
    understood = ", ".join((one.name or "").lower() for one in PeerCapabilities)
    return [
        f"{DISTRIBUTION} {release.version}",
        f"commit: {release.commit}",
        f"between agents: version {PROTOCOL_VERSION} ({understood})",
        f"linked fetches: versions {TOPIC_ID_VERSION} to {MAX_FETCH_VERSION}",
        f"combined segments: versions {', '.join(map(str, VERSIONS))}",
        f"metadata records: versions {record_fields.FORMAT_VERSION}, {record_fields.DIGEST_VERSION}",
        f"metadata snapshots: version {snapshot.FORMAT_VERSION}",
    ]
