"""Requests as brokers of some releases sent them to agents, at either listener: `captured/<release>.hex`, one a line.

Of each API and version the smallest, a middle one and the largest. Brokers and clients were those of
tests/cluster/test_followers.py, without logins, so there is nothing of a secret in them.
"""

from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).parent / "captured"


def captured() -> dict[str, list[bytes]]:
    files = sorted(DIRECTORY.glob("*.hex"))
    return {file.stem: [bytes.fromhex(line) for line in file.read_text().split()] for file in files}
