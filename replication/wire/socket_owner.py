"""Asks the kernel which user holds the other end of a local connection, by netlink (sock_diag(7)), for IPv4 and IPv6.

The question is for the one socket with the same two addresses in reverse order. Only an established socket counts: for
a closed one the kernel forgets the owner and reports root.
"""

import os
import socket
import struct

from replication.wire.peer_protocol import PeerRefusedError

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLMSG_ERROR, _NLM_F_REQUEST = 20, 2, 1
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port."""
_REQUEST = struct.Struct("=BBBxI")
"""inet_diag_req_v2, before its socket id: family, protocol, extensions, states."""
_PORTS = struct.Struct(">HH")
_ANY_INTERFACE, _NO_COOKIE = bytes(4), b"\xff" * 8
_ANSWER = struct.Struct("=BB2x 4s 44x 12x II")
"""inet_diag_msg: family, state, ports, and behind the rest of the id and three counters, uid and inode."""
_ADDRESS_BYTES, _ANSWER_BYTES, _TIMEOUT_S = 16, 4096, 1.0


class NotTheBrokerError(PeerRefusedError):
    """The connection's other end belongs to another user than the broker's, as far as the kernel says."""


def check_owner(accepted: socket.socket, uid: int) -> None:
    """Raise NotTheBrokerError if another user holds the peer's end, or if the kernel does not say."""
    try:
        owner = _owner_of_peer(accepted)
    except OSError as error:
        raise NotTheBrokerError(f"the kernel does not say who connected: {error.strerror or error}") from error
    if owner != uid:
        raise NotTheBrokerError(f"a process of user {owner} connected, and only user {uid} may")


def _owner_of_peer(accepted: socket.socket) -> int:
    """Return the user id of the peer's end. Raises OSError."""
    own, peer = accepted.getsockname(), accepted.getpeername()
    ports = _PORTS.pack(peer[1], own[1])
    addresses = b"".join(
        socket.inet_pton(accepted.family, one[0].partition("%")[0]).ljust(_ADDRESS_BYTES, b"\0") for one in (peer, own)
    )
    question = (
        _REQUEST.pack(accepted.family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
        + ports
        + addresses
        + _ANY_INTERFACE
        + _NO_COOKIE
    )
    kind, body = _asked(question)
    if kind == _NLMSG_ERROR:
        number = -struct.unpack_from("=i", body)[0]
        raise OSError(number, os.strerror(number))
    _, state, found, uid, inode = _ANSWER.unpack_from(body)
    if state != _ESTABLISHED or found != ports or not inode:
        raise OSError("it is closed already")
    return int(uid)


def _asked(question: bytes) -> tuple[int, bytes]:
    length = _HEADER.size + len(question)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + question)
        answer = kernel.recv(_ANSWER_BYTES)
    return _HEADER.unpack_from(answer)[1], answer[_HEADER.size :]
