"""What holds for all tests."""

import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# How long an example takes is the machine's matter, and this one may be busy: no test of ours judges by the clock. The
# check of each change draws the same few examples each time; `./run test --all` draws many, and new ones.
ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", ANY_SPEED, max_examples=30, derandomize=True, database=None)
settings.register_profile("many", ANY_SPEED, max_examples=150)
settings.load_profile("few")

# By default a traceback comes with all local variables, which holds up the event loop for seconds on a busy machine.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
STRUCTLOG = structlog.get_config()

ONE_PROCESS = (
    "tests/retention_job/",
    "tests/package/test_units_run.py",
    "tests/cluster/test_gateway",
    "tests/cluster/test_disks_and_cleaner.py",
    "tests/cluster/test_lifecycle.py",
    "tests/cluster/test_metadata_topic.py",
    "tests/cluster/test_reassign.py",
    "tests/cluster/test_recover.py",
    "tests/cluster/test_tiered_storage.py",
    "tests/cluster/test_whole_life.py",
)
"""A session of Spark, a systemd, or a cluster takes long to start, and is set-up that many tests share; gateways of
zones listen at addresses that the machine has once.
"""

SHARE_A_CLUSTER = ("tests/cluster/test_agents_stopped.py", "tests/cluster/test_followers.py")
"""In one process, or each process would start the cluster that they share."""

LEFT_TO_ALL = (
    "tests/perf/",
    "tests/package/test_units_run.py",
    "tests/package/test_wheel.py",
    "tests/gateway/produce/test_router_leaks.py",
    "tests/simulation/adoption/test_planted_adoption_bugs.py",
    "tests/simulation/archive/test_planted_archive_bugs.py",
    "tests/simulation/replicas/test_planted_replication_bugs.py",
    "tests/simulation/test_planted_bugs.py",
    "tests/simulation/test_planted_lifecycle_bugs.py",
)
"""The model's benchmarks, a running systemd, wheels, and whether simulations find bugs that were planted: only `./run
test --all` runs them.
"""

SPARK_TIMEOUT_S = 900
"""A module's tables are made in the set-up of its first test, on a machine that runs brokers as well. A session whose
test was cut off fails all tests behind it.
"""

LONGEST = (
    *SHARE_A_CLUSTER,
    "tests/simulation/test_simulation.py",
    "tests/cluster/test_recover.py",
    "tests/cluster/test_lost_metadata.py",
    "tests/cluster/test_disks_and_cleaner.py",
    "tests/cluster/test_inter_broker_security.py",
    "tests/cluster/test_wal_retention.py",
)
"""They begin early, as one that begins last is waited for by all processes but its own."""


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Commands, and Kafka's clients, set up what is logged for their whole process, which here is that of all tests.

    A command that a module's fixture runs does so before this one begins.
    """
    structlog.configure(**STRUCTLOG)
    root, kafka = logging.getLogger(), logging.getLogger("kafka")
    handlers, levels = list(root.handlers), (root.level, kafka.level)
    yield
    structlog.configure(**STRUCTLOG)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    kafka.setLevel(levels[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `./run test` leaves to `--all`, and start the longest first; the order is random otherwise.

    Of the tests with brokers or Spark, `./run test` runs those marked `gate` alone.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
        is_heavy = any(item.get_closest_marker(mark) for mark in ("cluster", "spark"))
        if item.nodeid.startswith(LEFT_TO_ALL) or (is_heavy and item.get_closest_marker("gate") is None):
            item.add_marker(pytest.mark.thorough)
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


class SomeInOneProcess(LoadScopeScheduling):
    """Each test goes where there is room, but those that begin with one of `ONE_PROCESS` together, as the first."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SHARE_A_CLUSTER):
            return "the shared cluster"
        return next((prefix for prefix in ONE_PROCESS if nodeid.startswith(prefix)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SomeInOneProcess:
    """Called where tests run in several processes."""
    return SomeInOneProcess(config, log)
