"""What of the process's memory is for frames: all that the other parts may take by their settings is taken off."""

from dataclasses import dataclass

from agent.settings.agent_settings import AgentSettings

MIB = 1024 * 1024
PROCESS_BYTES = 160 * MIB
"""The interpreter, its libraries, stacks of threads, librdkafka's buffers."""
INDEX_BYTES = 96 * MIB
"""Link index (250,000 batches), batches found again for followers far behind (100,000), partitions."""
PUBLICATION_BYTES = 64 * MIB
"""Metadata that waits for its topic."""
CLIENT_BYTES = 128 * 1024
"""What is buffered for a client's connection at most (`gateway.byte_relay`): a chunk and what waits, each way."""
CLIENT_FRAMES_BYTES = 52 * MIB
"""Frames of clients whose records go by object storage, three times: to brokers, from brokers, and here. And once more
what the write path compares with logs. An answer of consumers' default `fetch.max.bytes` fits in.
"""
ADMIN_FRAMES_BYTES = 16 * MIB
"""Frames of admin tools, twice: to the broker, and from it."""
HELD_FRAMES_BYTES = 16 * MIB
"""Where answers are held, twice: requests of the own zone's clients, and answers to all whose frames are not routed, as
they pass. A larger answer of a consumer passes alone: it waits for others' to be sent, which takes 30 seconds at most.
"""
HELD_ANSWERS_BYTES = 8 * MIB
"""Answers that wait for records to be stored: to producers, and what is behind them on a connection."""
MIN_FRAME_BYTES = 64 * MIB
"""In all: fetches of some megabytes side by side."""


def other_bytes(settings: AgentSettings) -> int:
    """What is not for frames."""
    uploads = settings.log_manager.combiner_thread_pool_size
    upload_bytes = settings.log_manager.combiner_task_upload_bytes
    # At this agent as the gateway, and as many at the broker's side.
    client_bytes = 2 * settings.gateway.max_connections * CLIENT_BYTES if settings.gateway.enable else 0
    by_objects = settings.gateway_produce.enable or settings.gateway.fetch_links_enable
    client_bytes += 3 * CLIENT_FRAMES_BYTES if settings.gateway.enable and by_objects else 0
    client_bytes += 2 * ADMIN_FRAMES_BYTES if settings.gateway.enable and settings.gateway.admin_listener else 0
    client_bytes += CLIENT_FRAMES_BYTES if settings.gateway.enable and settings.gateway_produce.adopt_enable else 0
    holds = settings.gateway.enable and settings.gateway.durable_listener
    client_bytes += 2 * HELD_FRAMES_BYTES + HELD_ANSWERS_BYTES if holds else 0
    archive_bytes = 2 * settings.archive.object_max_bytes if settings.archive.enable else 0
    return (
        PROCESS_BYTES
        + INDEX_BYTES
        + PUBLICATION_BYTES
        + settings.log_manager.combiner_queue_bytes
        + 2 * (uploads + 1) * upload_bytes  # in pieces, and in one piece for the store's client; one of the backlog
        + settings.hydration.cache_bytes
        + settings.hydration.cache_bytes // 4  # reads for a broker that is far behind
        + archive_bytes
        + client_bytes
    )


@dataclass(frozen=True, slots=True)
class FrameBytes:
    """What the frames of all connections together may hold, by the way that they go."""

    requests: int
    """From other agents to the local broker."""
    to_followers: int
    from_leaders: int


def frame_bytes(settings: AgentSettings) -> FrameBytes:
    """A quarter for requests, which are small, the rest for responses."""
    eighth = (settings.process.memory_bytes - other_bytes(settings)) // 8
    return FrameBytes(2 * eighth, 3 * eighth, 3 * eighth)
