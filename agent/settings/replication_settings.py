"""The settings of links and of reading them. See `agent.settings.setting_types`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from agent.settings.setting_types import Seconds, Section, keyed


class LinkSettings(Section, alias_generator=keyed("remote.wal.link.")):
    """When followers get links, and how long responses wait for them."""

    latency_bound_s: Seconds = Field(
        20,
        ge=1,
        description="For topics with the policy latency and no bound of their own: links are used while upload and "
        "read together take no longer.",
    )
    upload_wait_max_s: Seconds | None = Field(
        None,
        ge=1,
        description="For topics with the policy cost: how long what was appended may wait for more to share an "
        "object. Links are used where the rate brings what pays in such a time, and records come to followers by so "
        "much later at most. Keep it, with a PUT, below remote.wal.link.wait.max.ms. Default: 100 at the prices of S3 "
        "Express One Zone, 250 at all others, whose requests cost some four times as much.",
    )
    wait_max_s: Seconds = Field(
        500,
        ge=1,
        description="How long a follower's fetch waits for its links before the bytes go inline. Keep it far below "
        "replica.lag.time.max.ms.",
    )
    gather_max_s: Seconds = Field(
        25,
        ge=0,
        description="For how long the broker is asked to gather what a follower's fetch gets, while much is uploaded: "
        "the request's max wait and min bytes are set accordingly. 0: requests stay as they are.",
    )
    watermark_wait_s: Seconds = Field(
        0,
        ge=0,
        description="For how long the broker may let a follower wait that has more than the high watermark which it "
        "was told of, so that consumers there see records sooner than with the next ones, of topics with remote WAL. "
        "0: as long as it asks for.",
    )
    digest: Literal["crc32c", "sha256"] = Field(
        "crc32c",
        description="What proves that what object storage holds is what the leader's agent stored. sha256: to this "
        "agent also where others can write the bucket. Links and the metadata of what is uploaded then have a "
        "SHA-256, and records of leaders whose agents are not set so go inline. Once all agents know it.",
    )
    remote_followers: int | None = Field(
        None,
        ge=1,
        description="How many followers a partition has in other zones, for the break-even size of an object: an "
        "override. By default those count that the cluster's metadata and broker.rack tell, as they are now.",
    )
    prices_file: Path | None = Field(
        alias="remote.wal.prices.file",
        default=None,
        description="A price table in TOML, in the place of the one that comes with the project.",
    )
    prices_network: str | None = Field(
        alias="remote.wal.prices.network",
        default=None,
        description="The section of the price table that says what zone borders cost. Default: that of the store's "
        "provider: network_gcp, network_azure, and network for all others.",
    )

    @property
    def takes_digests(self) -> bool:
        """Whether CRC32C alone is not sufficient."""
        return self.digest == "sha256"


class HydrationSettings(Section, alias_generator=keyed("remote.wal.hydration.")):
    """Settings of reading linked ranges."""

    thread_pool_size: int = Field(
        8,
        ge=1,
        le=256,
        description="Threads that read ranges of objects for the local broker; small ones of S3 take none.",
    )
    cache_bytes: int = Field(
        128 * 1024 * 1024, ge=1024 * 1024, description="Bytes of objects that are cached or being read."
    )
    timeout_s: Seconds = Field(
        1000, ge=1, description="How long a response waits for object storage before its bytes are asked for inline."
    )
    share_min_readers: int = Field(
        2,
        ge=0,
        description="From so many agents of a zone on that read an object, one of them reads it from the store for "
        "all, and gives the others their ranges over connections within the zone. 0: each agent reads for itself. "
        "Zones are those of broker.rack. Nothing changes where a zone has one broker.",
    )


class CatchUpSettings(Section, alias_generator=keyed("remote.wal.catch.up.")):
    """Links for followers that are far behind, and their reads."""

    read_ahead_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1024 * 1024,
        description="How far the agents read ahead of a follower that is far behind, for each of its connections.",
    )
    fetch_max_bytes_per_second: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="What is read from objects at most while the local broker is far behind (as KIP-956's key for "
        "fetches). What is beyond waits for half of remote.wal.hydration.timeout.ms, and is then asked for inline.",
    )
    thread_pool_size: int = Field(
        4, ge=1, le=256, description="Threads that read ranges of objects while the local broker is far behind."
    )
