"""Agents of this tree that are other ones in one thing."""

import sys
from dataclasses import replace

from local_cluster.processes import ManagedProcess, ProcessSpec

_ANOTHER_VERSION = """
import replication.wire.peer_protocol as protocol

protocol.Hello.__init__.__defaults__ = (protocol.CAPABILITIES, protocol.PROTOCOL_VERSION + 1, ())
from cli.main import main

main()
"""

_TELLS_FETCH_VERSIONS = """
import replication.leader.relay_core as core

read = core.parse_request_header
seen = set()

def told(frame):
    header = read(frame)
    if header.api_key == core.FETCH_API_KEY and header.api_version not in seen:
        seen.add(header.api_version)
        print("asked by Fetch", header.api_version, flush=True)
    return header

core.parse_request_header = told
from cli.main import main

main()
"""


def with_another_version(agent: ProcessSpec) -> ManagedProcess:
    """The agent in the place of the one that has this specification, this tree's, which says that it has another
    protocol version.
    """
    return _running(agent, _ANOTHER_VERSION)


def telling_fetch_versions(agent: ProcessSpec) -> ManagedProcess:
    """The same, which says in its log by which version of Fetch followers ask."""
    return _running(agent, _TELLS_FETCH_VERSIONS)


def _running(agent: ProcessSpec, program: str) -> ManagedProcess:
    return ManagedProcess(replace(agent, command=(sys.executable, "-c", program, *agent.command[3:])))
