"""Most commands here are given a cluster that is played, at an address where nobody listens."""

import pytest

from cli.main import build_app
from kafka_cluster import preflight

build_app()  # imports all commands: one imported while a test replaces a function would keep that for ever


@pytest.fixture(autouse=True)
def reached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All addresses answer, but for those who test that."""
    if not request.node.get_closest_marker("real_connections"):
        monkeypatch.setattr(preflight, "ask", lambda *_: ())
