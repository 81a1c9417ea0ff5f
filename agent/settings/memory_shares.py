"""Calculates the memory for frames: the process's memory without what other parts may take by their settings."""

from dataclasses import dataclass

from agent.settings.agent_settings import AgentSettings

MIB = 1024 * 1024
PROCESS_BYTES = 160 * MIB
"""The interpreter, its libraries, stacks of threads, librdkafka's buffers."""
INDEX_BYTES = 96 * MIB
"""Link index (250,000 batches), batches found again for followers far behind (100,000), partitions."""
QUEUE_BYTES = 64 * MIB
"""Bytes in remoteSegmentQ at most, besides those that are being uploaded (guessed)."""
PUBLICATION_BYTES = 64 * MIB
"""Metadata that waits for its topic."""
CLIENT_BYTES = 128 * 1024
"""What a client's connection and the one that continues it receive into, each 64 KiB."""
CLIENT_FRAMES_BYTES = 52 * MIB
"""Frames of clients of other zones' brokers. Counted three times (to brokers, from brokers, and here), and
once more for what the write path compares with logs. An answer of consumers' default `fetch.max.bytes` fits in."""
HELD_FRAMES_BYTES = 16 * MIB
"""If answers are held, counted twice: requests of the own zone's clients, and answers to all whose frames are not
routed, as they pass. A larger answer of a consumer passes alone: it waits for others to be sent, which takes at most 30
seconds."""
HELD_ANSWERS_BYTES = 8 * MIB
"""Answers that wait for records to be stored: those to producers, and those behind them on a connection."""
ARCHIVE_OBJECT_MAX_BYTES = 64 * MIB
"""The largest archive object, which is held twice. At most 4096 runs fit in an object's record (guessed)."""
BOOTSTRAP_BYTES = 8 * MIB
"""Requests of clients that use one address for all zones, and as much for the answers."""
SERVED_BYTES = 64 * MIB
"""Record bytes that the gateway holds, of all brokers together, to answer consumers."""
MIN_FRAME_BYTES = 64 * MIB
"""The total minimum: fetches of some megabytes side by side."""


_READ_QUARTERS = 5
"""Quarters of the cache that objects take: all of them, and one for a broker that is far behind."""


def cache_bytes(settings: AgentSettings) -> int:
    """Return how many bytes of objects may be cached or being read: a tenth of the memory (guessed)."""
    return settings.process.memory_bytes // 10


def other_bytes(settings: AgentSettings) -> int:
    """Return how many bytes of the memory are not for frames."""
    return _fixed_bytes(settings) + _READ_QUARTERS * cache_bytes(settings) // 4


def least_memory_bytes(settings: AgentSettings) -> int:
    """Return the memory that suffices for these settings."""
    return -(-(_fixed_bytes(settings) + MIN_FRAME_BYTES) * 40 // (40 - _READ_QUARTERS))


def _fixed_bytes(settings: AgentSettings) -> int:
    """Return the memory that is not for frames, and does not grow with the whole."""
    uploads = settings.log_manager.combiner_thread_pool_size
    upload_bytes = settings.log_manager.combiner_task_upload_bytes
    # For this agent as the gateway, and as many for the broker's side.
    client_bytes = 2 * settings.gateway.max_connections * CLIENT_BYTES if settings.gateway.enable else 0
    client_bytes += 3 * CLIENT_FRAMES_BYTES if settings.gateway.enable and settings.gateway.zone_listeners else 0
    client_bytes += 2 * BOOTSTRAP_BYTES if settings.gateway.enable and settings.gateway.bootstrap_listener else 0
    client_bytes += SERVED_BYTES if settings.gateway.fetch_serve_enable else 0
    client_bytes += CLIENT_FRAMES_BYTES if settings.gateway.enable and settings.gateway.produce_enable else 0
    holds = settings.gateway.enable and settings.gateway.durable_listener
    client_bytes += 2 * HELD_FRAMES_BYTES + HELD_ANSWERS_BYTES if holds else 0
    archive_bytes = 2 * ARCHIVE_OBJECT_MAX_BYTES if settings.archive.enable else 0
    return (
        PROCESS_BYTES
        + INDEX_BYTES
        + PUBLICATION_BYTES
        + QUEUE_BYTES
        + 2 * (uploads + 1) * upload_bytes  # in pieces, and in one piece for the store's client; one of the backlog
        + archive_bytes
        + client_bytes
    )


@dataclass(frozen=True, slots=True)
class FrameBytes:
    """The bytes of memory for frames of all connections together, by direction."""

    requests: int
    """Limits frames from other agents to the local broker."""
    to_followers: int
    from_leaders: int


def frame_bytes(settings: AgentSettings) -> FrameBytes:
    """Return the memory for frames: a quarter for requests, which are small, and the rest for responses."""
    eighth = (settings.process.memory_bytes - other_bytes(settings)) // 8
    return FrameBytes(2 * eighth, 3 * eighth, 3 * eighth)
