"""What is installed: one package, so that no name of ours meets another's in site-packages.

In Python it reads stored topics: `read`, `read_batches`, `Source`, and `RemoteWalDataSource` for Spark.

Our packages lie in here where the project is installed, and beside this folder in a checkout. They import each other by
their own names (`rlm`, `plugin`), and so does what an operator's settings name. So a process of ours has their
directory in front of its path; no other process of the same Python sees them. A program that uses what is offered
here becomes such a process with the first use.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topic_reader.read import read as read
    from topic_reader.read import read_batches as read_batches
    from topic_reader.sources import Source as Source
    from topic_reader.spark_source import RemoteWalDataSource as RemoteWalDataSource

_HERE = Path(__file__).resolve().parent
ROOT = _HERE if (_HERE / "cli").is_dir() else _HERE.parent

__path__ = []
"""A package has one name: by a second one, below this package, its classes would be others than those that we know."""


_READ, _SPARK = "topic_reader.read", "topic_reader.spark_source"
_OFFERED = {
    "read": _READ,
    "read_batches": _READ,
    "Source": "topic_reader.sources",
    "RemoteWalDataSource": _SPARK,
    "_BatchReader": _SPARK,
    "_FilteringReader": _SPARK,
    "_StreamReader": _SPARK,
}
"""The module of each name. The last ones are named in what Spark sends to its workers."""


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    _use_packages()
    return getattr(import_module(_OFFERED[name]), name)


def _use_packages() -> None:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))


def main() -> None:
    """The entry point of the command `remote-wal`."""
    _use_packages()
    from cli.start import main as start

    start()
