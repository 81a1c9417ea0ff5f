"""A listener of brokers at which each answer takes long, as from another continent; brokers themselves are as ever.

Clients that find the cluster there are told of it by the brokers, and so wait for all that they ask.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from local_cluster.broker_config import AgentsMode, ClusterSettings, server_properties
from local_cluster.layout import ClusterLayout

_NAME = "SLOW"
_CHUNK_BYTES = 1 << 16
_STARTED_S = 30.0


def proxy_address(layout: ClusterLayout, broker_id: int) -> str:
    """Where clients reach the broker slowly."""
    return f"127.0.0.1:{_proxy_port(layout, broker_id)}"


def slow_bootstrap_servers(layout: ClusterLayout) -> str:
    """All brokers, as clients name them that are to wait."""
    return ",".join(proxy_address(layout, one) for one in layout.broker_ids)


def with_slow_listener(layout: ClusterLayout, agents: AgentsMode) -> ClusterSettings:
    """Brokers listen beside their other listeners at a port that they do not tell anybody of, but for the proxy's."""
    settings = ClusterSettings(agents)
    overrides = {}
    for one in layout.broker_ids:
        plain = server_properties(layout, one, settings)
        own, told = f"127.0.0.1:{_own_port(layout, one)}", proxy_address(layout, one)
        overrides[one] = {
            "listeners": f"{plain['listeners']},{_NAME}://{own}",
            "advertised.listeners": f"{plain['advertised.listeners']},{_NAME}://{told}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},{_NAME}:PLAINTEXT",
        }
    return ClusterSettings(agents, broker_overrides=overrides)


@contextmanager
def slow_answers(layout: ClusterLayout, seconds: float) -> Iterator[None]:
    """Requests pass at once, and what brokers answer comes so much later."""
    begun, thread_loop = threading.Event(), asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        servers = [
            await asyncio.start_server(
                _relay_to(_own_port(layout, one), seconds), "127.0.0.1", _proxy_port(layout, one)
            )
            for one in layout.broker_ids
        ]
        begun.set()
        await ended.wait()
        for server in servers:
            server.close()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: thread_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="slow-answers", daemon=True)
    thread.start()
    try:
        assert begun.wait(_STARTED_S)
        yield
    finally:
        thread_loop.call_soon_threadsafe(ended.set)
        thread.join()


Relay = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _relay_to(port: int, seconds: float) -> Relay:
    async def relay(asking: asyncio.StreamReader, to_asking: asyncio.StreamWriter) -> None:
        answering, to_answering = await asyncio.open_connection("127.0.0.1", port)
        loop = asyncio.get_running_loop()

        async def ask() -> None:
            with suppress(ConnectionError):
                while chunk := await asking.read(_CHUNK_BYTES):
                    to_answering.write(chunk)
                    await to_answering.drain()
            to_answering.close()

        asked = asyncio.create_task(ask())
        try:
            while chunk := await answering.read(_CHUNK_BYTES):
                loop.call_later(seconds, to_asking.write, chunk)
        except ConnectionError:
            pass
        finally:
            asked.cancel()
            to_answering.close()
            loop.call_later(seconds, to_asking.close)

    return relay


def _own_port(layout: ClusterLayout, broker_id: int) -> int:
    """Of those that are kept free for clients of zones."""
    return layout.zone_port_base + broker_id


def _proxy_port(layout: ClusterLayout, broker_id: int) -> int:
    return layout.zone_port_base + len(layout.broker_ids) + broker_id
