"""What holds for all tests."""

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# How long an example takes is the machine's matter, and this one may be busy: no test of ours judges by the clock.
settings.register_profile("remote-wal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("remote-wal")

SPARK_ROOM = "tests/retention_job/"


class OneProcessForSpark(LoadScopeScheduling):
    """Each test goes where there is room, but those with Spark all to one process, as the first."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK_ROOM if nodeid.startswith(SPARK_ROOM) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneProcessForSpark:
    """A session of Spark takes long to start, and whole runs of the job are set-up that many tests share."""
    return OneProcessForSpark(config, log)
