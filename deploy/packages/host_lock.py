"""Prints the part of requirements.lock that a host needs: what the package brings along, with its hashes.

python3 deploy/packages/host_lock.py [EXTRA ...] > host.lock
"""

import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = r"[\w.-]+"


def host_lock(extras: list[str]) -> str:
    """Return the lock's entries that the package's dependencies need, directly or through others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [one for extra in extras for one in project["optional-dependencies"][extra]]
    needed = {found[0] for text in wanted if (found := re.match(NAME, text))}
    needed_by = defaultdict[str, set[str]](set)
    entries = re.findall(rf"^(({NAME}).*\n(?: .*\n)*)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    for entry, name in entries:
        needed_by[name] |= {*re.findall(rf"^    # +(?:via )?({NAME})$", entry, re.MULTILINE)}
    while more := {name for name, others in needed_by.items() if others & needed} - needed:
        needed |= more
    return "".join(entry for entry, name in entries if name in needed)


if __name__ == "__main__":
    sys.stdout.write(host_lock(sys.argv[1:]))
