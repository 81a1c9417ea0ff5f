"""All tests of the package share the session of `tests.spark`."""

from pathlib import Path

import pytest

from tests.leftover_sockets import LEAVES_SOCKETS
from tests.spark import spark

__all__ = ["spark"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(LEAVES_SOCKETS)
