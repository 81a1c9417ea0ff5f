"""Finds free TCP ports, as one block below the range from which the kernel takes ports of outgoing connections.

A port of the ephemeral range may be free now and be some client's source port when the broker starts again.
"""

import random
import socket
from collections.abc import Callable
from typing import Final

LOWEST_PORT: Final = 12_000
HIGHEST_PORT: Final = 29_900
ATTEMPTS: Final = 200


class NoFreePortsError(Exception):
    """No block of free ports was found."""


def port_is_free(port: int) -> bool:
    """Return whether nothing listens on `port` on any of this machine's addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: remains of an earlier, closed connection do not prevent listening there.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - bound for an instant, never listening
        except OSError:
            return False
    return True


def free_port_block(size: int, chooser: random.Random, is_free: Callable[[int], bool] = port_is_free) -> range:
    """Return `size` neighbouring ports that are free on every address.

    Raises NoFreePortsError.
    """
    for _ in range(ATTEMPTS):
        first = chooser.randrange(LOWEST_PORT, HIGHEST_PORT - size)
        block = range(first, first + size)
        if all(is_free(port) for port in block):
            return block
    raise NoFreePortsError(f"no {size} neighbouring free ports between {LOWEST_PORT} and {HIGHEST_PORT}")
