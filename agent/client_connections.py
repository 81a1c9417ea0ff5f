"""Shows the connections of the broker's clients, as the host's kernel knows them.

`NETLINK_SOCK_DIAG` (sock_diag(7), `linux/inet_diag.h`) lists the sockets of this network namespace: how many bytes each
holds that its owner has not read, and how many ever came, and when. It takes no rights. What ss(8) prints comes from
there.
"""

import errno
import socket
import struct
from collections.abc import Collection, Hashable, Iterator
from itertools import product
from typing import Final

from rlm.write_path.commit.producers import ClientConnection, Connections

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST_AND_DUMP: Final = 0x301
_ERROR, _DONE = 2, 3
_ESTABLISHED, _LISTEN = 1, 10
_INFO: Final = 2
"""The attribute INET_DIAG_INFO: a tcp_info."""
_HEADER: Final = struct.Struct("=IHHII")
"""struct nlmsghdr: size, type, flags, sequence, sender."""
_QUERY: Final = struct.Struct("=BBBxI 2s 46x")
"""struct inet_diag_req_v2: family, protocol, extensions, states; of the addresses only the local port."""
_SOCKET: Final = struct.Struct("=xBxx 36s 16x I 12x")
"""struct inet_diag_msg: state, ports and addresses, unread bytes."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_TCP_INFO: Final = struct.Struct("=44x I 4x I 72x Q")
"""tcpi_last_data_sent and tcpi_last_data_recv in ms, and tcpi_bytes_received, which Linux has since 4.1."""


class ClientConnections:
    """Samples the connections to some ports of this network namespace."""

    def __init__(self, ports: Collection[int]) -> None:
        self._ports = tuple(ports)

    def sample(self) -> Connections | None:
        """Return the established connections, or None if nobody here listens at a port, or the kernel tells nothing.

        It takes about 0.5 ms, and blocks.
        """
        connections, is_listening = dict[Hashable, ClientConnection](), False
        try:
            for family, port in product((socket.AF_INET, socket.AF_INET6), self._ports):
                for message in _dump(family, port):
                    state, addresses, unread = _SOCKET.unpack_from(message)
                    is_listening |= state == _LISTEN
                    if state == _ESTABLISHED:
                        sent_ms, received_ms, received = _TCP_INFO.unpack_from(
                            _attribute(message[_SOCKET.size :], _INFO)
                        )
                        one = ClientConnection(received, unread, received_ms / 1000, sent_ms / 1000)
                        connections[addresses] = one
        except (OSError, struct.error):
            return None
        return connections if is_listening else None


def _dump(family: int, port: int) -> Iterator[memoryview]:
    """Yield what the kernel says of each connected or listening socket. Raises OSError."""
    states, extensions = 1 << _ESTABLISHED | 1 << _LISTEN, 1 << _INFO - 1
    query = _QUERY.pack(family, socket.IPPROTO_TCP, extensions, states, port.to_bytes(2, "big"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(_HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 1, 0) + query)
        while True:
            received = memoryview(kernel.recv(1 << 16))
            while received:
                size, kind, *_ = _HEADER.unpack_from(received)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(errno.EOPNOTSUPP, "the kernel has no sock_diag")
                yield received[_HEADER.size : size]
                received = received[_aligned(size) :]


def _attribute(attributes: memoryview, kind: int) -> memoryview:
    """Return the content of the attribute of this kind; empty if there is none."""
    while attributes:
        size, its_kind = _ATTRIBUTE.unpack_from(attributes)
        if its_kind == kind:
            return attributes[_ATTRIBUTE.size : size]
        attributes = attributes[_aligned(size) :]
    return attributes


def _aligned(size: int) -> int:
    return (size + 3) & ~3
