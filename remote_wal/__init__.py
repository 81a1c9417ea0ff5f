"""What is installed: one package, so that no name of ours meets another's in site-packages.

The rooms lie in here where the project is installed, and beside this folder in a checkout. They import each other by
their own names (`rlm`, `plugin`), and so does what an operator's settings name. So a process of ours has their
directory in front of its path; no other process of the same Python sees them.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOMS = _HERE if (_HERE / "cli").is_dir() else _HERE.parent

__path__ = []
"""A room has one name: by a second one, of this package, its classes would be others than those that we know."""


def main() -> None:
    """The command `remote-wal`."""
    sys.path.insert(0, str(ROOMS))
    from cli.start import main as start

    start()
