"""The settings of links and of reading them. See `agent.settings.setting_types`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from agent.settings.setting_types import Seconds, Section, keyed
from plugin.prices import EXPRESS


class LinkSettings(Section, alias_generator=keyed("remote.wal.link.")):
    """When followers get links, how long responses wait for them, and how they are read."""

    latency_bound_s: Seconds = Field(
        500,
        ge=1,
        description="By how much links may hold records back at producers, for topics with the policy cost and no "
        "bound of their own.",
    )
    upload_wait_max_s: Seconds | None = Field(
        None,
        ge=1,
        description="For topics with the policy cost: how long records may wait for more to share an object. "
        "Followers and consumers see them so much later at most. Keep it, with a PUT, below "
        "remote.wal.link.wait.max.ms. Default: 100 at the prices of S3 Express, else 250.",
    )
    wait_max_s: Seconds = Field(
        500,
        ge=1,
        description="How long a follower's fetch waits for its links before the bytes go inline. Keep it far below "
        "replica.lag.time.max.ms.",
    )
    watermark_wait_s: Seconds = Field(
        0,
        ge=0,
        description="How long the broker may keep a follower waiting that has not heard of the newest high "
        "watermark. Small values (2) let consumers in its zone see records sooner. 0: as long as the follower asks.",
    )
    digest: Literal["crc32c", "sha256"] = Field(
        "crc32c",
        description="What proves that objects hold what the leader's agent stored. sha256 protects also if others "
        "can write the bucket. Set it on all agents; records of leaders without it go inline.",
    )
    pack_enable: bool = Field(
        alias="remote.wal.pack.enable",
        default=True,
        description="Whether messages to agents of other zones are packed by zstd, records of all topics among them. "
        "A topic can be left out by the same key. Both agents must have it on.",
    )
    prices_file: Path | None = Field(
        alias="remote.wal.prices.file",
        default=None,
        description="A price table in TOML instead of plugin/prices.toml.",
    )

    hydration_timeout_s: Seconds = Field(
        alias="remote.wal.hydration.timeout.ms",
        default=1000,
        ge=1,
        description="How long a response waits for object storage before its bytes are asked for inline.",
    )
    catch_up_max_bytes_per_second: int = Field(
        alias="remote.wal.catch.up.fetch.max.bytes.per.second",
        default=64 * 1024 * 1024,
        ge=1024,
        description="What is read from objects at most while the local broker is far behind; the rest goes inline.",
    )

    def upload_wait_at(self, price_section: str) -> float:
        """Return how many seconds records may wait for more to share an object, at this store's prices."""
        return self.upload_wait_max_s or (0.1 if price_section == EXPRESS else 0.25)

    @property
    def takes_digests(self) -> bool:
        """Whether links carry SHA-256 digests besides CRC32C."""
        return self.digest == "sha256"
